"""Gradients that the engine sends together, and which are therefore submitted together.

Small tensors share parts, and no byte of a part is sent before all its tensors were submitted. So nothing is lost if
their gradients wait here for each other, and one call for all of them costs a fraction of a call for each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from gradlane._handle import Handle

Start = Callable[[Sequence[int], Sequence[torch.Tensor]], Handle[list[torch.Tensor]]]
"""Submits the gradients of the parameters at these positions, in place."""


class Bundle:
    """Parameters whose gradients are submitted in one call. They are referred to by their position in a list."""

    def __init__(self, positions: Collection[int], start: Start) -> None:
        self._positions, self._start = set(positions), start
        self._held: dict[int, torch.Tensor] = {}
        self.handle: Handle[list[torch.Tensor]] | None = None
        """The gradients in flight, once all are."""

    def add(self, position: int, gradient: torch.Tensor) -> Bundled:
        """Takes the gradient of a parameter, and submits all if it was the last one."""
        self._held[position] = gradient
        self._start_if_complete()
        return Bundled(self, gradient)

    def leave(self, position: int) -> None:
        """Makes the gradients of the others independent of this parameter."""
        self._positions.discard(position)
        self._start_if_complete()

    def clear(self) -> None:
        """Forgets all gradients."""
        self._held, self.handle = {}, None

    def _start_if_complete(self) -> None:
        if self._held and len(self._held) == len(self._positions):
            positions = sorted(self._held)
            self.handle = self._start(positions, [self._held[position] for position in positions])


class Bundled:
    """A gradient that is in flight with others, or waits for them."""

    def __init__(self, bundle: Bundle, gradient: torch.Tensor) -> None:
        self.bundle, self._gradient = bundle, gradient

    def wait(self) -> torch.Tensor:
        """Waits for all gradients of the bundle, which must be complete; returns this one."""
        assert self.bundle.handle is not None, "at the end of a window all gradients were submitted"
        self.bundle.handle.wait()
        return self._gradient


def bundles_of(
    parameters: Mapping[int, torch.Tensor], names: Mapping[str, int], together: Sequence[Sequence[str]], start: Start
) -> dict[int, Bundle]:
    """The bundle of each parameter that has one, by position.

    Args:
        parameters: by position. Those of different devices have different bundles, because several threads make their
            gradients.
        names: the position of the parameter whose gradient has this name.
        together: names that share a part, a list for each part.
        start: submits a bundle.
    """
    found: dict[int, Bundle] = {}
    for listed in together:
        by_device: dict[torch.device, list[int]] = {}
        for position in (names[name] for name in listed if name in names):
            by_device.setdefault(parameters[position].device, []).append(position)
        for positions in by_device.values():
            if len(positions) > 1:
                found |= dict.fromkeys(positions, Bundle(positions, start))
    return found
