"""A step of any torch optimizer for some of its parameters, and gradients that nobody may look at yet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from gradlane.errors import FailedPreconditionError, UnsupportedError

Settings = list[dict[str, Any]]
"""Learning rate and so on of each group of an optimizer, without the parameters."""


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """The present settings; later changes, as by a scheduler, do not reach them."""
    return [
        {key: _fixed(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]


def _fixed(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


class PartialStep:
    """Steps an optimizer for chosen parameters.

    The class's own `step` does the work: it sees groups that hold those parameters alone. All it remembers of a
    parameter lies in `optimizer.state`, so the bits are those of a step for all at once, and the optimizer's state
    stays what it is.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Looks at `optimizer`.

        Raises:
            UnsupportedError: one of its steps concerns all parameters at once.
        """
        kind = type(optimizer)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UnsupportedError(f"{kind.__name__} searches along all parameters at once; use DistributedOptimizer")
        self._optimizer = optimizer
        self._kind = kind
        # Without the wrapper that calls the hooks of a step: this is not one.
        hooked = getattr(kind.step, "hooked", False)
        self._step: Callable[[torch.optim.Optimizer], Any] = (
            getattr(kind.step, "__wrapped__", kind.step) if hooked else kind.step
        )
        self._groups = {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}

    def __call__(self, parameters: Iterable[torch.nn.Parameter], settings: Settings) -> None:
        """Steps `parameters`, on their present gradients.

        Raises:
            UnsupportedError: the optimizer changed the settings of a group, as those do that adapt something over all
                parameters.
        """
        chosen: list[list[torch.nn.Parameter]] = [[] for _ in settings]
        for parameter in parameters:
            chosen[self._groups[id(parameter)]].append(parameter)
        groups = [{**s, "params": of} for s, of in zip(settings, chosen, strict=True) if of]
        if not groups:
            return
        optimizer, whole = self._optimizer, self._optimizer.param_groups
        optimizer.param_groups = groups
        try:
            with _modes_of_a_step():
                self._step(optimizer)
        finally:
            optimizer.param_groups = whole
        self._refuse_changed(groups, [s for s, of in zip(settings, chosen, strict=True) if of])

    def whole(self) -> None:
        """Steps all parameters, as the optimizer does by itself, hooks included."""
        self._kind.step(self._optimizer)

    def _refuse_changed(self, groups: Sequence[dict[str, Any]], settings: Settings) -> None:
        changed = {
            key
            for group, before in zip(groups, settings, strict=True)
            for key in group
            if key != "params" and (key not in before or group[key] is not before[key])
        }
        if changed:
            raise UnsupportedError(
                f"{self._kind.__name__} changes {', '.join(sorted(changed))} of its groups in every step, so it cannot "
                "be stepped for some parameters before the others; use DistributedOptimizer"
            )


@contextlib.contextmanager
def _modes_of_a_step() -> Iterator[None]:
    """Leaves the modes that a forward pass may run in, and a step does not."""
    with contextlib.ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield


class InFlight(torch.Tensor):
    """Stands in `parameter.grad` for a gradient on its way: whoever looks at it learns that it is too early."""

    _parameter: str

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<the gradient of {self._parameter}, on its way>"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> NoReturn:
        word = getattr(func, "__name__", "an operation")
        name = next((tensor._parameter for tensor in _veils(args)), "a parameter")
        raise FailedPreconditionError(
            f"{word} on the gradient of {name}, which is on its way to its average; call optimizer.synchronize() "
            "between backward() and whatever needs the gradients themselves, such as clipping or unscaling"
        )


def veil(gradient: torch.Tensor, name: str) -> InFlight:
    """What to put in the place of `gradient`, of the parameter called `name`."""
    hidden: InFlight = gradient.detach().as_subclass(InFlight)
    hidden._parameter = name
    return hidden


def _veils(arguments: Any) -> Iterable[InFlight]:
    for argument in arguments:
        if isinstance(argument, InFlight):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _veils(argument)
