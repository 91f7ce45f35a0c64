"""Workers that come to an elastic job while it trains: what they get, and that the others lose nothing.

No worker can say in which step another one comes. So a training goes on until a file exists, of which all workers hear in the
same sum, and what it has to give follows from the sums that each worker had.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import sys

import gradlane
import pytest
from pools import GRADLANE, Pool
from processes import SAY, over, run_all, run_python

TRAINING = (
    SAY
    + """
import signal, sys
from pathlib import Path
import numpy
import gradlane
from gradlane import elastic

stop = Path(sys.argv[1])
gradlane.init()
has_come = elastic._session.is_newcomer()
state = elastic.State(weights=numpy.zeros(1000), runs=[])
own = []  # the steps that this worker has done
told = []

@elastic.on_change
def note(before, after):
    [*_, change] = elastic.report().changes
    assert (change.before, change.after) == (before.ranks, after.ranks)
    told.append((change.step, after.size))
    say(f"now {after.size} at {change.step}")

def until_stopped():
    while not stopped:
        yield state.step

def reduce():
    contribution = numpy.full(1001, 10.0 ** gradlane.rank())
    contribution[1000] = stop.exists()
    total = gradlane.push_pull(contribution, "gradient", op=gradlane.Sum)
    return total[:1000], bool(total[1000])

stopped = False
"""
)

STEP = """
    gradient, stopped = reduce()
    assert len(set(gradient)) == 1
    state.weights += gradient
    if state.runs and state.runs[-1][0] == gradient[0]:
        state.runs[-1][1] += 1
    else:
        state.runs.append([float(gradient[0]), 1])
    own.append(step)
    if len(own) == 3:
        say(f"trains {gradlane.rank()} {gradlane.size()}")
"""

END = """
# No step twice, and none left out.
assert own == list(range(own[0], state.step)) and (own[0] == 0) != has_come
assert elastic.report().steps == state.step == sum(count for _, count in state.runs)
everyones = gradlane.allgather((state.weights.tobytes(), state.runs), "weights")
assert all(one == everyones[0] for one in everyones)
assert len(set(state.weights)) == 1
say(f"end {gradlane.rank()} of {elastic.world().size}: {has_come} {state.weights[0]} {state.runs} {told}")
"""


def check_ends(output, came, size):
    """All workers ended with the weights that the sums of their steps make.

    Returns:
        These sums, each with how often it came, and what hooks of the workers that were there from the start were told.
    """
    ends = [END_LINE.fullmatch(line) for line in output.splitlines() if line.startswith("end ")]
    assert all(ends) and [end["came"] for end in ends].count("True") == came, output
    assert sorted(end["who"] for end in ends) == [f"{rank} of {size}" for rank in range(size)], output
    [(weights, runs)] = {(float(end["weights"]), end["runs"]) for end in ends}
    runs = ast.literal_eval(runs)
    assert weights == sum(total * count for total, count in runs), output
    [told] = {end["told"] for end in ends if end["came"] == "False"}
    return runs, ast.literal_eval(told)


END_LINE = re.compile(r"end (?P<who>\d of \d): (?P<came>\w+) (?P<weights>\S+) (?P<runs>\[\[.*?\]\]) (?P<told>\[.*\])")


@pytest.mark.over("default", "shm", "quic")
def test_a_worker_that_is_killed_is_started_again_and_comes_back(transport, tmp_path):
    marker, stop = tmp_path / "died", tmp_path / "stop"
    script = TRAINING + f"""
