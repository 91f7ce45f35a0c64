"""Optimizers that average gradients, and copies of them, which average nothing and so may not train in a job."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from gradlane import _session
from gradlane.torch._known import places
from gradlane.torch._owners import copy_trains, is_owned

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

StepArguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments of `step`, the optimizer first, and keywords."""


class Averaging(torch.optim.Optimizer):
    """Marks optimizers that average their gradients; wrapping one again would average averages."""

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Makes a copy (`copy.deepcopy`, `pickle`, `torch.save`) an optimizer of the own class that averages nothing."""
        return _blank, (own_class(type(self)),), self.__getstate__()

    def __copy__(self: Kind) -> Kind:
        """The same optimizer with the same parameters, state and averages."""
        copied: Kind = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__, _original=self)
        return copied


class _Copied(torch.optim.Optimizer):
    """Marks copies of optimizers that average. In a job of several workers they refuse to step on gradients."""

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _blank, (own_class(type(self)),), self.__getstate__()


def plain_class(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """The own class of an optimizer. A copy of one that averages becomes an object of that class."""
    kind = own_class(type(optimizer))
    if isinstance(optimizer, _Copied):
        optimizer.__class__ = kind  # type: ignore[assignment]
    return kind


def with_closure(
    positional: tuple[Any, ...], keywords: dict[str, Any], change: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> StepArguments | None:
    """The arguments of `step` with its closure changed; None if there is no closure."""
    closure = keywords.get("closure") or next(iter(positional[1:]), None)
    if closure is None:
        return None
    return (positional[0], change(closure)), {key: value for key, value in keywords.items() if key != "closure"}


def own_class(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The class of an optimizer without what this package has put before it."""
    marks = Averaging | _Copied
    return next(k for k in kind.__mro__ if issubclass(k, torch.optim.Optimizer) and not issubclass(k, marks))


def _blank(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """An optimizer without state, for a copy of one that averages."""
    copied: Any = type(kind.__name__, (_Copied, kind), {"__module__": kind.__module__})
    blank: torch.optim.Optimizer = copied.__new__(copied)
    blank._optimizer_step_pre_hooks = OrderedDict()
    blank.register_step_pre_hook(_before_step)
    return blank


def _before_step(
    optimizer: torch.optim.Optimizer, positional: tuple[Any, ...], keywords: dict[str, Any]
) -> StepArguments | None:
    """Refuses a step of a copy on gradients of this worker alone, also on those that a closure makes."""
    if not isinstance(optimizer, _Copied):
        return None  # it was wrapped since
    _refuse_step(optimizer)

    def checked(closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            _refuse_step(optimizer)
            return loss

        return evaluate

    return with_closure(positional, keywords, checked)


def _refuse_step(optimizer: torch.optim.Optimizer) -> None:
    if _session.is_initialized() and _session.size() > 1:
        for place, parameter in places(optimizer):
            if parameter.grad is not None and not is_owned(parameter):
                raise copy_trains(f"{place} (group.position)", "distributed optimizer; wrap it to train with it")
