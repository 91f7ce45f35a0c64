"""Tables: rows by id that servers keep."""

import array
import threading

import gradlane
import numpy as np
import pytest
from gradlane import InvalidArgumentError, MismatchError, errors, rules
from gradlane.tables import Counts, Table, pull_all, push_all

pytestmark = [pytest.mark.workers(2, servers=3), pytest.mark.over("local", "shm", "quic")]

UNIFORM = {"init": "uniform", "scale": 0.5, "seed": 3}


def test_a_pull_keeps_the_order_of_the_ids_and_all_workers_read_the_same():
    table = Table("order", 4, rule=rules.SGD(lr=1.0), **UNIFORM)
    ids = np.array([[7, 1 << 62], [7, -1]])
    rows = table.pull(ids)
    assert rows.shape == (2, 2, 4) and rows.dtype == np.float32
    assert (rows[0, 0] == rows[1, 0]).all() and len({row.tobytes() for row in rows.reshape(4, 4)}) == 3
    assert (abs(rows) <= 0.5).all() and table.pull([7, 1 << 62])[1].tolist() == rows[0, 1].tolist()
    everybody = np.zeros((gradlane.size(), *rows.shape), np.float32)
    everybody[gradlane.rank()] = rows
    gradlane.push_pull(everybody, "all rows", op=gradlane.Sum)
    assert (everybody == rows).all()
    gradlane.barrier("order is read")
    assert table.stats().rows == 3


def test_pushes_of_all_workers_add_up_and_ids_that_come_twice_count_once():
    table = Table("added", 3, rule=rules.SGD(lr=1.0))
    ids = np.arange(1000)
    for _ in range(10):
        table.push(np.concatenate([ids, ids[:500]]), np.full((1500, 3), float(64 ** gradlane.rank()), np.float32))
    gradlane.barrier("added by all")
    once = -10.0 * sum(64**rank for rank in range(gradlane.size()))
    rows = table.look(ids)
    assert (rows[:500] == 2 * once).all() and (rows[500:] == once).all()


def test_a_look_makes_no_row_and_reads_what_a_row_would_begin_with():
    table = Table(f"looked {gradlane.rank()}", 2, rule=rules.SGD(), **UNIFORM)
    seen = table.look([3, 4])
    assert table.stats() == Counts(0, 0, 0, 0, table.stats().bytes, 0)
    assert (table.pull([3, 4]) == seen).all() and table.stats().rows == 2


def test_rows_are_admitted_and_shrunk_and_cleared():
    table = Table(f"admitted {gradlane.rank()}", 1, rule=rules.SGD(lr=1.0), after=2)
    ids = np.arange(100)
    assert (table.pull(ids) == 0).all()
    table.push(ids, np.ones((100, 1), np.float32))
    counts = table.stats()
    assert (counts.rows, counts.waiting, counts.dropped) == (0, 100, 100)
    table.pull(ids[:60])
    table.push(ids[:30], np.ones((30, 1), np.float32))
    shrunk = table.shrink(decay=0.5, min_score=0.5)
    assert (shrunk.scanned, shrunk.evicted, shrunk.rows) == (60, 30, 30)
    assert (table.look(ids[:30]) == -1).all() and (table.look(ids[30:]) == 0).all()
    table.push([1000], np.ones((1, 1), np.float32), step=50)
    assert table.shrink(max_idle=40).evicted == 30
    table.clear()
    assert (table.stats().rows, table.stats().waiting) == (0, 0)


def test_a_full_table_refuses_or_lets_rows_go_as_it_was_told():
    ids = np.arange(4096)
    refusing = Table(f"refusing {gradlane.rank()}", 1, rule=rules.SGD(), rows=2048)
    with pytest.raises(gradlane.FailedPreconditionError, match="the table is full: .* share of 2048"):
        for at in range(0, 4096, 512):
            refusing.pull(ids[at : at + 512])
    evicting = Table(f"evicting {gradlane.rank()}", 1, rule=rules.SGD(), rows=2048, full="evict")
    for at in range(0, 4096, 512):
        evicting.pull(ids[at : at + 512])
    assert evicting.stats().rows <= 2048 + 3 and evicting.stats().evicted >= 2045


