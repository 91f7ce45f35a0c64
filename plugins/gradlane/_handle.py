"""An operation on its way, and what remains to be done with its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from gradlane import _core

T = TypeVar("T")
U = TypeVar("U")


class Handle(Generic[T]):
    """The promise of a result; `wait()` redeems it. Can be awaited in asyncio.

    Dropping it does not cancel: the operation goes on, as the other workers count on it.
    """

    __slots__ = ("_finish", "_native", "_result")

    def __init__(self, native: _core.Handle | Several | None, finish: Callable[[], T]) -> None:
        """Wraps `native`, None for a result that is already there; `finish` makes the result when it has landed."""
        self._native = native
        self._finish: Callable[[], T] | None = finish
        self._result: T | None = None

    @property
    def id(self) -> int | None:
        """The engine's number for the operation; None where the engine had nothing to do."""
        return None if self._native is None else self._native.id

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the result and returns it.

        Args:
            timeout: seconds; None waits until the operation ends, which the job's step timeout bounds.
        Raises:
            TimeoutError: not done within `timeout`; the operation goes on and may be waited for again.
            StallError: some workers did not contribute; they are named.
            MismatchError: the workers disagree about the tensor; both sides are named.
            PeerLostError: a member of the job died.
        """
        if self._finish is not None:
            if self._native is not None:
                self._native.wait(timeout)
            self._result, self._finish = self._finish(), None
        return self._result  # type: ignore[return-value]  # T may include None

    def poll(self) -> bool:
        """Whether the operation has ended, well or not; `wait()` then returns at once."""
        return self._native is None or self._native.poll()

    def done(self) -> bool:
        """Another word for `poll`, as futures have it."""
        return self.poll()

    def exception(self) -> BaseException | None:
        """Why the operation failed; None if it did not, or not yet."""
        return None if self._native is None else self._native.error()

    def cancel(self) -> None:
        """Gives the operation up: its memory is not touched any more and `wait()` raises `CancelledError`.

        The other workers still wait for this contribution; cancel on all of them, or not at all.
        """
        if self._native is not None:
            self._native.cancel()

    def then(self, finish: Callable[[T], U]) -> Handle[U]:
        """The same operation with `finish` applied to its result, on the thread that first waits for it."""
        before = self._finish
        if before is None:
            return Handle(None, lambda: finish(self.wait()))
        return Handle(self._native, lambda: finish(before()))

    def __await__(self) -> Generator[object, None, T]:
        import asyncio  # here, as it is most of what importing gradlane would take

        return asyncio.to_thread(self.wait).__await__()


class Several:
    """Operations that were begun together, as one: it ends when all have, by the error of the first that failed."""

    def __init__(self, natives: Sequence[_core.Handle]) -> None:
        """Takes what was begun; at least one."""
        self._natives = natives

    @property
    def id(self) -> int:
        """The number of the first."""
        return self._natives[0].id

    def wait(self, timeout: float | None) -> None:
        """Returns when all results have landed; none of the memory is in use then, also where one failed."""
        due = None if timeout is None else time.monotonic() + timeout
        first: Exception | None = None
        for native in self._natives:
            try:
                native.wait(None if due is None else max(0.0, due - time.monotonic()))
            except Exception as error:
                if not native.poll():  # it is the wait that ended
                    raise
                first = first or error
        if first is not None:
            raise first

    def poll(self) -> bool:
        """Whether all have ended."""
        return all([native.poll() for native in self._natives])

    def error(self) -> BaseException | None:
        """The error of the first that failed, once all have ended."""
        return next((e for e in [n.error() for n in self._natives] if e is not None), None) if self.poll() else None

    def cancel(self) -> None:
        """Gives all of them up."""
        for native in self._natives:
            native.cancel()


def together(natives: Sequence[_core.Handle]) -> _core.Handle | Several:
    """One handle for all of them."""
    return natives[0] if len(natives) == 1 else Several(natives)
