"""Modes: when a change of a parameter is done, and for whom a worker waits."""

import threading

import gradlane
import numpy as np
import pytest
from gradlane import (
    FailedPreconditionError,
    InvalidArgumentError,
    MismatchError,
    TimeoutError,
    modes,
    parameters,
    rules,
)

pytestmark = [pytest.mark.workers(1, 3, servers=2), pytest.mark.over("local", "shm", "quic")]

ROUNDS = 5
LARGE = 3 << 20
"""Elements of float32 for several parts of the default length, on all servers."""


def pulled(name, like):
    out = np.full_like(like, 99)
    version = parameters.pull(name, out)
    return out, version


def alone():
    return gradlane.size() == 1


def test_a_stale_change_is_discarded_or_scaled_and_its_worker_hears_so():
    """One worker is as stale as it makes itself: its own changes count, too, until it reads the value."""
    rank = gradlane.rank()
    value, one = np.zeros(4, np.float32), np.ones(4, np.float32)
    for number, (mode, fate, total) in enumerate(
        [
            (modes.Async(), "accepted", 3.0),
            (modes.Async(max_staleness=1), "discarded_stale", 2.0),
            (modes.Async(max_staleness=1, beyond="scale"), "scaled", 2 + 1 / 3),
        ]
    ):
        name = f"stale {number} of {rank}"
        assert parameters.init(name, value, mode=mode) == 1
        first, second, third = (parameters.push(name, one) for _ in range(3))
        assert (first, first.fate, first.lag, first.factor) == (2, "accepted", 0, 1.0)
        assert (second.fate, second.lag) == ("accepted", 1)
        assert (third.fate, third.lag) == (fate, 2)
        assert third == (3 if fate == "discarded_stale" else 4)
        assert third.factor == pytest.approx({"accepted": 1, "discarded_stale": 0, "scaled": 1 / 3}[fate])
        got, version = pulled(name, value)
        assert got.tolist() == pytest.approx([total] * 4) and version == third
        fresh = parameters.push(name, one)
        assert (fresh.fate, fresh.lag) == ("accepted", 0)


@pytest.mark.parametrize("beyond", ["discard", "scale"])
def test_old_gradients_are_compensated_by_the_formula(beyond):
    """Each worker is as stale as it makes itself."""
    rank, kappa = gradlane.rank(), 0.25
    mode = modes.Async(max_staleness=2, beyond=beyond, compensate=kappa)
    name, value = f"compensated {mode} of {rank}", np.linspace(-2, 2, 9)
    parameters.init(name, value, rule=rules.SGD(lr=0.5), mode=mode)
    read, weight = value.copy(), value.copy()
    gradients = np.random.default_rng(7).normal(size=(5, 9))
    for lag, gradient in enumerate(gradients):
        version = parameters.push(name, gradient, update="step")
        fate = "accepted" if lag <= 2 else {"discard": "discarded_stale", "scale": "scaled"}[beyond]
        assert (version.fate, version.lag) == (fate, lag)
        if fate == "discarded_stale":
            break
        corrected = gradient + kappa * gradient * gradient * (weight - read)
        weight -= 0.5 * corrected * (1 if lag <= 2 else 1 / (1 + lag))
    out, _ = pulled(name, value)
    np.testing.assert_allclose(out, weight, rtol=1e-12)
    fresh = parameters.push(name, gradients[0], update="step")
    assert fresh.lag == 0
    out, _ = pulled(name, value)
    np.testing.assert_allclose(out, weight - 0.5 * gradients[0], rtol=1e-12, err_msg="it has read the value")


@pytest.mark.workers(3, servers=2)
@pytest.mark.over("shm", "quic")
def test_gradients_of_others_are_compensated_for_each_worker_by_what_it_has_read():
    rank, mode = gradlane.rank(), modes.Async(compensate=1.0)
    parameters.init("bases", np.full(LARGE, 8.0, np.float32), rule=rules.SGD(lr=1.0), mode=mode)
    got, _ = pulled("bases", np.zeros(LARGE, np.float32))
    gradlane.barrier("bases: all have read")
    expected = 8.0
    for turn in range(3):
        expected -= 2.0 + 4.0 * (expected - 8.0)
        if turn == rank:
            assert parameters.push_pull("bases", np.full(LARGE, 2.0, np.float32), out=got, update="step") == 2 + turn
            assert got.min() == got.max() == expected
        gradlane.barrier(f"bases: turn {turn}")


