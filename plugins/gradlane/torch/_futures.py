"""Futures of operations, which a thread completes as soon as the engine reports their ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from gradlane import _core, _session
from gradlane._handle import Handle
from gradlane.errors import Error

T = TypeVar("T")


def future_on(device: torch.device) -> torch.futures.Future[Any]:
    """A future of a tensor on this device. On CUDA, waiting for it includes the copies in its callbacks."""
    return torch.futures.Future(devices=[device] if device.type == "cuda" else None)


class Completions:
    """One thread that completes futures when the engine reports the end of their operations, in any order."""

    _present: Completions | None = None
    _making = threading.Lock()

    @classmethod
    def of_this_job(cls) -> Completions:
        """The completions of the current session."""
        session = _session.session()
        with cls._making:
            if cls._present is None or cls._present._session is not session:
                cls._present = cls(session)
                _session.after_leaving(cls._present._stop)
            return cls._present

    def __init__(self, session: _core.Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._is_stopping = False
        session.next_done(0.0)  # reports begin with this call; in a job of one, operations end at once
        self._thread = threading.Thread(target=self._run, name="gradlane-completions", daemon=True)
        self._thread.start()

    def of(self, handle: Handle[T], device: torch.device) -> torch.futures.Future[T]:
        """A future of an operation on a tensor on `device`, which began since there are completions of this job."""
        arrived = future_on(device)

        def land(_: torch.futures.Future[Any]) -> T:
            try:
                return handle.wait()
            except Error as error:
                # PyTorch cannot carry an exception of another type through a future of its reducer.
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        result: torch.futures.Future[T] = arrived.then(land)
        if handle.id is None:
            arrived.set_result(None)
            return result
        with self._lock:
            self._waiting[handle.id] = lambda: arrived.set_result(None)
        if handle.poll():
            self._complete(handle.id)  # its end may have been reported before
        return result

    def _complete(self, operation: int) -> None:
        with self._lock:
            complete = self._waiting.pop(operation, None)
        if complete is not None:  # otherwise a caller waits for the handle itself
            complete()

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                ended = self._session.next_done(1.0)
            except Error:
                return
            for operation in ended:
                self._complete(operation)

    def _stop(self) -> None:
        self._is_stopping = True
        self._thread.join(5.0)