def test_values_stay_within_their_bound():
    table = Table(f"bound {gradlane.rank()}", 2, rule=rules.SGD(lr=1.0), bound=0.25)
    table.push([5], np.array([[3.0, -0.125]], np.float32))
    assert table.look([5]).tolist() == [[-0.25, 0.125]]


def test_other_arguments_are_an_error_that_names_both():
    table = Table("agreed", 2, rule=rules.SGD(lr=0.1 * (1 + gradlane.rank())))
    if gradlane.rank() == 0:
        table.pull([1])
    gradlane.barrier("rank 0 was first")
    if gradlane.rank() == 1:
        with pytest.raises(MismatchError, match=r"lr=0\.1.*lr=0\.2"):
            table.pull([1])


def test_rows_are_admitted_by_the_score_that_pushes_bring():
    table = Table(f"scored {gradlane.rank()}", 1, rule=rules.SGD(lr=1.0), score=3.0)
    ones = np.ones((4, 1), np.float32)
    table.push([1, 2, 2, 3], ones, scores=[1.0, 1.0, 1.0, 3.0])
    counts = table.stats()
    assert (counts.rows, counts.waiting, counts.dropped) == (1, 2, 2)
    table.push([1, 2], ones[:2])
    assert table.pull([1, 2, 3]).tolist() == [[0.0], [-1.0], [-1.0]]
    table.push(np.array([1]), ones[:1], scores=np.array([0.5], np.float32))
    table.push([1], ones[:1], scores=np.array([[0.5]], np.float32))
    assert table.pull([1]).tolist() == [[-1.0]]
    for wrong, named in [
        ([1.0, 2.0], "2 of 1 ids"),
        (["a"], "list of numbers"),
        (np.array([1.0]), "2 of 1 ids"),
        ([-1.0], "score of -1"),
        ([float("nan")], "score of NaN"),
    ]:
        with pytest.raises(InvalidArgumentError, match=named):
            table.push([1], ones[:1], scores=wrong)
    with pytest.raises(InvalidArgumentError, match="one of after and score"):
        Table("both", 1, rule=rules.SGD(), score=1.0, after=2)


def test_a_table_is_no_parameter_and_no_sum():
    table = Table("of one kind", 2, rule=rules.SGD())
    table.pull([1])
    gradlane.barrier("there is the table")
    with pytest.raises(MismatchError):
        gradlane.push_pull(np.zeros((1024, 2), np.float32), "of one kind")
    with pytest.raises(MismatchError):
        gradlane.parameters.init("of one kind", np.zeros((1024, 2), np.float32))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"dim": 0}, "from 1 to 16384"),
        ({"dim": 1 << 40}, "from 1 to 16384"),
        ({"rule": None}, "rule=None"),
        ({"rule": "sdg"}, "no optimizer sdg"),
        ({"rule": rules.Muon()}, "matrix as a whole"),
        ({"rule": rules.SGD(ema=rules.EMA(0.9))}, "averages"),
        ({"init": "ones"}, "zero, uniform, normal"),
        ({"init": "uniform"}, "scale above 0"),
        ({"seed": -1}, "whole number"),
        ({"after": 0}, "1 or above"),
        ({"share": 0.0}, "above 0, up to 1"),
        ({"rows": -1}, "whole number"),
        ({"full": "drop"}, "refuse, evict"),
        ({"bound": float("nan")}, "0 or above"),
        ({"name": ""}, "name"),
    ],
    ids=lambda of: of if isinstance(of, str) else "-".join(of),
)
def test_arguments_of_a_table_are_checked(arguments, named):
    with pytest.raises(InvalidArgumentError, match=named):
        Table(**{"name": "wrong", "dim": 2, "rule": rules.SGD(), **arguments})


