"""Jobs that lose servers and go on: no sum is lost, and no worker sees another one than the others."""

from __future__ import annotations

import signal
import sys

import pytest
from processes import SAY, over, run_all

RUN = [sys.executable, "-m", "gradlane", "run"]
OUTLIVES = ["-o", "on_server_loss=continue"]

BEGIN = (
    SAY
    + """
import itertools, pathlib, signal, sys
import numpy
import gradlane

# The servers that run beside this worker, in the order of their start.
def servers():
    launcher = os.getppid()
    tasks = pathlib.Path(f"/proc/{launcher}/task").glob("*/children")
    children = sorted(int(child) for task in tasks for child in task.read_text().split())
    command = lambda child: pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\\0")
    return [child for child in children if b"server" in command(child)]

gradlane.init()
rank, size = gradlane.rank(), gradlane.size()
everybody = sum(10.0**rank for rank in range(size))
"""
)

KINDS = """
kept = numpy.zeros(300_000)

# What is reduced in a step: of several parts and of one, in place and not, encoded, of some workers, to one and from one.
def reduce(step):
    kept[:] = 10.0**rank
    waits = [gradlane.push_pull_async(kept, "in place", op=gradlane.Sum, out=kept)]
    waits += [gradlane.push_pull_async(numpy.full(300_000, 10.0**rank), "beside", op=gradlane.Sum)]
    waits += [gradlane.push_pull_async(numpy.full(5, 10.0**rank), f"once {step}", op=gradlane.Sum)]
    for codec in (gradlane.Compression.bf16, gradlane.Compression.int8()):
        contribution = numpy.full((300, 300), 2.0**rank, "float32")
        waits += [gradlane.push_pull_async(contribution, f"as {codec}", op=gradlane.Sum, compression=codec)]
    sums = [wait.wait() for wait in waits]
    for sum_, expected in zip(sums, [everybody] * 3 + [2.0**size - 1] * 2, strict=True):
        assert (abs(sum_ - expected) <= expected / 100).all(), (step, expected, sum_)
    assert (sums[0] == everybody).all() and (sums[1] == everybody).all() and (sums[2] == everybody).all(), step
    assert list(gradlane.allgather(rank, f"all {step}")) == list(range(size))
    value = numpy.full(1000, step if rank == 1 else -1)
    assert (gradlane.broadcast(value, 1, "from one") == step).all()

for step in range(STEPS):
    if rank == 0 and step in KILLS:
        os.kill(servers()[0], KILLS[step])
    reduce(step)
gradlane.barrier("end")
say(f"rank {rank}: all steps")
"""


def steps(count: int, kills: dict[int, signal.Signals]) -> str:
    """A training in which the first server that is left gets a signal in these steps."""
    numbers = {step: int(number) for step, number in kills.items()}
    return BEGIN + f"STEPS, KILLS = {count}, {numbers}\n" + KINDS


@pytest.mark.over("shm", "quic")
def test_two_of_three_servers_are_killed_and_no_sum_is_lost(transport):
    script = steps(20, {5: signal.SIGKILL, 12: signal.SIGKILL})
    command = [*RUN, "-n", "3", "-s", "3", *OUTLIVES, "--", sys.executable, "-c", script]
    [ended] = run_all([(command, over(transport))], timeout=90)
    done = {line for line in ended.output.splitlines() if line.startswith("rank ")}
    assert ended.code == 0 and done == {f"rank {rank}: all steps" for rank in range(3)}, ended.output
    assert ended.output.count("killed by signal 9 (SIGKILL)") == 2, ended.output


@pytest.mark.over("quic")
def test_a_server_that_is_asked_to_stop_ends_in_order_and_no_sum_is_lost(transport):
    script = steps(12, {4: signal.SIGTERM})
    command = [*RUN, "-n", "2", "-s", "2", *OUTLIVES, "--", sys.executable, "-c", script]
    [ended] = run_all([(command, over(transport))], timeout=90)
    done = {line for line in ended.output.splitlines() if line.startswith("rank ")}
    assert ended.code == 0 and done == {f"rank {rank}: all steps" for rank in range(2)}, ended.output
    assert 'the job goes on without="server ' in ended.output and "killed by" not in ended.output, ended.output