@pytest.mark.workers(3, servers=2)
@pytest.mark.over("shm", "quic")
def test_changes_of_others_make_a_change_stale():
    rank, one = gradlane.rank(), np.ones(LARGE, np.float32)
    parameters.init("others", np.zeros(LARGE, np.float32), mode=modes.Async(max_staleness=1))
    got, _ = pulled("others", one)
    gradlane.barrier("all have read version 1")
    if rank > 0:
        parameters.push("others", one)
    gradlane.barrier("two versions came")
    if rank == 0:
        late = parameters.push_pull("others", one, out=got)
        assert (late, late.fate, late.lag) == (3, "discarded_stale", 2)
        assert got.min() == got.max() == 2.0, "it reads what is there"
        again = parameters.push("others", one)
        assert (again, again.fate) == (4, "accepted")
    gradlane.barrier("worker 0 is done")


@pytest.mark.parametrize("merge", ["mean", "sum"])
def test_sync_is_training_by_one_worker_with_all_gradients(merge):
    rank, size = gradlane.rank(), gradlane.size()
    clock = parameters.Clock(f"sync {merge}", modes.Sync(merge=merge))
    names = [f"sync {merge} {number}" for number in range(3)]
    weights = [np.arange(shape, dtype=np.float32) for shape in (7, 1, LARGE)]
    for name, each in zip(names, weights, strict=True):
        parameters.init(name, each, rule=rules.SGD(lr=0.5, momentum=0.5), mode=clock)
    expected, momenta = [each.astype(np.float64) for each in weights], [0.0, 0.0, 0.0]
    for step in range(ROUNDS):
        for name, each in zip(names, weights, strict=True):
            version = parameters.push(name, np.full_like(each, step + rank), update="step")
            assert version.fate == "kept"
        tick = clock.tick()
        assert (tick.round, tick.step, tick.fate) == (step + 1, step + 1, "accepted")
        total = sum(step + other for other in range(size))
        for number, (name, each) in enumerate(zip(names, weights, strict=True)):
            momenta[number] = 0.5 * momenta[number] + (total / size if merge == "mean" else total)
            expected[number] -= 0.5 * momenta[number]
            assert parameters.pull(name, each) == step + 2
            np.testing.assert_allclose(each, expected[number], rtol=1e-6, atol=1e-5)
    assert clock.round == clock.step == ROUNDS


def test_a_parameter_that_nobody_pushed_in_a_round_stays():
    clock = parameters.Clock("rare", modes.Sync())
    for name in ("often", "rarely"):
        parameters.init(name, np.zeros(3), rule=rules.SGD(lr=1.0), mode=clock)
    for step in range(4):
        parameters.push("often", np.ones(3), update="step")
        if step == 2 and gradlane.rank() == 0:
            parameters.push("rarely", np.ones(3), update="step")
        clock.tick()
    assert pulled("often", np.zeros(3))[1] == 5
    value, version = pulled("rarely", np.zeros(3))
    assert version == 2
    # Who brings nothing brings zeros.
    assert value.tolist() == pytest.approx([-1 / gradlane.size()] * 3)


@pytest.mark.workers(3, servers=2)
@pytest.mark.over("shm", "quic")
def test_the_first_two_of_three_close_a_round_on_all_servers_alike():
    rank = gradlane.rank()
    clock = parameters.Clock("backup", modes.Backup(k=2))
    names = [f"backup {number}" for number in range(8)]
    for name in names:
        parameters.init(name, np.zeros(2), rule=rules.SGD(lr=1.0), mode=clock)
    gradlane.barrier("backup: all have begun")
    # Worker 2 brings its gradients of round 1 in time, and ticks when the others have closed it.
    for name in names:
        assert parameters.push(name, np.full(2, 10.0**rank), update="step").fate == "kept"
    gradlane.barrier("backup: all have pushed")
    if rank < 2:
        assert clock.tick().fate == "accepted"
    gradlane.barrier("backup: round 1 is closed")
    if rank == 2:
        tick = clock.tick()
        assert (tick.fate, tick.round) == ("dropped_late", 1)
    for name in names:
        value, version = pulled(name, np.zeros(2))
        assert (value.tolist(), version) == ([-5.5, -5.5], 2), "the mean of workers 0 and 1"
    gradlane.barrier("backup: all have read")
    if rank == 2:
        # It is the first one of round 2, and worker 0 the second one. Worker 1 comes too late with a gradient, too.
        for name in names:
            parameters.push(name, np.full(2, 100.0), update="step")
        gradlane.barrier("backup: worker 2 is first")
        assert clock.tick().round == 2
    elif rank == 0:
        gradlane.barrier("backup: worker 2 is first")
        assert clock.tick() == parameters.Tick(2, 2, 0, "accepted")
    else:
        gradlane.barrier("backup: worker 2 is first")
    gradlane.barrier("backup: round 2 is closed")
    if rank == 1:
        late = [parameters.push(name, np.full(2, 1e9), update="step") for name in names]
        assert {version.fate for version in late} == {"dropped_late"} and late[0].factor == 0.0
        assert clock.tick().fate == "dropped_late"
    for name in names:
        assert pulled(name, np.zeros(2))[0].tolist() == [-55.5, -55.5]
    gradlane.barrier("backup: all have read again")


