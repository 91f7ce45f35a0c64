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
