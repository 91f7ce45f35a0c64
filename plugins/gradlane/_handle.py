"""A handle of an operation under way, and the functions that finish its result."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from gradlane import _core
from gradlane._arguments import check_timeout
from gradlane.errors import InvalidArgumentError

T = TypeVar("T")
U = TypeVar("U")


class Streams(Protocol):
    """The streams in which a thread uses results: of a framework that says which they are."""

    def current(self) -> list[tuple[int, int]]:
        """The current stream of the calling thread on each device of the operation: (device, handle)."""

    def join(self, now: list[tuple[int, int]], before: list[tuple[int, int]]) -> None:
        """Makes the streams `now` wait for the work so far of the streams `before`, where they are others."""


class Handle(Generic[T]):
    """A handle of an operation; `wait()` returns its result. Can be awaited in asyncio.

    On a device of a framework that names its streams (PyTorch), `wait()` waits until the engine has put all work on the
    device, and makes the current stream wait for the result. So the thread goes on while the device still reduces, and
    whatever it puts into its stream sees the result. `synchronize()` waits until the result has landed. In host memory
    both are the same.

    Dropping it does not cancel the operation, because the other workers wait for this contribution.
    """

    __slots__ = ("_finish", "_finished_in", "_finishing", "_native", "_result", "_streams")

    def __init__(
        self, native: _core.Handle | Several | None, finish: Callable[[], T], streams: Streams | None = None
    ) -> None:
        """Wraps `native`, None if the operation has ended already; `finish` makes the result once it has landed.

        With `streams`, the result is on devices, and `finish` may put work into the current streams.
        """
        self._native = native
        self._finish: Callable[[], T] | None = finish
        self._finishing = threading.Lock()
        self._finished_in: list[tuple[int, int]] = []
        self._result: T | None = None
        self._streams = streams

    @property
    def native(self) -> _core.Handle | Several | None:
        """The operation; None if the engine had nothing to do."""
        return self._native

    @property
    def id(self) -> int | None:
        """The engine's number of the operation; None if the engine had nothing to do."""
        return None if self._native is None else self._native.id

    def wait(self, timeout: float | None = None) -> T:
        """Makes the current stream wait for the result and returns it; without streams it waits itself.

        An error that a device finds later comes from `synchronize()`, and once from the next operation that this worker
        begins.

        Args:
            timeout: seconds from 0 on; None waits until the operation ends, which the job's step timeout bounds.
        Raises:
            InvalidArgumentError: `timeout` is negative or not a number.
            ForkedProcessError: the process that began the operation forked this one.
            TimeoutError: not done within `timeout`; the operation goes on and may be waited for again.
            StallError: some workers did not contribute; they are named.
            MismatchError: the workers disagree about the tensor; both sides are named.
            PeerLostError: a member of the job died.
            FailedPreconditionError: the current stream is captured into a CUDA graph.
        """
        if self._streams is None:
            return self.synchronize(timeout)
        check_timeout(timeout)
        now = self._streams.current()
        if self._finish is not None:
            if self._native is not None:
                self._native.follow(timeout, now)
            self._finish_once(now)
        if now != self._finished_in:
            self._streams.join(now, self._finished_in)
        return self._result  # type: ignore[return-value]  # T may include None

    def synchronize(self, timeout: float | None = None) -> T:
        """Waits until the operation has ended and returns its result. Arguments and errors: see `wait`."""
        check_timeout(timeout)
        if self._native is not None and (self._finish is not None or self._streams is not None):
            self._native.wait(timeout)
        if self._finish is not None:
            self._finish_once([] if self._streams is None else self._streams.current())
        return self._result  # type: ignore[return-value]

    def _finish_once(self, now: list[tuple[int, int]]) -> None:
        """Makes the result, in these streams, unless another thread has."""
        with self._finishing:
            if self._finish is not None:
                self._result, self._finish = self._finish(), None
                self._finished_in = now

    def poll(self) -> bool:
        """Whether the operation has ended, well or not; `synchronize()` then returns at once."""
        return self._native is None or self._native.poll()

    def ready(self) -> bool:
        """Whether `wait()` returns at once: on devices long before the operation has ended."""
        if self._native is None:
            return True
        return self._native.poll() if self._streams is None else self._native.is_issued()

    def done(self) -> bool:
        """The same as `poll`, under its name in futures."""
        return self.poll()

    def exception(self) -> BaseException | None:
        """The error of the operation; None if it has not failed, or has not ended."""
        return None if self._native is None else self._native.error()

    def cancel(self) -> None:
        """Cancels the operation: `synchronize()` raises `CancelledError` once the memory is free.

        The other workers need this contribution: cancel on all of them, or not at all.
        """
        if self._native is not None:
            self._native.cancel()

    def then(self, finish: Callable[[T], U]) -> Handle[U]:
        """The same operation with `finish` applied to its result, on the thread that first waits for it."""
        before = self._finish
        if before is None:
            return Handle(self._native, lambda: finish(self.wait()), self._streams)
        return Handle(self._native, lambda: finish(before()), self._streams)

    def __await__(self) -> Generator[object, None, T]:
        import asyncio  # here, because it would take most of the time of importing gradlane

        if self._native is not None:
            yield from asyncio.to_thread(self._native.wait, None).__await__()
        return self.wait()  # in this thread, whose streams use the result


