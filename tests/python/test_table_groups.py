"""Groups of tables: one exchange with each server for all of them."""

import gradlane
import numpy as np
import pytest
from gradlane import InvalidArgumentError, MismatchError, rules
from gradlane.tables import Group, Table, pull_all

pytestmark = [pytest.mark.workers(2, servers=2), pytest.mark.over("local", "shm", "quic")]

MEMBERS = {"user": 1000, "item": 1 << 40, "day": 7}
UNIFORM = {"init": "uniform", "scale": 0.5, "seed": 3}


def own(name):
    """The name of a table that no other worker uses."""
    return f"{name} of worker {gradlane.rank()}"


def test_each_table_has_its_own_rows_which_lie_in_the_ranges_of_one_table():
    group = Group(own("ranges"), MEMBERS, 4, rule=rules.SGD(lr=1.0), **UNIFORM)
    assert [(ids.start, ids.stop) for ids in group.ranges.values()] == [(0, 1000), (1000, 1000 + (1 << 40)), (1000 + (1 << 40), 1007 + (1 << 40))]
    ids = {"item": np.array([[5, 6], [5, (1 << 40) - 1]]), "user": [999, 5], "day": np.array([], np.int64)}
    rows = group.pull(ids)
    assert {name: found.shape for name, found in rows.items()} == {"item": (2, 2, 4), "user": (2, 4), "day": (0, 4)}
    assert (rows["item"][0, 0] == rows["item"][1, 0]).all() and (rows["item"][0, 0] != rows["user"][1]).any()
    assert (rows["item"] == group.table.look(ids["item"] + 1000)).all() and (rows["user"] == group.table.look([999, 5])).all()
    assert (group["item"].look([6])[0] == rows["item"][0, 1]).all() and group.table.stats().rows == 5


def test_gradients_change_the_rows_of_their_table_alone_and_those_of_one_id_add_up():
    group = Group(own("pushed"), MEMBERS, 2, rule=rules.SGD(lr=1.0))
    ones = np.ones((3, 2), np.float32)
    group.push({"user": ([1, 1, 2], ones), "day": ([1, 2, 3], 4 * ones)})
    group["item"].push([1], 16 * ones[:1])
    rows = group.look(dict.fromkeys(MEMBERS, [1, 2]))
    assert [rows[name][:, 0].tolist() for name in MEMBERS] == [[-2, -1], [-16, 0], [-4, -4]]


def test_all_tables_are_used_in_one_exchange_with_each_server():
    names = [f"column {number}" for number in range(20)]
    group = Group("one exchange", dict.fromkeys(names, 100), 2, rule=rules.SGD())
    tables = [Table(f"exchange {name}", 2, rule=rules.SGD()) for name in names]
    ids = np.arange(100)

    def exchanges(use):
        use()
        before = gradlane.metrics()["pushes"]
        use()
        return gradlane.metrics()["pushes"] - before

    of_one = exchanges(lambda: group.table.pull(ids))
    assert exchanges(lambda: group.pull(dict.fromkeys(names, ids))) == of_one
    assert exchanges(lambda: pull_all([(table, ids) for table in tables])) == 20 * of_one


def test_results_are_of_the_kind_of_the_ids():
    torch = pytest.importorskip("torch")
    group = Group(own("kinds"), MEMBERS, 2, rule=rules.SGD(), **UNIFORM)
    pending = group.pull_async({"user": torch.tensor([[1], [2]]), "item": np.array([1], np.uint64)})
    rows = pending.wait()
    assert isinstance(rows["user"], torch.Tensor) and isinstance(rows["item"], np.ndarray)
    assert torch.equal(rows["user"][1], group["user"].look(torch.tensor([2]))) and pending.wait() is rows and pending.done()


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (lambda group: group.pull({"users": [1]}), "no table 'users'; it has user, item, day"),
        (lambda group: group["users"], "no table 'users'"),
        (lambda group: group.pull({"user": [1000]}), "table user of group .* has no id 1000; give ids below 1000"),
        (lambda group: group.pull({"day": np.array([[1, -1]])}), "has no id -1; give ids below 7"),
        (lambda group: group.pull({"item": np.array([1 << 63], np.uint64)}), "has no id 9223372036854775808"),
        (lambda group: group.pull({"user": [1.5]}), "ids of user: float64"),
        (lambda group: group.pull({"user": [[1], [2, 3]]}), "ids of user"),
        (lambda group: group.pull([1]), "give ids for each table"),
        (lambda group: group.push({"user": ([1], np.ones((1, 3), np.float32))}), r"shape \[1, 3\]; give float32 of shape \[1, 2\]"),
        (lambda group: group.push({"user": ([1], np.ones((1, 2)))}), "gradients of user: float64"),
        (lambda group: Group("x", {}, 2, rule="sgd"), "members={}"),
        (lambda group: Group("x", {"user": 0}, 2, rule="sgd"), "'user': 0"),
        (lambda group: Group("x", {"user": 1 << 63}, 2, rule="sgd"), "less than 2"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_changes(use, named):
    group = Group(own("wrong"), MEMBERS, 2, rule=rules.SGD())
    with pytest.raises(InvalidArgumentError, match=named):
        use(group)
    assert group.table.stats().rows == 0


@pytest.mark.over("shm")
def test_workers_that_mean_other_ids_are_told_so():
    members = MEMBERS if gradlane.rank() == 0 else {**MEMBERS, "user": 1001}
    group = Group("meanings", members, 2, rule=rules.SGD())
    gradlane.barrier("both have it")
    if gradlane.rank() == 0:
        group.pull({"user": [1]})
    gradlane.barrier("the first one has declared it")
    if gradlane.rank() == 1:
        with pytest.raises(MismatchError, match="members="):
            group.pull({"user": [1]})