@pytest.mark.workers(3, servers=2)
@pytest.mark.over("shm", "quic")
def test_ssp_holds_who_is_too_far_ahead_and_names_the_slowest():
    rank = gradlane.rank()
    clock = parameters.Clock("ssp", modes.SSP(2))
    parameters.init("ssp", np.zeros(3, np.int64), mode=clock)
    mine = np.zeros(3, np.int64)
    mine[rank] = 1
    if rank == 0:
        for step in range(2):
            parameters.push("ssp", mine)
            assert clock.tick().ahead == step + 1
        parameters.push("ssp", mine)
        with pytest.raises(TimeoutError, match=r'clock "ssp", round 3: waiting for worker 1.*worker 2'):
            clock.tick(timeout=0.2)
        assert clock.round == 2
        tick = clock.tick(wait=False)
        assert (tick.round, tick.ahead) == (3, 3)
    gradlane.barrier("ssp: worker 0 is ahead")
    if rank > 0:
        for _ in range(3):
            parameters.push("ssp", mine)
            clock.tick()
    gradlane.barrier("ssp: all are at 3")
    tick = clock.tick() if rank == 2 else None
    gradlane.barrier("ssp: worker 2 has ticked")
    if rank == 2:
        assert (tick.round, tick.ahead, tick.step) == (4, 1, 10), "the step counts the ticks of all"


@pytest.mark.workers(3, servers=2)
@pytest.mark.over("shm", "quic")
def test_ssp_reads_have_the_changes_that_its_bound_promises():
    """Each worker adds to its own element, once a round: after a tick no element lacks more than the bound."""
    rank, size, bound = gradlane.rank(), gradlane.size(), 1
    clock = parameters.Clock("promise", modes.SSP(bound))
    parameters.init("promise", np.zeros(size, np.int64), mode=clock)
    mine, seen = np.zeros(size, np.int64), np.zeros(size, np.int64)
    mine[rank] = 1
    for step in range(1, 40):
        parameters.push("promise", mine)
        clock.tick()
        parameters.pull("promise", seen)
        assert seen[rank] == step
        assert seen.min() >= step - bound


def test_a_tick_is_repeated_after_a_wait_that_was_too_short():
    clock = parameters.Clock("again", modes.Sync())
    parameters.init("again", np.zeros(2), rule=rules.SGD(lr=1.0), mode=clock)
    parameters.push("again", np.ones(2), update="step")
    if gradlane.rank() == 0 and not alone():
        with pytest.raises(TimeoutError, match="again"):
            clock.tick(timeout=0.1)
    gradlane.barrier("again: worker 0 has given up")
    clock.tick()
    value, version = pulled("again", np.zeros(2))
    assert (value.tolist(), version) == ([-1.0, -1.0], 2)


