"""Models that `torch.compile` has compiled train as they do without it, whatever the way in."""

import shutil
import sysconfig
from pathlib import Path

import gradlane.torch as gl
import pytest
import torch
from process_group import NEEDS_SHARDING_ON_CPU, by_comm_hook, by_sharding
from process_group import group as group  # a fixture of each test here
from torch import nn
from torch._dynamo.utils import counters
from training import TOLERANCE, batches, by_optimizer, by_wrapper, made, mine, sgd, step, trained_alone

# A compilation may take long on a busy machine, and the other worker waits for it.
pytestmark = [
    pytest.mark.over("quic"),
    pytest.mark.workers(2, settings={"step_timeout": "100s"}, env={"TORCHINDUCTOR_COMPILE_THREADS": "1"}),
]

NEEDS_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="inductor needs g++ and the headers of Python",
)

STEPS = 4


class Linear(nn.Linear):
    def forward(self, inputs):
        return nn.functional.linear(inputs, self.weight, self.bias)


class Net(nn.Sequential):
    """A model with functions of its own, because `torch.compile` skips those of PyTorch's modules.

    The loop is interrupted by FSDP2 at each layer, so there only the functions of the layers are compiled.
    """

    def __init__(self):
        super().__init__(nn.Flatten(), Linear(64, 32), nn.ReLU(), Linear(32, 10))

    def forward(self, inputs):
        for layer in self:
            inputs = layer(inputs)
        return inputs


def by_backend(model, optimizer):
    wrapped = nn.parallel.DistributedDataParallel(model)
    return wrapped, optimizer(wrapped.parameters())


@pytest.mark.parametrize(
    "way_in",
    [by_wrapper, by_optimizer, by_comm_hook, by_backend, pytest.param(by_sharding, marks=NEEDS_SHARDING_ON_CPU)],
)
def test_a_compiled_model_trains_as_one_process_without_compilation(way_in):
    check_training(way_in, "aot_eager")


@NEEDS_COMPILER
def test_so_does_one_of_which_inductor_made_c_code():
    check_training(by_wrapper, "inductor")


def check_training(way_in, backend):
    torch._dynamo.reset()
    counters.clear()
    model = made(Net, seed=7 + gl.rank())
    trained, stepping = way_in(model, sgd)
    compiled = torch.compile(trained, backend=backend)
    losses = [step(compiled, stepping, mine(batch)) for batch in batches(STEPS)]
    assert counters["stats"]["calls_captured"] >= 2, "both linear layers were compiled"
    reference, _ = trained_alone(Net, sgd, STEPS)
    assert losses[-1] < losses[0]
    for theirs, ours in zip(reference.parameters(), model.parameters(), strict=True):
        whole = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
        torch.testing.assert_close(whole, theirs, rtol=0, atol=2 * TOLERANCE)
