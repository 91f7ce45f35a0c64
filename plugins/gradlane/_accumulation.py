"""Micro-batches of one worker whose gradients are sent together. Knows no framework."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypeVar

from gradlane.errors import InvalidArgumentError

T = TypeVar("T")

Merge = Literal["mean", "sum"]
"""What is sent of the gradients g of micro-batches with n samples each: Σ n·g / Σ n, or Σ g."""


class Accumulation(Generic[T]):
    """The gradients of the micro-batches since the last ones were sent, each under the label of its weight.

    A weight that has no gradient in a micro-batch has zeros there. Gradients are added in float32, those of float64 in float64.
    """

    def __init__(
        self, due: object, merge: object, *, widened: Callable[[T], T], narrowed: Callable[[str, T], T]
    ) -> None:
        """
        Args:
            due: how many micro-batches are sent together.
            merge: "mean" or "sum".
            widened: makes a copy of a gradient, in the element type in which they are added.
            narrowed: makes a gradient for the weight of a label from a sum. It may return the sum itself.
        Raises:
            InvalidArgumentError: `due` is no number of at least 1, or `merge` has no meaning.
        """
        self.due, self.merge = _count_of(due), _merge_of(merge)
        self._widened, self._narrowed = widened, narrowed
        self.batches = 0
        """How many micro-batches are in."""
        self.samples = 0.0
        """What they count together."""
        self._sums: dict[str, T] = {}
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether what is in has to be sent before another micro-batch comes."""
        return self._is_closed or self.batches == self.due

    @property
    def is_last_next(self) -> bool:
        """Whether the next micro-batch makes it full."""
        return self.batches == self.due - 1

    def close(self) -> None:
        """Takes no more micro-batches, although it is not full."""
        self._is_closed = self.batches > 0

    def add(self, gradients: Mapping[str, T], samples: float) -> None:
        """Adds a micro-batch.

        Raises:
            InvalidArgumentError: `samples` is no number above zero.
        """
        check_samples(samples)
        for label, gradient in gradients.items():
            self.add_early(label, gradient, samples)
        self.batches += 1
        self.samples += samples

    def add_early(self, label: str, gradient: T, samples: float = 1.0) -> None:
        """Adds the gradient of one weight, of a micro-batch that `add` completes without it."""
        share: Any = self._widened(gradient)
        if self.merge == "mean" and samples != 1.0:
            share *= samples
        if label in self._sums:
            self._sums[label] += share
        else:
            self._sums[label] = share

    def merged(self) -> dict[str, T]:
        """What is to be sent."""
        return {label: self.merged_of(label, self.samples) for label in self._sums}

    def merged_of(self, label: str, samples: float) -> T:
        """What is to be sent of one weight, if the micro-batches count so much together."""
        total: Any = self._sums[label]
        return self._narrowed(label, total / samples if self.merge == "mean" else total)

    def clear(self) -> None:
        """Begins anew, because what was in is sent."""
        self._sums = {}
        self.batches, self.samples, self._is_closed = 0, 0.0, False

    def state(self) -> dict[str, Any]:
        """What is in, to be saved."""
        sums = {label: self._widened(total) for label, total in self._sums.items()}
        return {"merge": self.merge, "batches": self.batches, "samples": self.samples, "sums": sums}

    def load(self, state: Mapping[str, Any], copied: Callable[[str, Any], T]) -> None:
        """Takes over what `state` has returned.

        Args:
            copied: makes a copy of a sum, in the place of the weight of a label. It may refuse one that does not fit.
        Raises:
            InvalidArgumentError: it is of another merge, too many micro-batches are in it, or a sum does not fit.
        """
        if state["merge"] != self.merge or state["batches"] >= self.due:
            raise InvalidArgumentError(
                f"the state has {state['batches']} micro-batches with merge={state['merge']!r}; load it where as many and more "
                f"are accumulated by that, and not with accumulate={self.due} and merge={self.merge!r}"
            )
        sums = {label: copied(label, total) for label, total in state["sums"].items()}
        self.clear()
        self._sums = sums
        self.batches, self.samples = state["batches"], state["samples"]


def check_samples(samples: object) -> None:
    """Refuses what no micro-batch counts."""
    is_number = isinstance(samples, int | float) and not isinstance(samples, bool)
    if not (is_number and math.isfinite(samples) and samples > 0):  # type: ignore[arg-type, operator]
        raise InvalidArgumentError(f"samples={samples!r}; give the number of samples of this micro-batch, above zero")


def _count_of(due: object) -> int:
    try:
        count = operator.index(due)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 1 or isinstance(due, bool):
        raise InvalidArgumentError(f"accumulate={due!r}; give the number of micro-batches that are sent together, at least 1")
    return count


def _merge_of(merge: object) -> Merge:
    if merge not in ("mean", "sum"):
        raise InvalidArgumentError(f'merge={merge!r}; give "mean" or "sum"')
    return merge