class Several:
    """Several operations as one. It ends when all have ended, with the error of the first that failed."""

    def __init__(self, natives: Sequence[_core.Handle | Several]) -> None:
        """Joins at least one operation."""
        self._natives = natives

    @property
    def parts(self) -> Sequence[_core.Handle | Several]:
        """The operations."""
        return self._natives

    @property
    def id(self) -> int:
        """The number of the first operation."""
        return self._natives[0].id

    def wait(self, timeout: float | None) -> None:
        """Returns when all results have landed. No memory is in use then, even if an operation failed."""
        self._each(timeout, lambda native, left: native.wait(left))

    def follow(self, timeout: float | None, streams: list[tuple[int, int]]) -> None:
        """Makes these streams of devices wait for all results."""
        self._each(timeout, lambda native, left: native.follow(left, streams))

    def _each(self, timeout: float | None, wait: Callable[[_core.Handle | Several, float | None], None]) -> None:
        """Waits for every operation, and only then raises the first error."""
        due = None if timeout is None else time.monotonic() + timeout
        first: Exception | None = None
        for native in self._natives:
            try:
                wait(native, None if due is None else max(0.0, due - time.monotonic()))
            except Exception as error:
                if not native.poll():  # it goes on: the wait timed out, or a stream cannot wait
                    raise
                first = first or error
        if first is not None:
            raise first

    def is_issued(self) -> bool:
        """Whether `follow` returns at once."""
        return all([native.is_issued() for native in self._natives])

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


def natives_of(native: _core.Handle | Several | None) -> Iterator[_core.Handle]:
    """The engine's handles of an operation, one by one."""
    if isinstance(native, Several):
        for part in native.parts:
            yield from natives_of(part)
    elif native is not None:
        yield native


def joined(handles: Sequence[Handle[T]]) -> Handle[list[T]]:
    """One handle for several, whose results are in host memory. It yields their results in order."""
    natives = [handle.native for handle in handles if handle.native is not None]
    return Handle(together(natives) if natives else None, lambda: [handle.wait() for handle in handles])


def begin_all(starts: Iterable[Callable[[], Handle[T]]]) -> list[Handle[T]]:
    """Begins the operations of one call, in this order.

    If one cannot begin, those before it are cancelled, so that the other workers hear of it. No memory of the call is in
    use when the error is raised.
    """
    begun: list[Handle[T]] = []
    try:
        for start in starts:
            begun.append(start())
    except BaseException:
        for handle in begun:
            handle.cancel()
        for handle in begun:
            if handle.native is not None:
                with contextlib.suppress(Exception):  # it was cancelled, or it has failed: the first error is the cause
                    handle.native.wait(None)
        raise
    return begun


def wait_any(handles: Sequence[Handle[Any]], timeout: float | None = None) -> int:
    """Wait until one of several operations has ended, well or not: reductions, uses of parameters, or both.

    It does not raise the error of an operation; `wait()` or `synchronize()` of its handle does, and then returns at once.

    Args:
        handles: at least one; as the functions whose names end in `_async` return them.
        timeout: seconds from 0 on; None waits until an operation ends, which the job's step timeout bounds.
    Returns:
        The position in `handles` of the first one that has ended.
    Raises:
        InvalidArgumentError: `handles` is empty, or holds something else.
        StillRunningError: none ended within `timeout`; the operations go on. It is a TimeoutError.
        ForkedProcessError: the process that began an operation forked this one.
    """
    check_timeout(timeout)
    listed = list(handles)
    if not listed:
        raise InvalidArgumentError("handles is empty; give at least one handle to wait for")
    for position, handle in enumerate(listed):
        if not isinstance(handle, Handle):
            raise InvalidArgumentError(
                f"handles[{position}] is {type(handle).__name__}; give handles, as push_pull_async and alike return them"
            )
    return _core.wait_any([list(natives_of(handle.native)) for handle in listed], timeout)


def together(natives: Sequence[_core.Handle | Several]) -> _core.Handle | Several:
    """One handle for all of them."""
    return natives[0] if len(natives) == 1 else Several(natives)
