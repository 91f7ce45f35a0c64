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
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self.result: object = None

        def run() -> None:
            try:
                self.result = work()
            except BaseException as error:
                self._error = error
            finally:
                self._ended.set()

        # A daemon, because the end of the program must not wait for workers that are gone.
        threading.Thread(target=run, name="gradlane-exchange", daemon=True).start()

    def wait(self, timeout: float | None) -> None:
        """Waits at most `timeout` seconds for the end. Without one, the deadlines of the steps end it."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"not done after {timeout:.1f} s")
        if self._error is not None:
            raise self._error

    def follow(self, timeout: float | None, streams: list[tuple[int, int]]) -> None:
        """The same: results are in host memory."""
        del streams
        self.wait(timeout)

    def poll(self) -> bool:
        return self._ended.is_set()

    is_issued = poll

    def error(self) -> BaseException | None:
        return self._error

    def cancel(self) -> None:
        raise UnsupportedError("an exchange of several steps cannot be cancelled; wait for it")


def in_background(work: Callable[[], T]) -> Handle[T]:
    """Does `work` on a thread of its own; the handle yields its result."""
    task = _Background(work)
    return Handle(cast(Any, task), lambda: cast(T, task.result))
