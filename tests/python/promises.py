"""The promise of every door of PyTorch: what a user does around gradients changes nothing, or an error names a parameter.

A *deed* is a generator: it gets a model, changes it, yields, gets a `Run` when the model was wrapped, and trains. So the
same deed runs in a single process, over whole batches, and on several workers through a *door*, over their shares.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradlane.compat.byteps.torch as bps
import gradlane.compat.byteps.torch.parallel as bps_parallel
import gradlane.compat.horovod.torch as hvd
import gradlane.torch as gl
import torch
from gloo import gloo
from torch import nn

TOLERANCE = 1e-6
"""Absolute, on weights below 1 in float32: the sum over workers is taken in another order."""

EQUAL, REFUSED = "equal", "refused"
BY_PYTORCH = "refused by PyTorch"
"""Without a name: PyTorch's own wrapper does so with every hook, and without one."""
NAMED = re.compile(r"\b(\d\.(weight|bias)|extra)\b|\b[01]\.\d \(group\.position\)|Parameter ind")
"""A parameter of the model, by its name or by its place in the optimizer. PyTorch's own wrapper gives indices."""


def model_of_four_parameters() -> nn.Sequential:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)


@dataclass
class Run:
    """A model that is trained by one process or several."""

    model: nn.Module
    """The user's own module."""
    call: Callable[[torch.Tensor], torch.Tensor]
    """The forward pass, of the wrapper if there is one."""
    optimizer: torch.optim.Optimizer
    share: Callable[[torch.Tensor], torch.Tensor]
    mean: Callable[[torch.Tensor], torch.Tensor]
    """Of a number of each worker, for deeds that decide by it."""
    wrapped: Any = None
    """What has `register_post_average_hook`, if anything."""
    batch: int = 0

    def inputs(self) -> torch.Tensor:
        self.batch += 1
        generator = torch.Generator().manual_seed(self.batch)
        return self.share(torch.randn(8, 4, generator=generator))

    def loss(self) -> torch.Tensor:
        return self.call(self.inputs()).square().mean()

    def step(self, between: Callable[[], Any] = lambda: None) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        between()
        self.optimizer.step()


def alone(model, make=plain_sgd):
    return Run(model, model, make(model.parameters()), lambda whole: whole, lambda number: number)


def several(model, call, optimizer, wrapped=None):
    def mean(number):
        return gl.push_pull(number.detach(), f"mean of a deed {tuple(number.shape)}")

    return Run(model, call, optimizer, lambda whole: whole[gl.rank() :: gl.size()], mean, wrapped)


def by_wrapper(model, make=plain_sgd):
    wrapped = gl.DistributedDataParallel(model)
    return several(model, wrapped, make(wrapped.parameters()), wrapped)


def by_optimizer(model, make=plain_sgd):
    optimizer = gl.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    return several(model, model, optimizer, optimizer)


def by_barrier(model, make=plain_sgd):
    return several(model, model, gl.CrossBarrier(model, make(model.parameters())))


def by_comm_hook(model, make=plain_sgd):
    ddp = nn.parallel.DistributedDataParallel(model, process_group=gloo())
    ddp.register_comm_hook(gl.State(model), gl.ddp_comm_hook)
    return several(model, ddp, make(ddp.parameters()))


def by_byteps_wrapper(model, make=plain_sgd):
    wrapped = bps_parallel.DistributedDataParallel(model)
    return several(model, wrapped, make(wrapped.parameters()), wrapped)


def by_byteps_optimizer(model, make=plain_sgd):
    optimizer = bps.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    return several(model, model, optimizer, optimizer)


def by_horovod_optimizer(model, make=plain_sgd):
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    return several(model, model, optimizer, optimizer)


DOORS = {
    "wrapper": by_wrapper,
    "optimizer": by_optimizer,
    "barrier": by_barrier,
    "hook": by_comm_hook,
    "byteps wrapper": by_byteps_wrapper,
    "byteps optimizer": by_byteps_optimizer,
    "horovod optimizer": by_horovod_optimizer,
}
SYNONYMS = {"byteps wrapper": "wrapper", "byteps optimizer": "optimizer", "horovod optimizer": "optimizer"}
"""Doors that promise what another one promises, unless a table says otherwise."""


def outcome(deed, door, make=plain_sgd, tolerance=TOLERANCE) -> str:
    """Whether a deed changed nothing on several workers, or was refused by the name of a parameter."""
    model = model_of_four_parameters()
    try:
        run_of(deed, model, lambda trained: DOORS[door](trained, make))
    except (RuntimeError, NotImplementedError) as error:
        if door == "hook" and ("in-place operation" in str(error) or "returned an invalid gradient" in str(error)):
            return BY_PYTORCH
        assert isinstance(error, gl.Error) or door == "hook", f"{type(error).__name__}: {error}"
        # A worker that waits for another one until the step timeout was not told by name, whatever the error lists.
        assert not isinstance(error, gl.TimeoutError) and "StallError" not in str(error), error
        assert NAMED.search(str(error)), f"names no parameter: {error}"
        return REFUSED
    reference = model_of_four_parameters()
    run_of(deed, reference, lambda trained: alone(trained, make))
    ours, theirs = (dict(trained.named_parameters()) for trained in (model, reference))
    assert ours.keys() == theirs.keys()
    for name, parameter in theirs.items():
        torch.testing.assert_close(ours[name], parameter, rtol=0, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}")
    return EQUAL


def expected(promise: str | dict[str, str], door: str) -> str:
    """What a table says: one word for all doors, or a word for some. What is not said is `EQUAL`."""
    if isinstance(promise, str):
        return promise
    return promise.get(door, promise.get(SYNONYMS.get(door, door), EQUAL))


def run_of(deed, model, wrap) -> None:
    steps = deed(model)
    next(steps)
    run = wrap(model)
    try:
        steps.send(run)
    except StopIteration:
        if hasattr(run.optimizer, "synchronize"):
            run.optimizer.synchronize()  # `CrossBarrier` updates late
        return
    raise AssertionError("a deed yields once")
