"""Steps of a training: workers that leave at the end of one, and losses that all hear of behind the same one."""

from __future__ import annotations

import ast
import os
import re
import signal
import sys

import gradlane
import pytest
from gradlane import elastic
from processes import SAY, Running, over, run_all, run_python

RUN = [sys.executable, "-m", "gradlane", "run"]
GOES_ON = ["-o", "on_worker_loss=continue"]

BEGIN = (
    SAY
    + """
import itertools, signal, sys
import numpy
import gradlane
from gradlane import elastic

gradlane.init()
rank = gradlane.rank()
told = []

# So many steps, and more until this worker was told of so many changes: nobody waits for the coordinator meanwhile.
def steps(count, changes=1):
    return itertools.takewhile(lambda step: step < count or len(told) < changes, itertools.count())

@elastic.on_change
def note(before, after):
    [*_, change] = elastic.report().changes
    assert (change.before, change.after) == (before.ranks, after.ranks)
    told.append((change.step, after.ranks))

def reduce(name="gradient"):
    return gradlane.push_pull(numpy.full(100_000, 10.0**rank), name, op=gradlane.Sum)[0]
"""
)

LEAVE_AND_DIE = (
    BEGIN
    + """
state = elastic.State(epoch=3)
for step in elastic.steps(state, steps(20, 1 + ("die" in sys.argv))):
    if (rank, step) == (1, 5):
        os.kill(os.getpid(), signal.SIGTERM)
    if (rank, step) == (0, 12) and "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    assert reduce() in (1111.0, 1101.0, 1100.0)
assert state.epoch == 3 and elastic.report().steps == state.step
if elastic.has_left():
    say(f"rank {rank} left behind step {state.step}")
    try:
        reduce()
    except gradlane.FailedPreconditionError as error:
        sys.exit("left the job behind step" not in str(error))
total = reduce()
gradlane.barrier("end")
say(f"rank {rank}: {state.step} {int(total)} {told}")
"""
)


@pytest.mark.over("local", "shm", "quic")
@pytest.mark.parametrize("servers", [0, 2])
def test_a_worker_leaves_after_sigterm_and_all_others_hear_of_it_behind_the_same_step(transport, servers):
    # The loss of a worker that reduces with others of its machine would end the job; that it leaves does not.
    dies = [] if transport == "local" else ["die"]
    command = [*RUN, "-n", "4", "-s", str(servers), *GOES_ON, "--", sys.executable, "-c", LEAVE_AND_DIE, *dies]
    [ended] = run_all([(command, over(transport))], timeout=60)
    left = re.search(r"rank 1 left behind step (\d+)", ended.output)
    assert ended.code == 0 and left is not None, ended.output
    # The others may have begun further steps before they heard of it, but never different ones.
    step, stay = int(left[1]), (2, 3) if dies else (0, 2, 3)
    assert step >= 6, ended.output
    lines = [re.fullmatch(r"rank (\d): (\d+) (\d+) (.*)", line) for line in ended.output.splitlines()]
    told = {int(line[1]): (int(line[2]), int(line[3]), ast.literal_eval(line[4])) for line in lines if line}
    assert set(told) == set(stay), ended.output
    [(steps, total, changes)] = {(steps, total, tuple(changes)) for steps, total, changes in told.values()}
    assert steps >= 20 and total == sum(10**rank for rank in stay) and changes[0] == (step, (0, 2, 3)), ended.output
    assert [ranks for _, ranks in changes[1:]] == ([(2, 3)] if dies else []), ended.output


