"""BytePS's asynchronous training, `BYTEPS_ENABLE_ASYNC=1`: workers send what their own steps change, and wait for nobody."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, TypeVar

import torch

from gradlane import _names, _session, parameters
from gradlane._server_training import ended
from gradlane.compat.byteps.common import ASYNC_SWITCH
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch._copies import Averaging, plain_class
from gradlane.torch._known import refused_group
from gradlane.torch._owners import own
from gradlane.torch.optimizer import check_passes, name_parameters

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

def make_asynchronous(
    optimizer: Kind, named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None, passes: int
) -> Kind:
    """Makes `optimizer` exchange weights with the servers behind each of its steps; returns the same object.

    A step is one of this worker alone, by its own gradients. Each change that it makes of a parameter is added to the value on
    the servers, and the sum takes its place here. The first steps give the servers the weights from which they begin.

    Args:
        optimizer: any torch optimizer over dense parameters.
        named_parameters: `model.named_parameters()`; None names them by position.
        passes: checked, and without another effect: gradients of several passes add up here until the step.
    Raises:
        InvalidArgumentError: as for `gradlane.torch.DistributedOptimizer`.
    """
    check_passes(passes)
    if isinstance(optimizer, Averaging):
        raise InvalidArgumentError("the optimizer is distributed already; wrap it once")
    kind = plain_class(optimizer)
    exchange = _Exchange(name_parameters(optimizer, None if named_parameters is None else list(named_parameters)))
    optimizer.__class__ = type(kind.__name__, (_Asynchronous, kind), {"__module__": kind.__module__})
    # Hooks and not an override of step(): schedulers replace step() on the object.
    optimizer.register_step_pre_hook(lambda *_: exchange.before_step())
    optimizer.register_step_post_hook(lambda *_: exchange.after_step())
    return optimizer


class _Asynchronous(Averaging):
    """The methods of such an optimizer in addition to its own class."""

    def synchronize(self) -> None:
        """Does nothing: gradients stay on this worker, and `step()` returns when the weights are exchanged."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[NoReturn]:
        """Refused, as in BytePS."""
        raise UnsupportedError(
            f"skip_synchronize() with {ASYNC_SWITCH}=1, where gradients are those of this worker alone; clip them and call step() "
            "without it"
        )
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Checks `passes`, and has no other effect: gradients add up until the step."""
        check_passes(passes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not possible any more: nobody would exchange its parameters."""
        raise refused_group(self, "DistributedOptimizer")


class _Exchange:
    """Adds what steps change to the values on the servers."""

    def __init__(self, named: list[tuple[str, torch.nn.Parameter]]) -> None:
        self._named, self._prefix = named, _names.namespace("async optimizer", None)
        self._generation: int | None = None
        self._before: list[torch.Tensor] = []
        own(self, named)

    @torch.no_grad()
    def before_step(self) -> None:
        """Keeps the weights. In each job the first steps give them to the servers."""
        self._before = [parameter.detach().contiguous().clone() for _, parameter in self._named]
        if self._generation != _session.generation():
            pairs = zip(self._named, self._before, strict=True)
            ended([parameters.init_async(self._name(label), weights) for (label, _), weights in pairs])
            self._generation = _session.generation()

    @torch.no_grad()
    def after_step(self) -> None:
        """Sends what the step has changed, and takes over the sums."""
        before, self._before = self._before, []
        begun = []
        for (label, parameter), value in zip(self._named, before, strict=True):
            # Not against the weights of the exchange before: a broadcast since then is no progress, on none of the workers.
            if parameter.grad is None:
                begun.append(parameters.pull_async(self._name(label), value))
            else:
                torch.sub(parameter, value, out=value)
                begun.append(parameters.push_pull_async(self._name(label), value))
        ended(begun)
        for (_, parameter), value in zip(self._named, before, strict=True):
            parameter.copy_(value)

    def _name(self, label: str) -> str:
        return f"{self._prefix}/AsyncParam.{label}"