def test_arguments_of_uses_are_checked_and_nothing_is_sent():
    table = Table(f"uses {gradlane.rank()}", 2, rule=rules.SGD(lr=1.0))
    gradient = np.ones((1, 2), np.float32)
    for wrong, named in [
        (lambda: table.pull(["a"]), "list of int"),
        (lambda: table.pull([1 << 64]), "of 64 bits"),
        (lambda: table.pull(np.array([1.0])), "give int64"),
        (lambda: table.pull(np.arange(8)[::2]), "contiguous"),
        (lambda: table.pull([1], out=np.zeros((1, 3), np.float32)), r"give float32 of shape \[1, 2\]"),
        (lambda: table.pull([1], out=np.zeros((1, 2))), "give float32"),
        (lambda: table.push([1], np.ones((2, 2), np.float32)), r"shape \[1, 2\]"),
        (lambda: table.push([1], gradient, step=-1), "step=-1"),
        (lambda: table.pull([1], timeout=-1), "timeout"),
        (lambda: table.pull(np.arange((1 << 20) + 1)), "1048577 ids"),
        (lambda: table.shrink(decay=1.5), "decay of 1.5"),
        (lambda: table.shrink(min_score=float("inf")), "finite score"),
    ]:
        with pytest.raises(InvalidArgumentError, match=named):
            wrong()
    for special in (float("nan"), float("inf")):
        with pytest.raises(errors.NotFiniteError, match="uses"):
            table.push([1], np.array([[0.0, special]], np.float32))
    assert table.stats().rows == 0


def test_ids_may_be_lists_buffers_and_unsigned_and_there_may_be_none():
    table = Table("forms", 2, rule=rules.SGD(), **UNIFORM)
    wanted = table.pull([1, 2]).tolist()
    for ids in (np.array([1, 2], np.uint64), array.array("q", [1, 2]), (1, 2), range(1, 3)):
        assert table.pull(ids).tolist() == wanted
    assert table.pull([]).shape == (0, 2) and table.pull(np.zeros((3, 0), np.int64)).shape == (3, 0, 2)
    table.push([], np.zeros((0, 2), np.float32))


def test_a_pull_that_was_begun_reads_what_was_pushed_before_it():
    table = Table(f"ahead {gradlane.rank()}", 2, rule=rules.SGD(lr=1.0))
    for step in range(20):
        pushed = table.push_async([step, step + 1], np.ones((2, 2), np.float32))
        ahead = table.pull_async([step])
        assert ahead.wait().tolist() == [[-1.0 - (step > 0)] * 2]
        assert pushed.wait() is None and pushed.done() and ahead.done()


def test_several_tables_are_used_at_once():
    several = [Table(f"at once {index} {gradlane.rank()}", index + 1, rule=rules.SGD(lr=1.0)) for index in range(5)]
    ids = [np.arange(index, 10) for index in range(5)]
    uses = [(table, of, np.ones((len(of), table.dim), np.float32)) for table, of in zip(several, ids, strict=True)]
    push_all(uses)
    rows = pull_all([(table, of) for table, of, _ in uses])
    assert [of.shape for of in rows] == [(10 - index, index + 1) for index in range(5)]
    assert all((of == -1.0).all() for of in rows)
    uses[2] = (several[2], [1], np.full((1, 3), np.inf, np.float32))
    with pytest.raises(errors.NotFiniteError, match="at once 2"):
        push_all(uses)


def test_threads_share_a_table():
    table = Table(f"threads {gradlane.rank()}", 1, rule=rules.SGD(lr=1.0))
    failed = []

    def work():
        try:
            for _ in range(25):
                table.push([1, 2], np.ones((2, 1), np.float32))
                table.pull([1, 2, 3])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and table.look([1, 2]).tolist() == [[-100.0], [-100.0]]


def test_a_name_may_be_a_table_again_after_all_have_given_it_up():
    table = Table("given up", 2, rule=rules.SGD(lr=1.0))
    table.push([1], np.ones((1, 2), np.float32))
    gradlane.barrier("used")
    gradlane.undeclare("given up")
    gradlane.barrier("given up")
    assert Table("given up", 3, rule=rules.Adagrad()).pull([1]).tolist() == [[0.0, 0.0, 0.0]]


def test_a_checkpoint_of_a_job_with_a_table_is_refused():
    Table("not saved", 2, rule=rules.SGD()).pull([1])
    gradlane.parameters.init("saved", np.zeros(3))
    with pytest.raises(gradlane.FailedPreconditionError, match="checkpoints have parameters alone"):
        gradlane.checkpoint.save("nowhere")
