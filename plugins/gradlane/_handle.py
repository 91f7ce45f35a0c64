"""A handle of an operation under way, and the functions that finish its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from gradlane import _core

T = TypeVar("T")
U = TypeVar("U")


class Handle(Generic[T]):
    """A handle of an operation; `wait()` returns its result. Can be awaited in asyncio.

    Dropping it does not cancel the operation, because the other workers wait for this contribution.
    """

    __slots__ = ("_finish", "_finishing", "_native", "_result")

    def __init__(self, native: _core.Handle | Several | None, finish: Callable[[], T]) -> None:
        """Wraps `native`, None if the operation has ended already; `finish` makes the result once it has landed."""
        self._native = native
        self._finish: Callable[[], T] | None = finish
        self._finishing = threading.Lock()
        self._result: T | None = None

    @property
    def native(self) -> _core.Handle | Several | None:
        """The operation; None if the engine had nothing to do."""
        return self._native

    @property
    def id(self) -> int | None:
        """The engine's number of the operation; None if the engine had nothing to do."""
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
            with self._finishing:
                if self._finish is not None:  # else another thread that waits has finished it
                    self._result, self._finish = self._finish(), None
        return self._result  # type: ignore[return-value]  # T may include None

    def poll(self) -> bool:
        """Whether the operation has ended, well or not; `wait()` then returns at once."""
        return self._native is None or self._native.poll()

    def done(self) -> bool:
        """The same as `poll`, under its name in futures."""
        return self.poll()

    def exception(self) -> BaseException | None:
        """The error of the operation; None if it has not failed, or has not ended."""
        return None if self._native is None else self._native.error()

    def cancel(self) -> None:
        """Cancels the operation: `wait()` raises `CancelledError` once the memory is free.

        The other workers need this contribution: cancel on all of them, or not at all.
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
        import asyncio  # here, because it would take most of the time of importing gradlane

        return asyncio.to_thread(self.wait).__await__()


class Several:
    """Several operations as one. It ends when all have ended, with the error of the first that failed."""

    def __init__(self, natives: Sequence[_core.Handle | Several]) -> None:
        """Joins at least one operation."""
        self._natives = natives

    @property
    def id(self) -> int:
        """The number of the first operation."""
        return self._natives[0].id

    def wait(self, timeout: float | None) -> None:
        """Returns when all results have landed. No memory is in use then, even if an operation failed."""
        due = None if timeout is None else time.monotonic() + timeout
        first: Exception | None = None
        for native in self._natives:
            try:
                native.wait(None if due is None else max(0.0, due - time.monotonic()))
            except Exception as error:
                if not native.poll():  # the wait timed out
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
        """Cancels all of them."""
        for native in self._natives:
            native.cancel()


def together(natives: Sequence[_core.Handle | Several]) -> _core.Handle | Several:
    """One handle for all of them."""
    return natives[0] if len(natives) == 1 else Several(natives)