marker = Path({str(marker)!r})
for step in elastic.steps(state, until_stopped()):
    if (gradlane.rank(), step) == (1, 5) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if told and told[-1][1] == 3 and len(own) > told[-1][0] + 5:
        stop.touch()
{STEP}
{END}
"""
    command = [*GRADLANE, "run", "-n", "3", "-s", "1", "--elastic", "2:3", "--restarts", "3", "--"]
    [ended] = run_all([([*command, sys.executable, "-c", script, str(stop)], over(transport))], timeout=60)
    assert ended.code == 0 and "killed by signal 9 (SIGKILL)" in ended.output, ended.output
    # Steps 0 to 4 of all three, some of the two that were left, and then of three again.
    runs, told = check_ends(ended.output, came=1, size=3)
    assert runs[0] == [111.0, 5] and [total for total, _ in runs] == [111.0, 101.0, 111.0], ended.output
    [(lost_at, left), (came_at, size)] = told
    assert (left, size) == (2, 3) and 5 < lost_at <= came_at == 5 + runs[1][1], ended.output


GOES_ON = TRAINING + f"for step in elastic.steps(state, until_stopped()):{STEP}{END}"


@pytest.mark.over("shm", "quic")
def test_two_workers_become_four(transport, tmp_path):
    with Pool(tmp_path, transport, workers=2, elastic="2:4") as pool:
        workers = [pool.worker(GOES_ON) for _ in range(2)]
        for worker in workers:
            worker.line("trains ")
        workers += [pool.newcomer(GOES_ON) for _ in range(2)]
        for worker in workers[2:]:
            worker.line("trains ")
        # Both have come, together or one after the other.
        while not workers[0].line("now ").startswith("now 4 "):
            pass
        pool.stop.touch()
        ended = [worker.end(30) for worker in workers]
    output = "".join(worker.output for worker in ended)
    assert [worker.code for worker in ended] == [0] * 4, output
    runs, _ = check_ends(output, came=2, size=4)
    assert [total for total, _ in runs] in ([11.0, 1111.0], [11.0, 111.0, 1111.0]), output


LEAVES = TRAINING + f"for step in elastic.steps(state, until_stopped()):{STEP}\nassert elastic.has_left()\nsay('left')"


@pytest.mark.over("shm", "quic")
def test_four_workers_become_six_and_then_three(transport, tmp_path):
    with Pool(tmp_path, transport, workers=4, elastic="2:6", dead_timeout="2s") as pool:
        workers = [pool.worker(script) for script in (GOES_ON, GOES_ON, GOES_ON, LEAVES)]
        for worker in workers:
            worker.line("trains ")
        workers += [pool.newcomer(script) for script in (GOES_ON, LEAVES)]
        for worker in workers[4:]:
            worker.line("trains ")
        while not workers[0].line("now ").startswith("now 6 "):
            pass
        # Two leave behind a step, and one is killed.
        for leaver in (workers[3], workers[5]):
            os.kill(leaver.pid, signal.SIGTERM)
        workers[2].interrupt(signal.SIGKILL)
        while not workers[0].line("now ").startswith("now 3 "):
            pass
        pool.stop.touch()
        ended = [worker.end(30) for worker in workers]
    output = "".join(worker.output for worker in ended)
    assert [worker.code for worker in ended] == [0, 0, -signal.SIGKILL, 0, 0, 0] and output.count("left\n") == 2, output
    ends = [END_LINE.fullmatch(line) for line in output.splitlines() if line.startswith("end ")]
    [(weights, runs)] = {(float(end["weights"]), end["runs"]) for end in ends if end is not None}
    runs = ast.literal_eval(runs)
    assert len(ends) == 3 and weights == sum(total * count for total, count in runs), output
    # Of four, of six, and in the end of three, whose ranks have gaps.
    totals = [total for total, _ in runs]
    assert totals[0] == 1111.0 and 111111.0 in totals and str(totals[-1]).count("1") == 3, output


CYCLES = int(os.environ.get("ELASTIC_CYCLES", "4"))
"""How often a worker is killed and another one comes."""


@pytest.mark.over("shm", "quic")
def test_workers_are_killed_and_others_come_again_and_again(transport, tmp_path):
    # Over QUIC, nobody sees the end of a process.
    with Pool(tmp_path, transport, workers=3, elastic="2:3", dead_timeout="2s") as pool:
        workers = [pool.worker(GOES_ON) for _ in range(3)]
        for worker in workers:
            worker.line("trains ")
        for cycle in range(CYCLES):
            workers.pop(cycle % 3).interrupt(signal.SIGKILL)
            newcomer = pool.newcomer(GOES_ON)
            newcomer.line("trains ")
            workers.append(newcomer)
        pool.stop.touch()
        ended = [worker.end(30) for worker in workers]
    output = "".join(worker.output for worker in ended)
    assert [worker.code for worker in ended] == [0] * 3, output
    ends = [END_LINE.fullmatch(line) for line in output.splitlines() if line.startswith("end ")]
    [(weights, runs)] = {(float(end["weights"]), end["runs"]) for end in ends if end is not None}
    assert len(ends) == 3 and weights == sum(total * count for total, count in ast.literal_eval(runs)), output


WITH_ERROR = """
try:
    for step in elastic.steps({state}, until_stopped()):
        reduce()
except gradlane.Error as error:
    say(f"refused {{type(error).__name__}} {{gradlane.is_initialized()}} {{error}}")
