"""Gradients that the engine has, and how to find out that somebody else used or changed one meanwhile.

From its submission until its average has arrived, a gradient belongs to the engine. A placeholder stands in
`parameter.grad`, and every use of it raises an error that names the parameter. What bypasses the placeholder is found
when the average arrives: another tensor in `parameter.grad`, or a gradient that was changed.

Where somebody else may hold the memory of a gradient, the engine gets a copy, because `.data`, NumPy and the base of a view
change memory without a trace. A second copy tells afterwards whether it was changed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from gradlane.errors import FailedPreconditionError
from gradlane.torch import _tensors
from gradlane.torch._parameter_watch import differs, has_foreign_hooks


CALL_SYNCHRONIZE = (
    "call optimizer.synchronize() between backward() and whatever needs the gradients themselves, such as clipping or "
    "unscaling"
)
"""What the user of an optimizer does instead of using gradients on their way."""


class InFlight(torch.Tensor):
    """A placeholder in `parameter.grad` for a gradient in flight: every use of it raises an error."""

    _parameter: str
    _remedy: str

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<the gradient of {self._parameter}, on its way>"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> NoReturn:
        word = getattr(func, "__name__", "an operation")
        if word == "__get__":  # of an attribute, such as `data`
            word = getattr(getattr(func, "__self__", None), "__name__", word)
        found = next(iter(_placeholders((args, kwargs))), None)
        name, remedy = ("a parameter", "wait for it") if found is None else (found._parameter, found._remedy)
        raise FailedPreconditionError(f"{word} on the gradient of {name}, which is on its way; {remedy}")


class Loan:
    """The gradient of one parameter, while the engine has it."""

    __slots__ = ("_copied", "_held", "_parameter", "_version", "gradient", "name", "placeholder")

    def __init__(
        self, parameter: torch.Tensor, gradient: torch.Tensor, name: str, remedy: str, held: torch.Tensor | None = None
    ) -> None:
        """Puts a placeholder into `parameter.grad`.

        Args:
            gradient: the tensor for the engine: `parameter.grad`, or a form of it that only the caller has.
            name: of the parameter.
            remedy: what to do instead of using the gradient now.
            held: `parameter.grad`, if somebody else may hold its memory.
        """
        self._parameter, self.name = parameter, name
        self._held = held
        self._copied = None if held is None else held.detach().clone()
        self.gradient = gradient.detach().clone() if gradient is held else gradient
        """The tensor for the engine, in which the average will be."""
        plain = gradient
        if gradient.requires_grad:
            _warn_of_graph()
            plain = gradient.detach()
        if gradient.is_sparse:  # a sparse tensor cannot be of another class
            plain = torch.zeros((), dtype=gradient.dtype, device=gradient.device).expand(gradient.shape)
        self.placeholder: InFlight = plain.as_subclass(InFlight)
        self.placeholder._parameter, self.placeholder._remedy = name, remedy
        self._version: int | None = None
        parameter.grad = self.placeholder

    def submitted(self) -> None:
        """Records that the engine has the memory now. A later change of it is an error."""
        if self._held is None:
            self._version = self.gradient._version

    def complaint(self, *, may_be_replaced: bool = False) -> str | None:
        """What somebody did to the gradient, in words; None if nobody did anything.

        Call it before the average is copied into the gradient, because that is a change too.

        Args:
            may_be_replaced: whether `parameter.grad` may hold something else by now.
        """
        if not may_be_replaced and self._parameter.grad is not self.placeholder:
            done = "cleared" if self._parameter.grad is None else "replaced"
        elif self._version is not None and self._version != self.gradient._version:
            done = "changed in place"
        elif self._held is not None and self._copied is not None and differs(self._held, self._copied):
            done = "changed"
        else:
            return None
        return f"the gradient of {self.name} was {done} while it was on its way"

    def average(self) -> torch.Tensor:
        """The average, when it is in `gradient`: in the memory that the user's gradient had."""
        held = self._held
        if held is None or held.is_sparse or held.shape != self.gradient.shape or _tensors.overlaps_itself(held):
            return self.gradient
        held.detach().copy_(self.gradient)
        return held

    def end(self, gradient: torch.Tensor | None) -> None:
        """Puts `gradient` in the place of the placeholder."""
        self._parameter.grad = gradient

    def abandon(self) -> None:
        """Clears the gradient, if the placeholder still stands there: no average will come."""
        if self._parameter.grad is self.placeholder:
            self._parameter.grad = None


def may_be_held(parameter: torch.Tensor) -> bool:
    """Whether anybody but the parameter may hold the memory of its gradient. The caller may not yet refer to it either."""
    gradient = parameter.grad
    if gradient is None:
        return False
    return sys.getrefcount(gradient) > _REFERENCES or gradient._is_view() or has_foreign_hooks(parameter)


def _references() -> int:
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    gradient = parameter.grad
    return sys.getrefcount(gradient)


_REFERENCES = _references()
"""How many references Python counts in `may_be_held` to a gradient to which nothing but its parameter refers."""


def refuse(complaints: Iterable[str], remedy: str) -> None:
    """Raises the first of these complaints, if there is one.

    Raises:
        FailedPreconditionError: its text ends with `remedy`.
    """
    for complaint in complaints:
        raise FailedPreconditionError(f"{complaint}; {remedy}")


def refuse_cleared(parameter: torch.Tensor, name: str) -> None:
    """Raises if there is no gradient although autograd has just made one.

    Raises:
        FailedPreconditionError: another hook has removed it.
    """
    if parameter.grad is None:
        raise FailedPreconditionError(
            f"another hook cleared the gradient of {name} before it was averaged, as an optimizer does that steps during "
            "backward(); give register_post_average_hook() what needs the average of a gradient"
        )


def _placeholders(arguments: Any) -> Iterable[InFlight]:
    for argument in arguments:
        if isinstance(argument, InFlight):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _placeholders(argument)
        elif isinstance(argument, dict):
            yield from _placeholders(argument.values())


_has_warned_of_graph = False


def _warn_of_graph() -> None:
    """Says once that averages have no graph."""
    global _has_warned_of_graph
    if not _has_warned_of_graph:
        _has_warned_of_graph = True
        warnings.warn(
            "backward(create_graph=True): the gradients are averaged, but the graph of a gradient holds the part of this "
            "worker alone. For a loss of gradients, take these by torch.autograd.grad(..., create_graph=True); the "
            "backward pass of that loss is averaged as any other",
            UserWarning,
            stacklevel=2,
        )
