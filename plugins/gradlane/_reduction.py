"""How tensors are reduced: the operations under the names that users write, and all options of a call as one value."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gradlane._arguments import check_priority, check_timeout
from gradlane._choice import codec_at, codec_of_call, codecs_among
from gradlane._compression import Compressor
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError

NativeOp = Literal["sum", "mean", "min", "max", "weighted_mean", "broadcast"]
"""The names of the operations in the native module."""


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
        """The name in the native module. Not by `value`, which costs as much as the rest of a small call's checks."""
        return self._value_


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
WeightedAverage = ReduceOp.WEIGHTED_AVERAGE


# `__init__` is written by hand, because that of a frozen dataclass takes twice as long, and each call makes a value.
@dataclass(frozen=True, slots=True, init=False)
class Reduction:
    """How a tensor is reduced: all that a call says, except for its memory and its name.

    The functions that users call make it of their arguments, and everything below them passes it on. The native module
    reads its fields, and has a value of the same name.
    """

    op: NativeOp
    root: int
    """The rank whose bytes all get in a broadcast."""
    weight: float
    """This worker's weight in a weighted mean; 1 elsewhere."""
    priority: int
    """Higher goes first; only the order matters."""
    codec: str
    """The engine's name of the encoding between machines, or a line for each tensor of a list. Integers and types that are
    as narrow are sent unchanged.
    """
    process_set: ProcessSet | None
    """The workers that take part; None for all."""
    receiver: int | None
    """The rank that alone gets the result; None if all that take part get it."""
    timeout: float | None
    """Seconds for the whole operation; None for the job's step timeout."""

    def __init__(
        self,
        op: NativeOp = "mean",
        *,
        root: int = 0,
        weight: float = 1.0,
        priority: int = 0,
        codec: str = "none",
        process_set: ProcessSet | None = None,
        receiver: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Checks the set and the time, which users give to all functions.

        Raises:
            InvalidArgumentError: it is no set, or no time.
        """
        if process_set is not None and not isinstance(process_set, ProcessSet):
            raise InvalidArgumentError(
                f"process_set={process_set!r} is no process set; give gradlane.ProcessSet, made of a list of ranks"
            )
        if timeout is not None:
            check_timeout(timeout)
        _set_op(self, op)
        _set_root(self, root)
        _set_weight(self, weight)
        _set_priority(self, priority)
        _set_codec(self, codec)
        _set_process_set(self, process_set)
        _set_receiver(self, receiver)
        _set_timeout(self, timeout)

    @property
    def is_linear(self) -> bool:
        """Whether it is a sum or an average, so that gradients can pass through it."""
        return self.op in ("sum", "mean")

    @property
    def timeout_ms(self) -> int:
        """The timeout as op libraries take it: in milliseconds, 0 for the job's step timeout."""
        return 0 if self.timeout is None else max(1, round(min(self.timeout * 1000, 2.0**62)))

    def at(self, position: int) -> Reduction:
        """That of the tensor at this position of a list: each has a priority one less than the one before."""
        if position == 0 and "\n" not in self.codec:
            return self
        return self._but(priority=self.priority - position, codec=codec_at(self.codec, position))

    def among(self, positions: Iterable[int]) -> Reduction:
        """That of a list of the tensors at these positions of this list."""
        return self if "\n" not in self.codec else self.encoded(codecs_among(self.codec, positions))

    def with_priority(self, priority: int) -> Reduction:
        """The same with another priority, which is checked."""
        return self._but(priority=check_priority(priority))

    def summed(self) -> Reduction:
        """The sum in its place."""
        return self._but(op="sum", weight=1.0)

    def encoded(self, codec: str) -> Reduction:
        """The same with another codec."""
        return self._but(codec=codec)

    def weighted(self, weight: float) -> Reduction:
        """The weighted mean in its place, with this worker's weight."""
        return self._but(op="weighted_mean", weight=weight)

    def to(self, receiver: int) -> Reduction:
        """The same, whose result only this rank gets."""
        return self._but(receiver=receiver)

    def _but(
        self,
        op: NativeOp | None = None,
        weight: float | None = None,
        priority: int | None = None,
        codec: str | None = None,
        receiver: int | None = None,
    ) -> Reduction:
        """The same with other fields. `dataclasses.replace` takes twice as long."""
        return Reduction(
            self.op if op is None else op,
            root=self.root,
            weight=self.weight if weight is None else weight,
            priority=self.priority if priority is None else priority,
            codec=self.codec if codec is None else codec,
            process_set=self.process_set,
            receiver=self.receiver if receiver is None else receiver,
            timeout=self.timeout,
        )


_set_op, _set_root, _set_weight, _set_priority, _set_codec, _set_process_set, _set_receiver, _set_timeout = [
    getattr(Reduction, name).__set__ for name in Reduction.__slots__
]

AVERAGE = Reduction()
"""That of a call without options."""


def reduction_of(
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Reduction:
    """What the options of a call ask for. `average` is the old form of `op`; without both it is an average.

    Raises:
        InvalidArgumentError: `op` and `average` contradict each other, the reduction takes no `weight`, or an argument
            is not what it should be.
    """
    if op is not None and not isinstance(op, ReduceOp):
        raise InvalidArgumentError(f"op={op!r} is no reduction; use gradlane.{_meant(op)}")
    if average is not None:
        spelled = Average if average else Sum
        if op is not None and op is not spelled:
            raise InvalidArgumentError(f"average={average} contradicts op={op.name}; give one of the two")
        op = spelled
    if weight is not None and op is not WeightedAverage:
        raise InvalidArgumentError(f"op={(op or Average).name} takes no weight; use op=gradlane.WeightedAverage")
    codec = codec_of_call(compression)
    no_more = priority is None and process_set is None and timeout is None
    if no_more and (op is None or op is Average) and codec == "none":
        return AVERAGE
    return Reduction(
        "mean" if op is None else op.native,
        weight=1.0 if weight is None else weight,
        priority=check_priority(priority),
        codec=codec,
        process_set=process_set,
        timeout=timeout,
    )


def broadcast_of(
    root: int, *, process_set: ProcessSet | None = None, receiver: int | None = None, timeout: float | None = None
) -> Reduction:
    """That of a broadcast of the bytes of `root`, a rank in the job, to all that take part or to `receiver` alone."""
    return Reduction("broadcast", root=root, process_set=process_set, receiver=receiver, timeout=timeout)


def _meant(op: object) -> str:
    """The reduction that is meant by `op`, such as `"sum"` or PyTorch's `ReduceOp.SUM`; all of them if none is."""
    words = {"average": "Average", "avg": "Average", "mean": "Average", "sum": "Sum", "min": "Min", "max": "Max"}
    word = str(op).rpartition(".")[2].lower()
    return words.get(word, "Average, Sum, Min, Max or WeightedAverage")