"""


@pytest.mark.over("quic")
def test_newcomers_that_do_not_fit_are_told_why_and_the_others_go_on(transport, tmp_path):
    unfit = {
        "elastic.State(weights=numpy.zeros(999), runs=[])": ("MismatchError", "'weights'"),
        "elastic.State(weights=numpy.zeros(1000), epochs=[])": ("MismatchError", "epochs, step, weights"),
        "None": ("FailedPreconditionError", "gave gradlane.elastic.steps no state"),
    }
    with Pool(tmp_path, transport, workers=2, elastic="2:3") as pool:
        workers = [pool.worker(GOES_ON) for _ in range(2)]
        for worker in workers:
            worker.line("trains ")
        for state, (kind, text) in unfit.items():
            newcomer = pool.newcomer(TRAINING + WITH_ERROR.format(state=state))
            line = newcomer.line("refused ")
            assert line.startswith(f"refused {kind} False ") and text in line, line
            assert newcomer.end(30).code == 0, newcomer.output
        workers.append(pool.newcomer(GOES_ON))
        workers[2].line("trains ")
        # The job has as many workers as it may have.
        command = TRAINING.replace("gradlane.init()", "try:\n    gradlane.init(timeout=5.0)\nexcept gradlane.Error as error:\n    sys.exit(f'refused {error}')")
        late = pool.newcomer(command).end(30)
        assert late.code == 1 and "refused " in late.output, late.output
        pool.stop.touch()
        ended = [worker.end(30) for worker in workers]
    output = "".join(worker.output for worker in ended)
    assert [worker.code for worker in ended] == [0] * 3, output
    check_ends(output, came=1, size=3)


@pytest.mark.over("quic")
def test_a_collective_before_the_first_step_of_a_newcomer_is_refused_and_broadcasts_do_nothing(transport, tmp_path):
    early = TRAINING + f"""
assert gradlane.broadcast_object("own", 0) == "own"
kept = numpy.ones(3)
assert gradlane.broadcast(kept, 0, "kept") is kept and list(kept) == [1.0, 1.0, 1.0]
for call in (reduce, gradlane.barrier, lambda: gradlane.allgather(1)):
    try:
        call()
    except gradlane.FailedPreconditionError as error:
        assert "its first collective is that of gradlane.elastic.steps" in str(error), error
    else:
        sys.exit(f"{{call}} was not refused")
for step in elastic.steps(state, until_stopped()):{STEP}{END}
"""
    with Pool(tmp_path, transport, workers=1, elastic="1:2") as pool:
        workers = [pool.worker(GOES_ON)]
        workers[0].line("trains ")
        workers.append(pool.newcomer(early))
        workers[1].line("trains ")
        pool.stop.touch()
        ended = [worker.end(30) for worker in workers]
    output = "".join(worker.output for worker in ended)
    assert [worker.code for worker in ended] == [0, 0], output
    check_ends(output, came=1, size=2)


@pytest.mark.over("shm")
def test_a_worker_leaves_after_sigterm_also_when_the_job_has_formed_again(transport, tmp_path):
    with Pool(tmp_path, transport, workers=2, elastic="1:3") as pool:
        stays, goes = pool.worker(GOES_ON), pool.worker(LEAVES)
        for worker in (stays, goes):
            worker.line("trains ")
        comes = pool.newcomer(GOES_ON)
        comes.line("trains ")
        stays.line("now 3 ")
        os.kill(goes.pid, signal.SIGTERM)
        goes.line("left")
        stays.line("now 2 ")
        pool.stop.touch()
        ended = [worker.end(30) for worker in (stays, comes, goes)]
    assert [worker.code for worker in ended] == [0] * 3, [worker.output for worker in ended]


MODEL = (
    SAY
    + """
import hashlib, signal, sys
from pathlib import Path
import gradlane.torch as gl
import torch
from torch import nn

wrapper, stop, marker = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
gl.init()
has_come = gl.elastic._session.is_newcomer()
torch.manual_seed(7 * has_come)  # a newcomer begins with other weights
model = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 1))
optimizer, wrapped = torch.optim.Adam(model.parameters(), lr=1e-2), model
if wrapper == "model":
    wrapped = gl.DistributedDataParallel(model)
else:
    gl.broadcast_parameters(model.state_dict())
    gl.broadcast_optimizer_state(optimizer)
if wrapper == "optimizer":
    optimizer = gl.DistributedOptimizer(optimizer, model.named_parameters())
