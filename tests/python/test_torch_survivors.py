"""Trainings that lose a worker in the middle of a backward pass, and one that leaves, and go on without them."""

from __future__ import annotations

import sys

import pytest
from processes import SAY, over, run_all

pytestmark = pytest.mark.torch

TRAINING = (
    SAY
    + """
import itertools, signal, sys
import gradlane.torch as gl
import torch
from torch import nn

codec, victim, leaver = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
gl.init()
rank = gl.rank()
torch.manual_seed(0)
# Some gradients are of several parts, and some share one. Buffers come from one worker before each step.
model = nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)), nn.BatchNorm1d(300), nn.Linear(300, 1))
options = {} if codec == "none" else {"compression": getattr(gl.Compression, codec)}
wrapped = gl.DistributedDataParallel(model, **options)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

def die(_):
    os.kill(os.getpid(), signal.SIGKILL)

told = []
gl.elastic.on_change(lambda before, after: told.append(after.ranks))

# Nobody waits for the coordinator between two steps, so that all may have made more of them before they hear of a change.
for step in gl.elastic.steps(None, itertools.takewhile(lambda step: step < 12 or len(told) < 2, itertools.count())):
    if (rank, step) == (leaver, 3):
        os.kill(os.getpid(), signal.SIGTERM)
    if (rank, step) == (victim, 5):
        # Gradients of later layers are on their way.
        model[3].weight.register_hook(die)
    inputs = torch.randn(16, 300, generator=torch.Generator().manual_seed(100 * step + rank))
    optimizer.zero_grad()
    wrapped(inputs).square().mean().backward()
    optimizer.step()
if gl.elastic.has_left():
    sys.exit()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
assert weights.isfinite().all() and len(told) == 2
gl.shutdown()
say(f"steps {step + 1}, weights {weights.double().sum().item().hex()} {weights.double().norm().item().hex()}")
"""
)


@pytest.mark.over("shm", "quic")
def test_the_others_lose_no_step_and_agree(transport):
    """One worker leaves behind its fourth step, and one is killed in the sixth."""
    codec, victim, leaver = {"shm": ("none", 1, 0), "quic": ("int8", 0, 3)}[transport]
    command = [sys.executable, "-m", "gradlane", "run", "-n", "4", "-s", "2", "-o", "on_worker_loss=continue"]
    script = [sys.executable, "-c", TRAINING, codec, str(victim), str(leaver)]
    [ended] = run_all([([*command, "--", *script], over(transport) | {"OMP_NUM_THREADS": "1"})], timeout=120)
    assert ended.code == 0 and f"worker {victim} killed by signal 9 (SIGKILL)" in ended.output, ended.output
    told = [line for line in ended.output.splitlines() if line.startswith("steps ")]
    assert len(told) == 2 and len(set(told)) == 1, ended.output


LOCALLY = (
    SAY
    + """
import signal
import gradlane.torch as gl
import torch

gl.init()
me = gl.rank()
weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
rules = gl.exchanges.Average(), gl.exchanges.Average(synchronous=False)
together, alone = (
    gl.LocalSGD([("w", weight)], optimizer, exchange=rule, every=1)
    for weight, optimizer, rule in zip(weights, optimizers, rules)
)

for round in range(2):
    for weight, optimizer in zip(weights, optimizers):
        # Each worker goes on by its rank and one more.
        weight.grad = torch.full((3,), -(me + 1.0))
        optimizer.step()
    if (me, round) == (2, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    together.step()
    while round == 1 and gl.size() == 3:
        with alone.server_weights():  # waits for no worker
            pass
    for turn in range(gl.size()):
        if turn == me:
            alone.step()
        gl.barrier(f"{round} {turn}")
gl.shutdown()
say(f"worker {me} has {weights[0][0].item()} and {weights[1][0].item()}")
"""
)


@pytest.mark.over("shm", "quic")
def test_models_of_local_sgd_are_averaged_over_those_that_are_left(transport):
    command = [sys.executable, "-m", "gradlane", "run", "-n", "3", "-s", "2", "-o", "on_worker_loss=continue"]
    env = over(transport) | {"OMP_NUM_THREADS": "1"}
    [ended] = run_all([([*command, "--", sys.executable, "-c", LOCALLY], env)], timeout=90)
    told = sorted(line for line in ended.output.splitlines() if line.startswith("worker ") and " has " in line)
    # A mean of 1, 2 and 3, then of 1 and 2. Alone, each adds a third of its progress, and then a half.
    assert ended.code == 0 and told == ["worker 0 has 3.5 and 2.5", "worker 1 has 3.5 and 3.5"], ended.output
