"""Steps any torch optimizer for some of its parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from gradlane.errors import UnsupportedError

Settings = list[dict[str, Any]]
"""Learning rate and so on of each group of an optimizer, without the parameters."""


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """A copy of the present settings, which later changes, such as those of a scheduler, do not affect."""
    return [
        {key: _fixed(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]


def _fixed(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


class PartialStep:
    """Steps an optimizer for chosen parameters.

    The class's own `step` does the work, on groups that hold only those parameters. It keeps all its data about a
    parameter in `optimizer.state`, so the result is bitwise that of one step for all parameters, and the optimizer's
    state keeps its form.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Checks `optimizer`.

        Raises:
            UnsupportedError: a step of it needs all parameters at once.
        """
        kind = type(optimizer)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UnsupportedError(f"{kind.__name__} searches along all parameters at once; use DistributedOptimizer")
        self._optimizer = optimizer
        self._kind = kind
        # Without the wrapper that calls the hooks, because this is no complete step.
        hooked = getattr(kind.step, "hooked", False)
        self._step: Callable[[torch.optim.Optimizer], Any] = (
            getattr(kind.step, "__wrapped__", kind.step) if hooked else kind.step
        )
        self._groups: dict[int, int] = {}
        self.regroup()

    def regroup(self) -> None:
        """Learns which group each parameter is in now. One that is in none is not stepped, as by the optimizer itself."""
        groups = self._optimizer.param_groups
        self._groups = {id(p): index for index, group in enumerate(groups) for p in group["params"]}

    def __call__(self, parameters: Iterable[torch.nn.Parameter], settings: Settings) -> None:
        """Steps `parameters`, on their present gradients.

        Raises:
            UnsupportedError: the optimizer changed the settings of a group, as those that adapt a value over all
                parameters do.
        """
        chosen: list[list[torch.nn.Parameter]] = [[] for _ in settings]
        for parameter in parameters:
            if (group := self._groups.get(id(parameter))) is not None:
                chosen[group].append(parameter)
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
        """Steps all parameters as the optimizer itself does, including its hooks."""
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
    """Leaves the modes of a forward pass in which a step must not run."""
    with contextlib.ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield
