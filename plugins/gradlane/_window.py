"""The window of gradients: which gradients are in flight, and which workers had one. Knows no framework.

A *window* is the time from one average to the next. In a window every worker submits every gradient exactly once, and
one byte per parameter, which says whether it had a gradient. So all workers take part in the same operations, whatever
branches their models took, and no worker waits for a gradient that will not come.

A worker that has no more data *sits out* the windows of the others: it has no gradient, and changes nothing of which
parameters count as used. One byte per worker tells all who had data.

The owner of a window decides when it ends, and the type `T` of a gradient in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

from gradlane import _buffers, _session
from gradlane._handle import Handle
from gradlane._operations import submit
from gradlane._reduction import NativeOp, Reduction
from gradlane._sets import ProcessSet, places_of
from gradlane.errors import FailedPreconditionError, UnusedParametersError

T = TypeVar("T")

_MARKS_PRIORITY = 1
_NAMES_SHOWN_MAX = 8
_USED, _NOT_USED = 1, 2


def forward_order(position: int, name: str) -> int:
    """The priority of a parameter: the one that the next forward pass needs first is most urgent."""
    del name
    return -position


class Window(Generic[T]):
    """The gradients of a list of parameters. Parameters are referred to by their position in the list."""

    def __init__(
        self,
        namespace: str,
        names: Sequence[str],
        start: Callable[[int], T],
        process_set: ProcessSet | None = None,
    ) -> None:
        """Begins the first window.

        Args:
            namespace: a prefix of all names.
            names: one for each parameter.
            start: submits the gradient of a parameter, or zeros if there is none.
            process_set: the workers whose gradients these are, of which this one is a member; all by default.
        """
        self._namespace, self._names, self._start, self._set = namespace, list(names), start, process_set
        self._on_their_way: list[T | None] = [None] * len(self._names)
        self._used = bytearray(len(self._names))
        self._marks: Handle[bytearray] | None = None
        self._idle = 0
        """The mark of a worker that sat the last closed window out."""
        self._failure: Exception | None = None

    def name(self, position: int) -> str:
        """The name of the tensor that carries the parameter's gradient."""
        return f"{self._namespace}/{self._names[position]}"

    def check(self) -> None:
        """Raises the error after which the workers are out of step, if there was one, and in a forked process."""
        _session.refuse_in_fork()
        if self._failure is not None:
            raise self._failure

    def fail(self, error: Exception) -> None:
        """Records that the workers are out of step, so that no later average can be trusted."""
        self._failure = error

    @property
    def has_failed(self) -> bool:
        """Whether the workers are out of step."""
        return self._failure is not None

    def mark_used(self, position: int) -> None:
        """Records that this worker has a gradient of the parameter in this window."""
        self._used[position] = 1

    def used(self) -> bytes:
        """For each parameter whether this worker has had a gradient in this window."""
        return bytes(self._used)

    def submit(self, position: int) -> None:
        """Submits the parameter's gradient."""
        self._on_their_way[position] = self._start(position)

    def on_its_way(self, position: int) -> T | None:
        """The gradient in flight, or its average until `take`; None otherwise."""
        return self._on_their_way[position]

    def take(self, position: int) -> T:
        """Takes the gradient of a parameter, which has none in flight afterwards."""
        taken, self._on_their_way[position] = self._on_their_way[position], None
        assert taken is not None, "only what was on its way arrives"
        return taken

    def clear(self) -> None:
        """Forgets all gradients in flight."""
        self._on_their_way = [None] * len(self._names)
        self._used = bytearray(len(self._names))

    def renew(self) -> None:
        """Forgets what came over an earlier session of the job, once that has ended. Nothing may be in flight."""
        self._marks = None

    @property
    def all_submitted(self) -> bool:
        """Whether every gradient of this window was submitted."""
        return all(transfer is not None for transfer in self._on_their_way)

    @property
    def any_submitted(self) -> bool:
        """Whether any gradient of this window was submitted."""
        return any(transfer is not None for transfer in self._on_their_way)

    def refuse_second(self, position: int, remedy: str = "") -> None:
        """Raises if the parameter's gradient is in flight, because it may not get another one now.

        Raises:
            FailedPreconditionError: it is in flight. `remedy` says what to do after a failed backward pass.
        """
        if self._on_their_way[position] is not None:
            raise FailedPreconditionError(
                f"parameter {self._names[position]} got a gradient while an earlier one is on its way: a module is "
                "used twice under reentrant checkpointing (give checkpoint use_reentrant=False), there were more "
                f"backward passes than announced, or a backward pass failed before{remedy}"
            )

    def close(self, among: Literal["any", "all"]) -> None:
        """Ends the window: submits the remaining gradients, and tells the other workers which ones this worker had.

        Args:
            among: whether `was_used` means that any worker or that all workers had a gradient.
        """
        self.submit_rest()
        used, self._used = self._used, bytearray(len(self._used))
        self._tell(used, among, sits_out=False)

    def sit_out(self, among: Literal["any", "all"]) -> None:
        """Ends a window in which this worker had no data. It submits nothing yet: if others had data, `submit_rest`."""
        self._tell(bytearray([among == "all"]) * len(self._used), among, sits_out=True)

    def submit_rest(self) -> None:
        """Submits all gradients that are not on their way."""
        for position, transfer in enumerate(self._on_their_way):
            if transfer is None:
                self.submit(position)

    def active(self) -> list[int]:
        """The ranks of the workers that had data in the last closed window. Waits until that is known."""
        assert self._marks is not None, "a window was closed"
        marks = self._marks.wait()[len(self._names) :]
        return [rank for rank, mark in zip(places_of(self._set), marks, strict=True) if mark != self._idle]

    def was_used(self, position: int) -> bool:
        """Whether the parameter was used in the last closed window. Waits until that is known."""
        return self._marks is not None and bool(self._marks.wait()[position])

    def knows_used(self) -> bool:
        """Whether `was_used` returns at once."""
        return self._marks is None or self._marks.poll()

    def unused(self, used: bytes) -> UnusedParametersError:
        """Gathers which parameters each worker used; all workers must call it. `used` is this worker's answer."""
        places, count = places_of(self._set), len(self._names)
        marks, own = bytearray(len(places) * count), places.index(_session.rank())
        # A worker that was lost says neither.
        marks[own * count : (own + 1) * count] = bytes(_USED if was_used else _NOT_USED for was_used in used)
        marks = self._exchange(marks, "used by rank", "max").wait()
        ranks = {
            name: [rank for place, rank in enumerate(places) if marks[place * count + position] == _NOT_USED]
            for position, name in enumerate(self._names)
        }
        unused = {name: without for name, without in ranks.items() if without}
        if not unused:
            return UnusedParametersError(
                "no gradient for some parameters on a worker that was lost in this step",
                parameters={},
            )
        shown = [f"{name} on rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))}" for name, r in unused.items()]
        more = f" and {len(shown) - _NAMES_SHOWN_MAX} more" if len(shown) > _NAMES_SHOWN_MAX else ""
        return UnusedParametersError(
            f"no gradient for {'; '.join(shown[:_NAMES_SHOWN_MAX])}{more}. If the model is meant to leave parameters "
            "out, use find_unused_parameters=True; else look for outputs that do not reach the loss",
            parameters=unused,
        )

    def _tell(self, used: bytearray, among: Literal["any", "all"], *, sits_out: bool) -> None:
        if self._marks is not None:
            self._marks.wait()  # ended long ago, unless it failed
        # The marks of the other workers must not decide about theirs.
        op: NativeOp = "max" if among == "any" else "min"
        self._idle = 0 if among == "any" else 1
        places = places_of(self._set)
        present = bytearray([self._idle]) * len(places)
        present[places.index(_session.rank())] = self._idle if sits_out else 1 - self._idle
        self._marks = self._exchange(used + present, "used", op)

    def _exchange(self, marks: bytearray, name: str, op: NativeOp) -> Handle[bytearray]:
        place = _buffers.locate(marks, writable=True)
        reduction = Reduction(op, priority=_MARKS_PRIORITY, process_set=self._set)
        return submit(f"{self._namespace}/{name}", place, place, reduction, result=marks)
