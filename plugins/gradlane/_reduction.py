"""The reductions, under the names that users write."""

from __future__ import annotations

import enum
from typing import Literal

from gradlane.errors import InvalidArgumentError

NativeOp = Literal["sum", "mean", "min", "max", "weighted_mean", "broadcast"]


class ReduceOp(enum.Enum):
    """A reduction over the workers; it must be the same on all of them."""

    AVERAGE = "mean"
    """Sum divided by the number of workers. Integers round down, and their sum wraps before: 255 and 255 in uint8 give
    127. Give wider integers if a sum can leave the range.
    """
    SUM = "sum"
    """Integers wrap."""
    MIN = "min"
    """NaN wins."""
    MAX = "max"
    """NaN wins."""
    WEIGHTED_AVERAGE = "weighted_mean"
    """Σ wᵢ·xᵢ / Σ wᵢ with one weight a worker, such as its number of samples; floating point only."""

    @property
    def native(self) -> NativeOp:
        """The name in the native module."""
        return self.value


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
WeightedAverage = ReduceOp.WEIGHTED_AVERAGE


def resolve(op: ReduceOp | None, average: bool | None, weight: float | None) -> ReduceOp:
    """The reduction for `op` or its old form `average`; `Average` if neither is given.

    Raises:
        InvalidArgumentError: they contradict each other, one is no reduction, or the reduction takes no `weight`.
    """
    if op is not None and not isinstance(op, ReduceOp):
        raise InvalidArgumentError(f"op={op!r} is no reduction; use gradlane.{_meant(op)}")
    if average is not None:
        spelled = Average if average else Sum
        if op is not None and op is not spelled:
            raise InvalidArgumentError(f"average={average} contradicts op={op.name}; give one of the two")
        op = spelled
    op = Average if op is None else op
    if weight is not None and op is not WeightedAverage:
        raise InvalidArgumentError(f"op={op.name} takes no weight; use op=gradlane.WeightedAverage")
    return op


def _meant(op: object) -> str:
    """The reduction that is meant by `op`, such as `"sum"` or PyTorch's `ReduceOp.SUM`; all of them if none is."""
    words = {"average": "Average", "avg": "Average", "mean": "Average", "sum": "Sum", "min": "Min", "max": "Max"}
    word = str(op).rpartition(".")[2].lower()
    return words.get(word, "Average, Sum, Min, Max or WeightedAverage")
