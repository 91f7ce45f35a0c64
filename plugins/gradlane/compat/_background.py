"""Operations of several steps that go on while the program does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from gradlane._handle import Handle
from gradlane.errors import TimeoutError, UnsupportedError

T = TypeVar("T")


class _Background:
    """A piece of work on a thread of its own, with the methods of the engine's handles."""

    id = 0

    def __init__(self, work: Callable[[], object]) -> None:
        self.ended = threading.Event()
        self._error: BaseException | None = None
        self.result: object = None

        def run() -> None:
            try:
                self.result = work()
            except BaseException as error:
                self._error = error
            finally:
                self.ended.set()

        # A daemon, because the end of the program must not wait for workers that are gone.
        threading.Thread(target=run, name="gl-exchange", daemon=True).start()

    def wait(self, timeout: float | None) -> None:
        """Waits at most `timeout` seconds for the end. Without one, the deadlines of the steps end it."""
        if not self.ended.wait(timeout):
            raise TimeoutError(f"not done after {timeout:.1f} s")
        if self._error is not None:
            raise self._error

    def follow(self, timeout: float | None, streams: list[tuple[int, int]]) -> None:
        """The same: results are in host memory."""
        del streams
        self.wait(timeout)

    def poll(self) -> bool:
        return self.ended.is_set()

    is_issued = poll

    def error(self) -> BaseException | None:
        return self._error

    def cancel(self) -> None:
        raise UnsupportedError("an exchange of several steps cannot be cancelled; wait for it")


_in_flight: dict[str, threading.Event] = {}
"""By name: the end of the newest exchange on a thread of its own."""
_in_flight_lock = threading.Lock()


def in_turn(name: str, work: Callable[[], T], *, waits: bool) -> Handle[T]:
    """Does `work` after the earlier exchanges of this name have ended, because they use the same names in the engine.

    The handle yields its result. With `waits` the caller's thread does the work when it waits, else a thread of its own.
    """
    with _in_flight_lock:
        for ended in [other for other, end in _in_flight.items() if end.is_set()]:
            del _in_flight[ended]
        before = _in_flight.get(name)

        def after_others() -> T:
            if before is not None:
                before.wait()  # the deadlines of its steps end it
            return work()

        if waits:
            return Handle(None, after_others)
        task = _Background(after_others)
        _in_flight[name] = task.ended
    return Handle(cast(Any, task), lambda: cast(T, task.result))
