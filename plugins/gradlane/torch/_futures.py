"""Futures of operations, which a thread completes as soon as the engine reports that they are ready.

An operation on a device is ready when the engine has put all of its work there. Its future then completes: PyTorch has
futures on devices whose waiters wait in their streams.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from gradlane import _core, _session
from gradlane._handle import Handle
from gradlane.errors import Error

T = TypeVar("T")

CALLBACKS_MAX = 1024
"""How many callbacks may wait for further operations at a time."""


def future_on(device: torch.device) -> torch.futures.Future[Any]:
    """A future of a tensor on this device. On CUDA, waiting for it includes the copies in its callbacks."""
    return torch.futures.Future(devices=[device] if device.type == "cuda" else None)


class Completions:
    """Completes futures when the engine reports that their operations are ready, in any order.

    One thread hears of them. Callbacks run on others, because a callback may wait for a further operation, as that
    of PyTorch's PowerSGD hook does.
    """

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
        session.next_ready(0.0)  # reports begin with this call; in a job of one, operations end at once
        self._thread = threading.Thread(target=self._run, name="gradlane-completions", daemon=True)
        self._thread.start()

    def of(self, handle: Handle[T], device: torch.device) -> torch.futures.Future[T]:
        """A future of an operation on a tensor on `device`, which began since there are completions of this job."""
        arrived = future_on(device)

        def land(_: torch.futures.Future[Any]) -> T:
            try:
                return handle.wait()  # in streams of PyTorch's, in which those wait that wait for the future
            except Error as error:
                # PyTorch cannot carry an exception of another type through a future of its reducer.
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        result: torch.futures.Future[T] = arrived.then(land)
        if handle.id is None:
            arrived.set_result(None)
            return result
        with self._lock:
            self._waiting[handle.id] = lambda: arrived.set_result(None)
        if handle.ready():
            self._complete(handle.id)  # that may have been reported before
        return result

    def _complete(self, operation: int) -> None:
        complete = self._taken(operation)
        if complete is not None:
            complete()

    def _taken(self, operation: int) -> Callable[[], None] | None:
        """What completes the operation; None if that is done, or a caller waits for the handle itself."""
        with self._lock:
            return self._waiting.pop(operation, None)

    def _run(self) -> None:
        # A thread is made only if all others are busy.
        with ThreadPoolExecutor(CALLBACKS_MAX, "gradlane-callback") as callbacks:
            while not self._is_stopping:
                try:
                    ready = self._session.next_ready(1.0)
                except Error:
                    return
                for complete in filter(None, map(self._taken, ready)):
                    try:
                        callbacks.submit(complete)
                    except RuntimeError:  # the interpreter ends
                        return

    def _stop(self) -> None:
        self._is_stopping = True
        self._thread.join(5.0)