if wrapper == "feedback":
    codec = gl.Compression.onebit(feedback=True, compress_all=True)
    optimizer = gl.DistributedOptimizer(optimizer, model.named_parameters(), compression=codec)
if wrapper == "barrier":
    optimizer = gl.CrossBarrier(model, optimizer)
sampler = torch.utils.data.DistributedSampler(range(100), gl.size(), gl.rank())
state = gl.elastic.State(model=model, optimizer=optimizer, sampler=sampler)
told = []
gl.elastic.on_change(lambda before, after: told.append((before.size, after.size)))

@gl.elastic.on_change
def follow(before, after):
    optimizer.param_groups[0]["lr"] = 1e-2 * after.size

def digest():
    of = hashlib.sha256()
    moments = optimizer.state_dict()["state"]
    for tensor in [*model.parameters(), *(moments[at][name] for at in sorted(moments) for name in sorted(moments[at]))]:
        of.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return of.hexdigest()

def until_stopped():
    while not stopped:
        yield state.step

stopped, seen, steps = False, 0, 0
for step in gl.elastic.steps(state, until_stopped()):
    if (gl.rank(), step) == (1, 4) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    arrived = (has_come and steps == 0) or (len(told) > seen and told[-1][1] == 3)
    seen = len(told)
    if arrived:  # before the newcomer has made a step
        digests = gl.allgather_object(
            (digest(), sampler.epoch, sampler.num_replicas, optimizer.param_groups[0]["lr"]), "arrival"
        )
        assert len(digests) == 3 and len(set(digests)) == 1 and digests[0][2:] == (3, 1e-2 * 3), digests
        ends = step + 5
    if told and told[-1][1] == 3 and step == ends:
        stop.touch()
    sampler.set_epoch(step)
    inputs = torch.randn(16, 30, generator=torch.Generator().manual_seed(100 * step + gl.rank()))
    optimizer.zero_grad()
    wrapped(inputs).square().mean().backward()
    optimizer.step()
    stopped = gl.push_pull(torch.tensor([float(stop.exists())]), "stop").item() > 0.0
    steps += 1
if wrapper == "barrier":
    optimizer.synchronize()
assert len(set(gl.allgather_object((digest(), step), "end"))) == 1
assert steps == step + 1 or has_come
say(f"end {gl.rank()} {has_come} {told}")
"""
)


@pytest.mark.torch
@pytest.mark.over("quic")
@pytest.mark.parametrize("wrapper", ["model", "optimizer", "barrier", "feedback"])
def test_a_newcomer_has_the_bits_of_the_others_and_their_wrappers_go_on(transport, wrapper, tmp_path):
    pytest.importorskip("torch")
    command = [*GRADLANE, "run", "-n", "3", "-s", "1", "--elastic", "2:3", "--restarts", "1", "--", sys.executable, "-c", MODEL]
    arguments = [wrapper, str(tmp_path / "stop"), str(tmp_path / "died")]
    [ended] = run_all([([*command, *arguments], over(transport) | {"OMP_NUM_THREADS": "1"})], timeout=90)
    lines = sorted(line for line in ended.output.splitlines() if line.startswith("end "))
    assert ended.code == 0 and len(lines) == 3, ended.output
    assert [line[:6] for line in lines] == ["end 0 ", "end 1 ", "end 2 "] and lines[2].startswith("end 2 True"), ended.output


@pytest.mark.torch
def test_a_process_group_from_before_a_formation_is_refused():
    pytest.importorskip("torch")
    script = """
import gradlane, torch
import gradlane.torch
from gradlane import _session
from torch import distributed

gradlane.init()
distributed.init_process_group("gradlane", store=gradlane.torch.Store(), rank=0, world_size=1)
distributed.all_reduce(torch.ones(3))
_session._generation += 1  # as `join_again` does
for call in (lambda: distributed.all_reduce(torch.ones(3)), distributed.barrier):
    try:
        call()
    except gradlane.FailedPreconditionError as error:
        assert "formed again" in str(error), error
    else:
        raise AssertionError("not refused")
"""
    ended = run_python(script, env={"OMP_NUM_THREADS": "1"})
    assert ended.code == 0, ended.output


def test_the_two_ways_to_say_how_many_workers_there_may_be_may_not_contradict_each_other():
    with pytest.raises(gradlane.InvalidArgumentError, match="contradicts config"):
        gradlane.init(elastic="2:3", config={"elastic": "2:4"})
    assert not gradlane.is_initialized()
