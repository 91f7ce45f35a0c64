"""Tables where workers wait for each other, rows that travel compressed, and rules of whole rows."""

import gradlane
import numpy as np
import pytest
from gradlane import InvalidArgumentError, errors, modes, rules
from gradlane.tables import Table

pytestmark = [pytest.mark.workers(3, servers=2), pytest.mark.over("local", "shm", "quic")]

STEPS, IDS, DIM = 30, 40, 3


def batch_of(rank, step):
    """The ids of a worker at a step, some of them twice, and a gradient for each: whole numbers, which add up exactly."""
    random = np.random.default_rng([rank, step])
    ids = random.integers(0, IDS, random.integers(0, 20))
    return ids, random.integers(-4, 5, (len(ids), DIM)).astype(np.float32)


@pytest.mark.parametrize("merge", ["mean", "sum"])
@pytest.mark.parametrize("rule", [rules.SGD(lr=0.25, momentum=0.5), rules.Adagrad(lr=0.5)], ids=["sgd", "adagrad"])
def test_rows_of_a_table_in_rounds_are_those_of_one_process(rule, merge):
    table = Table(f"rounds {rule} {merge}", DIM, rule=rule, mode=modes.Sync(merge=merge), init="uniform", scale=1.0)
    alone = Table(f"{table.name} alone {gradlane.rank()}", DIM, rule=rule, init="uniform", scale=1.0)
    every = np.arange(IDS)
    for step in range(STEPS):
        ids, gradients = batch_of(gradlane.rank(), step)
        table.pull(ids)
        table.push(ids, gradients, step=step)
        batches = [batch_of(rank, step) for rank in range(gradlane.size())]
        all_ids, all_gradients = (np.concatenate(of_all) for of_all in zip(*batches, strict=True))
        divisor = np.float32(gradlane.size() if merge == "mean" else 1)
        sums = np.zeros((IDS, DIM), np.float32)
        np.add.at(sums, all_ids, all_gradients)
        touched = np.unique(all_ids)
        alone.push(touched, sums[touched] / divisor, step=step)
        assert table.look(every).tobytes() == alone.look(every).tobytes(), f"step {step}"
        # Nobody pushes again while another one looks.
        gradlane.barrier(f"{table.name} {step}")


def test_who_does_not_push_is_waited_for_until_the_time_is_up_and_nothing_is_lost():
    table = Table("late", DIM, rule=rules.SGD(lr=1.0), mode=modes.Sync(merge="sum"))
    ones = np.ones((1, DIM), np.float32)
    table.push([1], ones)
    assert table.look([1]).tolist() == [[-3.0] * DIM]
    gradlane.barrier("late is read")
    if gradlane.rank() == 0:
        with pytest.raises(errors.Error, match="late"):
            table.push([1], ones, step=1, timeout=0.3)
        # Servers have forgotten that push before they hear of another one.
        table.stats()
    gradlane.barrier("one gave up")
    table.push([1], ones, step=1)
    assert table.look([1]).tolist() == [[-6.0] * DIM]


def test_workers_of_different_steps_are_told_so_and_nothing_is_merged():
    table = Table("out of step", 1, rule=rules.SGD(lr=1.0), mode=modes.Sync())
    with pytest.raises(errors.FailedPreconditionError, match="pushes for step"):
        table.push([1], np.ones((1, 1), np.float32), step=gradlane.rank())
    assert table.look([1]).tolist() == [[0.0]]
    gradlane.barrier("out of step is read")


@pytest.mark.parametrize(("compression", "number"), [("fp16", 1e5), ("bf16", 3.4e38), ("none", 3e38)])
def test_what_becomes_infinite_on_its_way_is_refused_before_it_is_sent(compression, number):
    table = Table(f"infinite {compression} {gradlane.rank()}", 1, rule=rules.SGD(lr=1.0), compression=compression)
    with pytest.raises(errors.NotFiniteError, match="infinite"):
        table.push([1, 1], np.full((2, 1), number, np.float32))
    assert table.stats().rows == 0


def test_a_sum_of_all_workers_that_is_infinite_is_told_to_all_of_them():
    table = Table("infinite together", 1, rule=rules.SGD(lr=1.0), mode=modes.Sync(merge="sum"))
    with pytest.raises(errors.NotFiniteError, match="sum of all workers"):
        table.push([1], np.full((1, 1), 3e38, np.float32))
    assert table.look([1]).tolist() == [[0.0]]
    gradlane.barrier("infinite together is read")