@pytest.mark.over("default", "quic")
@pytest.mark.parametrize(
    ("machines", "leavers"), [("aab", [2]), ("aab", [0, 1]), ("aabb", [2, 3]), ("aabb", [1]), ("aabb", [0, 2])]
)
def test_workers_of_machines_with_several_leave(transport, machines, leavers):
    place = f'import os\nos.environ["GRADLANE_MACHINE"] = "{machines}"[int(os.environ["GRADLANE_RANK"])]\n'
    script = (
        place
        + BEGIN
        + f"""
for step in elastic.steps(None, steps(20)):
    if step == 5 and rank in {leavers}:
        os.kill(os.getpid(), signal.SIGTERM)
    total = reduce()
say(f"rank {{rank}}: {{elastic.has_left()}} {{int(total)}}")
"""
    )
    workers = len(machines)
    command = [*RUN, "-n", str(workers), "-s", "2", *GOES_ON, "--", sys.executable, "-c", script]
    [ended] = run_all([(command, over(transport) | {"GRADLANE_LOCAL_REDUCE": "auto"})], timeout=60)
    total = sum(10**rank for rank in range(workers) if rank not in leavers)
    lines = set(ended.output.splitlines())
    assert ended.code == 0, ended.output
    assert {f"rank {rank}: False {total}" for rank in range(workers) if rank not in leavers} <= lines, ended.output
    assert all(any(line.startswith(f"rank {rank}: True") for line in lines) for rank in leavers), ended.output


FOREVER = (
    BEGIN
    + """
for step in elastic.steps(None, range(1_000_000)):
    reduce()
    if step == 3:
        say(f"trains {rank}")
assert elastic.has_left()
say(f"left {elastic.report().steps}")
"""
)


@pytest.mark.over("shm", "quic")
def test_sigterm_for_the_launcher_ends_all_workers_behind_one_step_in_order(transport):
    command = [*RUN, "-n", "3", "-s", "1", *GOES_ON, "--", sys.executable, "-c", FOREVER]
    with Running(command, env=over(transport)) as job:
        for _ in range(3):
            job.line("trains ")
        os.kill(job.pid, signal.SIGTERM)
        ended = job.end(30)
    steps = {line for line in ended.output.splitlines() if line.startswith("left ")}
    assert ended.code == 0 and len(steps) == 1 and ended.output.count("left ") == 3, ended.output


@pytest.mark.over("shm")
def test_a_worker_that_does_not_end_its_step_is_given_up_after_leave_grace(transport):
    script = (
        BEGIN
        + """
import threading
for step in elastic.steps(None, steps(6)):
    reduce()
    if (rank, step) == (1, 2):
        elastic.leave()
        threading.Event().wait()
say(f"rank {rank}: {told}")
"""
    )
    command = [*RUN, "-n", "2", "-s", "1", *GOES_ON, "-o", "leave_grace=1s", "--", sys.executable, "-c", script]
    with Running(command, env=over(transport)) as job:
        # What it has told by then is behind the step of the one that is given up, or the next.
        line = job.line("rank 0: [(")
    assert line.endswith(", (0,))]"), line


@pytest.mark.over("shm", "quic")
def test_between_two_loops_nobody_waits_for_a_boundary(transport):
    script = (
        BEGIN
        + """
for epoch in steps(3):
    for step in elastic.steps(None, range(4)):
        reduce()
        if (rank, epoch, step) == (2, 0, 3):
            # It is in no step any more when the others are asked to stop behind one.
            elastic.leave()
    if elastic.has_left():
        sys.exit()
    # All take part, also the one that is about to leave.
    total = reduce("evaluation")
    assert total == (111.0 if not told else 11.0), (epoch, total, told)
say(f"rank {rank}: {told}")
"""
    )
    command = [*RUN, "-n", "3", "-s", "1", *GOES_ON, "--", sys.executable, "-c", script]
    [ended] = run_all([(command, over(transport))], timeout=60)
    told = {line[8:] for line in ended.output.splitlines() if line.startswith("rank ")}
    assert ended.code == 0 and len(told) == 1 and told.pop().endswith(", (0, 1))]"), ended.output