def test_what_has_no_meaning_in_a_mode_is_refused_with_what_to_do():
    clock = parameters.Clock("refused", modes.Sync())
    parameters.init("refused", np.zeros(2), rule=rules.SGD(lr=1.0), mode=clock)
    for call, why in [
        (lambda: parameters.push_pull("refused", np.ones(2), update="step"), "push the gradient, tick the clock"),
        (lambda: clock.tick(wait=False), "waits until its round is closed"),
        (lambda: parameters.init("r", np.zeros(2), mode=modes.Sync()), "parameters.Clock"),
        (lambda: parameters.init("r", np.zeros(2), mode="sync"), "parameters.Clock"),
        (lambda: parameters.init("r", np.zeros(2, int), mode=modes.Async(1, "scale")), "only floats are scaled"),
        (lambda: parameters.Clock("r", "sync"), "gradlane.modes"),
        (lambda: parameters.Clock("r", modes.Mode()), "gradlane.modes"),
        (lambda: parameters.Clock("", modes.Sync()), "name"),
        (lambda: modes.SSP(-1), "bound=-1"),
        (lambda: modes.SSP(True), "bound=True"),
        (lambda: modes.Backup(0), "k=0"),
        (lambda: modes.Sync("max"), "merge='max'"),
        (lambda: modes.Async(beyond="scale"), "without max_staleness"),
        (lambda: modes.Async(max_staleness=2.0), "max_staleness=2.0"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            call()
    parameters.push("refused", np.ones(2), update="step")
    with pytest.raises(FailedPreconditionError, match="round 1"):
        parameters.push("refused", np.ones(2), update="step")
    clock.tick()
    assert pulled("refused", np.zeros(2))[0].tolist() == [-1.0, -1.0], "the first one counts"
    many = parameters.Clock("too many", modes.Backup(gradlane.size() + 1))
    with pytest.raises(FailedPreconditionError, match=f"and {gradlane.size()} are there"):
        many.tick()


@pytest.mark.workers(3, servers=2)
@pytest.mark.over("shm", "quic")
def test_two_modes_under_one_name_are_a_mismatch_that_names_both():
    mode = modes.SSP(1) if gradlane.rank() == 0 else modes.SSP(2)
    clock = parameters.Clock("two modes", mode)
    if gradlane.rank() == 0:
        clock.tick(wait=False)
    gradlane.barrier("two modes: worker 0 has ticked")
    if gradlane.rank() > 0:
        with pytest.raises(MismatchError, match="ssp:bound=1.*ssp:bound=2"):
            clock.tick(wait=False)
    gradlane.barrier("two modes: clocks")
    mode = modes.Async(max_staleness=gradlane.rank())
    if gradlane.rank() == 0:
        parameters.init("two modes", np.zeros(2), mode=mode)
    gradlane.barrier("two modes: worker 0 has declared it")
    if gradlane.rank() > 0:
        with pytest.raises(MismatchError, match="async:max_staleness=0.*async:max_staleness="):
            parameters.init("two modes", np.zeros(2), mode=mode)
    gradlane.barrier("two modes: parameters")


def test_a_schedule_by_samples_follows_those_of_the_rounds_that_were_closed():
    """Worker n brings 10 + n samples in each round."""
    rank, size = gradlane.rank(), gradlane.size()
    clock = parameters.Clock("samples", modes.Sync())
    schedule = rules.Polynomial(200, warm_up=50, by="samples")
    parameters.init("samples", np.zeros(3), rule=rules.SGD(lr=1.0, schedule=schedule), mode=clock)
    of_round, expected, seen = sum(10 + other for other in range(size)), 0.0, 0
    value = np.zeros(3)
    for _ in range(ROUNDS):
        parameters.push("samples", np.ones(3), update="step")
        clock.tick(samples=10 + rank)
        rate = (seen + 1) / 50 if seen < 50 else 1 - min(1, (seen - 50) / 200)
        expected -= rate
        seen += of_round
        parameters.pull("samples", value)
        assert value.tolist() == pytest.approx([expected] * 3, rel=1e-12)
    with pytest.raises(InvalidArgumentError, match="samples=-1"):
        clock.tick(samples=-1)
    rule = rules.SGD(schedule=rules.Constant(warm_up=5, by="samples"))
    with pytest.raises(InvalidArgumentError, match="has no rounds: by=samples"):
        parameters.init("samples without rounds", value, rule=rule)
    with pytest.raises(InvalidArgumentError, match="no by epochs; use one of steps, samples"):
        parameters.init("samples by epochs", value, rule=rules.SGD(schedule=rules.Constant(by="epochs")), mode=clock)


@pytest.mark.parametrize("mode", [modes.Sync(), modes.SSP(0)])
def test_workers_with_fewer_rounds_leave_and_the_others_go_on(mode):
    clock = parameters.Clock(f"uneven {mode}", mode)
    parameters.init(f"uneven {mode}", np.zeros(2), rule=rules.SGD(lr=1.0), mode=clock)
    rounds = 2 + gradlane.rank()
    for _ in range(rounds):
        parameters.push(f"uneven {mode}", np.ones(2), update="step")
        clock.tick()
    clock.leave()
    with pytest.raises(FailedPreconditionError, match="after it has left it"):
        clock.tick()
    gradlane.barrier(f"uneven {mode}")
    value, version = pulled(f"uneven {mode}", np.zeros(2))
    most = 1 + gradlane.size()
    if modes.has_rounds(mode):
        assert (value.tolist(), version) == ([-float(most)] * 2, 1 + most)
    else:
        assert version == 1 + sum(2 + other for other in range(gradlane.size()))


def test_two_threads_tick_two_rounds():
    clock = parameters.Clock("threads", modes.SSP(100))
    threads = [threading.Thread(target=lambda: [clock.tick() for _ in range(10)]) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert clock.round == 20
    gradlane.barrier("threads: all have ticked")