REPLACED = (
    BEGIN
    + """
from gradlane import elastic

kept = numpy.zeros(300_000)
state = elastic.State(killed=0)
formed = []
elastic.on_change(lambda before, after: formed.append((before.ranks, after.ranks)))

def until_replaced():
    while True:
        agreed = gradlane.push_pull(numpy.array([float(len(formed) < KILLS)]), "goes on", op=gradlane.Sum)
        if not agreed[0]:
            return
        yield state.step

for step in elastic.steps(state, until_replaced()):
    kept[:] = 10.0**rank
    if rank == 0 and state.killed == len(formed) < KILLS:
        # The second one is the one that came for the first.
        os.kill(servers()[-1], signal.SIGKILL)
        state.killed += 1
    total = gradlane.push_pull(kept, "in place", op=gradlane.Sum, out=kept)
    beside = gradlane.push_pull(numpy.full(5, 10.0**rank), "beside", op=gradlane.Sum)
    assert (total == everybody).all() and (beside == everybody).all(), step
assert formed == [(tuple(range(size)),) * 2] * KILLS, formed
assert elastic.report().steps == state.step
gradlane.shutdown()
say(f"rank {rank}: all steps")
"""
)


@pytest.mark.over("shm", "quic")
def test_a_server_that_is_killed_is_started_again_and_the_job_forms_again_with_it(transport):
    script = REPLACED.replace("KILLS", "2")
    elastic = [*RUN, "-n", "2", "-s", "2", "--elastic", "2:2", *OUTLIVES, "--", sys.executable, "-c", script]
    [ended] = run_all([(elastic, over(transport))], timeout=120)
    done = {line for line in ended.output.splitlines() if line.startswith("rank ")}
    assert ended.code == 0 and done == {f"rank {rank}: all steps" for rank in range(2)}, ended.output
    assert ended.output.count("killed by signal 9 (SIGKILL); it is started again") == 2, ended.output


END_OF_JOB = """
try:
    for step in itertools.count():
        if rank == 0 and step == 5:
            for server in servers():
                os.kill(server, signal.SIGKILL)
        gradlane.push_pull(numpy.ones(1000), "gradient")
except gradlane.Error as error:
    say(f"rank {rank}: {type(error).__name__} {error}")
    sys.exit(3)
"""


@pytest.mark.over("shm")
def test_without_a_server_the_job_ends_and_says_which_one_was_lost(transport):
    command = [*RUN, "-n", "2", "-s", "2", *OUTLIVES, "--", sys.executable, "-c", BEGIN + END_OF_JOB]
    [ended] = run_all([(command, over(transport))], timeout=60)
    told = [line for line in ended.output.splitlines() if line.startswith("rank ")]
    assert ended.code != 0 and len(told) == 2, ended.output
    assert all("PeerLostError lost server" in line for line in told), ended.output


@pytest.mark.over("shm")
def test_a_job_that_keeps_parameters_on_its_servers_ends_with_one_of_them(transport):
    script = BEGIN + 'gradlane.parameters.init("weights", numpy.ones(10))\ngradlane.barrier("kept")\n' + END_OF_JOB.replace("servers():", "servers()[:1]:")
    command = [*RUN, "-n", "2", "-s", "2", *OUTLIVES, "--", sys.executable, "-c", script]
    [ended] = run_all([(command, over(transport))], timeout=60)
    told = [line for line in ended.output.splitlines() if line.startswith("rank ")]
    assert ended.code != 0 and len(told) == 2 and all("PeerLostError" in line for line in told), ended.output
    assert "the parameters of a server are lost with it" in ended.output, ended.output


TRAINING = (
    BEGIN
    + """
import hashlib
import gradlane.torch as gl
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(200, 200) for _ in range(4)), nn.BatchNorm1d(200), nn.Linear(200, 1))
wrapped = gl.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for step in range(14):
    if rank == 0 and step in (4, 9) and len(sys.argv) > 1:
        victim = servers()[0]
        # Gradients of later layers are on their way.
        handle = model[2].weight.register_hook(lambda _: os.kill(victim, signal.SIGKILL))
    inputs = torch.randn(16, 200, generator=torch.Generator().manual_seed(100 * step + rank))
    optimizer.zero_grad()
    wrapped(inputs).square().mean().backward()
    optimizer.step()
    if rank == 0 and step in (4, 9) and len(sys.argv) > 1:
        handle.remove()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
gl.shutdown()
say(f"weights {digest}")
"""
)


@pytest.mark.torch
@pytest.mark.over("shm", "quic")
def test_a_training_ends_with_the_same_bits_whether_servers_are_killed_or_not(transport):
    pytest.importorskip("torch")
    environment = over(transport) | {"OMP_NUM_THREADS": "1", "GRADLANE_DETERMINISTIC": "true"}
    command = [*RUN, "-n", "2", "-s", "3", *OUTLIVES, "--", sys.executable, "-c", TRAINING]
    calm, killed = run_all([(command, environment), ([*command, "kill"], environment)], timeout=120)
    weights = [[line for line in ended.output.splitlines() if line.startswith("weights ")] for ended in (calm, killed)]
    assert (calm.code, killed.code) == (0, 0), calm.output + killed.output
    assert killed.output.count("killed by signal 9 (SIGKILL)") == 2, killed.output
    assert len(weights[0]) == len(weights[1]) == 2 and len(set(weights[0] + weights[1])) == 1, weights