@pytest.mark.workers(2, servers=1, settings={"step_timeout": "2s"})
@pytest.mark.parametrize("mode", [modes.Sync(), modes.SSP(0)], ids=["sync", "ssp"])
def test_who_is_waited_for_is_named(mode):
    table = Table(f"waits {mode}", 1, rule=rules.SGD(lr=1.0), mode=mode)
    if gradlane.rank() == 0:
        with pytest.raises(errors.StallError, match="rank 1"):
            for _ in range(2):
                table.push([1], np.ones((1, 1), np.float32))
                table.pull([1])
    gradlane.barrier(f"{table.name} was named", timeout=60)


def test_nobody_is_further_ahead_than_the_bound():
    bound = 2
    table = Table("ahead of all", 1, rule=rules.SGD(lr=1.0), mode=modes.SSP(bound))
    one = np.ones((1, 1), np.float32)
    for step in range(20):
        # Each row counts the pushes of one worker, before the other rows are read.
        table.push([gradlane.rank()], one)
        counts = -table.pull(list(range(gradlane.size())))[:, 0]
        assert counts.min() >= step + 1 - bound, f"{counts} at {step}"
        assert counts[gradlane.rank()] == step + 1


@pytest.mark.parametrize(("compression", "error"), [("none", 0.0), ("bf16", 2**-8), ("fp16", 2**-11), ("int8", 1 / 254)])
def test_compressed_rows_are_rounded_once_each_way(compression, error):
    table = Table(f"{compression} {gradlane.rank()}", 200, rule=rules.SGD(lr=1.0), compression=compression)
    exact = np.random.default_rng(5).normal(size=(50, 200)).astype(np.float32)
    table.push(np.arange(50), -exact)
    rows = table.pull(np.arange(50))
    largest = abs(exact).max(axis=1, keepdims=True) if compression == "int8" else abs(exact)
    # Below 2**-14 float16 has fewer digits.
    assert (abs(rows - exact) <= 2.01 * error * np.maximum(largest, 2**-14)).all()
    assert (rows != exact).any() == (compression != "none")
    many = table.pull(np.tile(np.arange(50), 3))
    assert (many == np.tile(rows, (3, 1))).all()


@pytest.mark.parametrize(
    "rule",
    [
        rules.RowwiseAdagrad(lr=0.1),
        rules.PaddleAdagrad(),
        rules.PaddleStdAdagrad(initial_g2sum=1.0),
        rules.PaddleAdam(betas=(0.8, 0.9)),
        rules.PaddleSharedAdam(clip_value=1.0),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_rules_of_rows_are_of_tables_alone(rule):
    table = Table(f"{type(rule).__name__} {gradlane.rank()}", 4, rule=rule)
    for _ in range(5):
        table.push([3], np.array([[1.0, -1.0, 2.0, 0.0]], np.float32))
    row = table.look([3])[0]
    assert row[0] < 0 < row[1] and row[2] < 0
    with pytest.raises(InvalidArgumentError, match="rows of tables alone"):
        gradlane.parameters.init("no row", np.zeros(3, np.float32), rule=rule)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"mode": modes.Backup(1)}, "a table has modes.Async"),
        ({"mode": modes.SSP(1, max_staleness=3)}, "without a staleness"),
        ({"mode": modes.Async(compensate=0.1)}, "without compensation"),
        ({"mode": "sync"}, "a table has modes.Async"),
        ({"compression": "topk"}, "none, bf16, fp16, int8"),
    ],
)
def test_modes_and_compressions_of_tables_are_checked(arguments, named):
    with pytest.raises(InvalidArgumentError, match=named):
        Table("wrong", 2, rule=rules.SGD(), **arguments)


def test_a_mode_that_others_have_not_is_refused_where_they_meet():
    mode = modes.Sync() if gradlane.rank() == 0 else modes.Async()
    table = Table("of two modes", 2, rule=rules.SGD(), mode=mode)
    gradlane.barrier("both made it")
    if gradlane.rank() == 0:
        table.pull([1])
    gradlane.barrier("one has it")
    if gradlane.rank() > 0:
        with pytest.raises(errors.MismatchError, match="mode=sync"):
            table.pull([1])
    gradlane.barrier("the others heard")