@pytest.mark.over("shm")
def test_the_handler_of_a_program_is_called_too_and_an_error_of_a_hook_comes_out_of_the_loop(transport):
    script = (
        BEGIN
        + """
signal.signal(signal.SIGTERM, lambda *_: say("saves"))
before = signal.getsignal(signal.SIGTERM)

@elastic.on_change
def fail(before, after):
    raise LookupError(after.index)

try:
    for step in elastic.steps(None, steps(6)):
        reduce()
        if (rank, step) == (0, 2):
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is before
except LookupError as error:
    say(f"rank {rank}: index {error.args[0]}")
"""
    )
    command = [*RUN, "-n", "2", "-s", "1", *GOES_ON, "--", sys.executable, "-c", script]
    [ended] = run_all([(command, over(transport))], timeout=60)
    assert {"saves", "rank 1: index 0"} <= set(ended.output.splitlines()), ended.output


@pytest.mark.over("shm")
@pytest.mark.parametrize(("settings", "reason"), [([], "on_worker_loss"), (GOES_ON, "this process serves")])
def test_a_worker_without_which_the_others_cannot_go_on_is_told_so_and_sigterm_ends_it(transport, settings, reason):
    script = (
        BEGIN
        + """
for step in elastic.steps(None, range(3)):
    reduce()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL or rank > 0
    if rank == 0:
        try:
            elastic.leave()
        except gradlane.FailedPreconditionError as error:
            say(f"refused: {error}")
gradlane.barrier("end")
"""
    )
    workers = [sys.executable, "-c", script]
    if settings:
        # Rank 0 embeds the coordinator and the server.
        commands = [(workers, over(transport) | {"RANK": str(rank), "WORLD_SIZE": "2", "GRADLANE_ON_WORKER_LOSS": "continue"}) for rank in range(2)]
    else:
        commands = [([*RUN, "-n", "2", "-s", "1", "--", *workers], over(transport))]
    ended = run_all(commands, timeout=60)
    assert [process.code for process in ended] == [0] * len(ended) and f"{reason}" in ended[0].output, ended


def test_alone_all_of_it_works():
    script = (
        BEGIN
        + """
seen = []
for step in elastic.steps(elastic.State(), range(5)):
    seen.append(step)
    if step == 2:
        os.kill(os.getpid(), signal.SIGTERM)
assert seen == [0, 1, 2] and elastic.has_left() and elastic.report().changes == ()
gradlane.shutdown()
gradlane.init()
assert not elastic.has_left() and list(elastic.steps(None, "ab")) == ["a", "b"]
"""
    )
    ended = run_python(script)
    assert ended.code == 0, ended.output


def test_sigterm_ends_a_forked_child_as_before():
    script = (
        BEGIN
        + """
for step in elastic.steps(None, range(1)):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"runs")
        while True:  # a handler of Python runs between two calls
            os.sched_yield()
    os.read(reading, 4)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
assert not elastic.has_left()
"""
    )
    ended = run_python(script)
    assert ended.code == 0, ended.output


def test_a_second_sigterm_ends_the_process():
    script = (
        BEGIN
        + """
for step in elastic.steps(None, range(5)):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
"""
    )
    assert run_python(script).code == -signal.SIGTERM


def test_without_a_job_there_are_no_steps():
    with pytest.raises(gradlane.NotInitializedError):
        next(elastic.steps(None, range(3)))
    with pytest.raises(gradlane.NotInitializedError):
        elastic.leave()
    assert not elastic.has_left()
    with pytest.raises(gradlane.InvalidArgumentError, match="counts its steps itself"):
        elastic.State(step=3)


class Sampler:
    """What counts of PyTorch's `DistributedSampler`."""

    def __init__(self, length: int, drop_last: bool) -> None:
        self.dataset, self.drop_last = range(length), drop_last
        self.num_replicas, self.rank, self.num_samples, self.total_size = 4, 3, 0, 0


@pytest.mark.parametrize(("drop_last", "samples"), [(False, 4), (True, 3)])
def test_a_sampler_has_the_share_of_its_worker_among_those_that_are_left(drop_last, samples):
    state = elastic.State(sampler=Sampler(10, drop_last))
    elastic._share_anew(state, elastic.World(3, (0, 2, 3)))
    sampler = state.sampler
    assert (sampler.num_replicas, sampler.rank) == (3, 2)
    assert (sampler.num_samples, sampler.total_size) == (samples, 3 * samples)
