"""The parameters of an optimizer: those whose gradients are averaged, and those that came later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from gradlane.errors import FailedPreconditionError
from gradlane.torch._owners import is_owned, unknown
from gradlane.torch._parameter_watch import Named


def places(optimizer: torch.optim.Optimizer) -> Iterator[Named]:
    """The parameters of an optimizer, each with its group and its position there, such as `0.3`."""
    for number, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            yield f"{number}.{position}", parameter


def refused_group(optimizer: torch.optim.Optimizer, door: str) -> FailedPreconditionError:
    """The error about a group that is added after the optimizer was given to `door`."""
    number = len(optimizer.param_groups)
    return FailedPreconditionError(
        f"the optimizer is distributed, and its parameters are fixed: nobody would average the gradient of parameter "
        f"{number}.0 (group.position); add the group before {door}"
    )


class Known:
    """The parameters whose gradients an optimizer averages, and the names of others."""

    def __init__(self, averaged: Iterable[Named], named: Iterable[Named], remedy: str) -> None:
        """Takes the parameters that are averaged, all that have names, and for errors what to do about others."""
        self._known = {id(parameter) for _, parameter in averaged}
        self._names: Any = WeakTensorKeyDictionary()
        for name, parameter in named:
            self._names[parameter] = name
        self._remedy = remedy

    def frozen(self, optimizer: torch.optim.Optimizer) -> list[Named]:
        """The parameters that require no gradient, of `optimizer` or named, with names for errors.

        Another optimizer may step those that have a name alone, once they are unfrozen.
        """
        own = {id(parameter): (self._name(place, parameter), parameter) for place, parameter in places(optimizer)}
        named = {id(parameter): (name, parameter) for parameter, name in self._names.items()}
        return [(name, parameter) for name, parameter in (named | own).values() if not parameter.requires_grad]

    def refuse_others(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises if `optimizer` would step on a gradient that nobody averages.

        Raises:
            InvalidArgumentError: a parameter was added or unfrozen; it is named.
        """
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                takes_part = parameter.requires_grad or parameter.grad is not None
                if takes_part and id(parameter) not in self._known and not is_owned(parameter):
                    place = next(place for place, other in places(optimizer) if other is parameter)
                    raise unknown(self._name(place, parameter), self._remedy)

    def _name(self, place: str, parameter: torch.nn.Parameter) -> str:
        name: str = self._names.get(parameter, f"{place} (group.position)")
        return name
