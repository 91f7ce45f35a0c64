"""Futures of operations, which a thread completes as soon as the engine reports that they are ready.

An operation on a device is ready when the engine has put all of its work there. Its future then completes: PyTorch has
futures on devices whose waiters wait in their streams.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from gradlane import _core, _session
from gradlane._handle import Handle, natives_of
from gradlane.errors import Error

T = TypeVar("T")

CALLBACKS_MAX = 1024
"""How many callbacks may wait for further operations at a time."""

_LOOK_EVERY = 1.0
"""Seconds between two looks for operations that are ready and were not reported."""


def future_on(device: torch.device) -> torch.futures.Future[Any]:
    """A future of a tensor on this device. On CUDA, waiting for it includes the copies in its callbacks."""
    return torch.futures.Future(devices=[device] if device.type == "cuda" else None)


class _Arrival:
    """A future that is completed once all parts of an operation are ready."""

    def __init__(self, handle: Handle[Any], future: torch.futures.Future[Any]) -> None:
        self._parts: Iterator[_core.Handle] = natives_of(handle.native)
        self._future = future
        self.part: _core.Handle | None = None
        """The part that it waits for."""

    def next_part(self) -> _core.Handle | None:
        """The next part to wait for."""
        self.part = next(self._parts, None)
        return self.part

    def complete(self) -> None:
        """Lets those go on that wait for the future."""
        self._future.set_result(None)


class Completions:
    """Completes futures when the engine reports that their operations are ready, in any order.

    One thread hears of them. Callbacks run on others, because a callback may wait for a further operation, as that
    of PyTorch's PowerSGD hook does. Each future also completes when its operation is given up, when the session has
    ended, and in a forked child, all with an error.
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
        # By the number of the part that each waits for; several may wait for one part.
        self._waiting: dict[int, list[_Arrival]] = {}
        self._is_stopping = False
        _known.add(self)
        session.next_ready(0.0)  # reports begin with this call; in a job of one, operations end at once
        self._thread = threading.Thread(target=self._run, name="gl-completions", daemon=True)
        self._thread.start()

    def of(self, handle: Handle[T], device: torch.device) -> torch.futures.Future[T]:
        """A future of an operation on a tensor on `device`, which began since there are completions of this job."""
        arrived = future_on(device)

        def land(_: torch.futures.Future[Any]) -> T:
            try:
                # In streams of PyTorch's, in which those wait that wait for the future.
                return handle.wait()
            except Error as error:
                # PyTorch cannot carry an exception of another type through a future of its reducer.
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        result: torch.futures.Future[T] = arrived.then(land)
        self._advance(_Arrival(handle, arrived), lambda complete: complete())
        return result

    def _advance(self, arrival: _Arrival, run: Callable[[Callable[[], None]], object]) -> None:
        """Has `arrival` wait for its next part that is not ready; completes it by `run` if all are."""
        while (part := arrival.next_part()) is not None:
            with self._lock:
                if self._is_stopping:
                    break
                self._waiting.setdefault(part.id, []).append(arrival)
            if not part.is_issued():
                return
            # It may have been reported before. If it is reported now, the thread goes on with the arrival.
            with self._lock:
                waiting = self._waiting.get(part.id, [])
                if arrival not in waiting:
                    return
                waiting.remove(arrival)
                if not waiting:
                    del self._waiting[part.id]
        run(arrival.complete)

    def _run(self) -> None:
        # A thread is made only if all others are busy.
        with ThreadPoolExecutor(CALLBACKS_MAX, "gl-callback") as callbacks:

            def run(complete: Callable[[], None]) -> None:
                try:
                    callbacks.submit(complete)
                except RuntimeError:  # the interpreter ends, and somebody may still wait
                    complete()

            look = time.monotonic()
            while not self._is_stopping:
                try:
                    ready = self._session.next_ready(_LOOK_EVERY)
                except Error:
                    break
                if time.monotonic() >= look:
                    look = time.monotonic() + _LOOK_EVERY
                    ready += self._unreported()
                for operation in ready:
                    for arrival in self._taken(operation):
                        self._advance(arrival, run)
            for arrival in self._rest():
                run(arrival.complete)

    def _taken(self, operation: int) -> list[_Arrival]:
        """Those that waited for a part."""
        with self._lock:
            return self._waiting.pop(operation, [])

    def _unreported(self) -> list[int]:
        """Operations that somebody waits for, and that are ready whether or not the engine has said so."""
        with self._lock:
            parts = [waiting[0].part for waiting in self._waiting.values() if waiting]
        return [part.id for part in parts if part is not None and part.is_issued()]

    def _rest(self) -> list[_Arrival]:
        """Takes all, because the session has ended. Whoever comes later does not wait."""
        with self._lock:
            self._is_stopping = True
            rest, self._waiting = [arrival for waiting in self._waiting.values() for arrival in waiting], {}
        return rest

    def fail_in_fork(self) -> None:
        """In a forked child: completes all futures, whose `wait` then raises, because nothing else would end it."""
        waiting, self._waiting, self._lock = self._waiting, {}, threading.Lock()
        for arrival in [arrival for arrivals in waiting.values() for arrival in arrivals]:
            with contextlib.suppress(RuntimeError):  # of a device, which does not work in a fork either
                arrival.complete()

    def _stop(self) -> None:
        self._is_stopping = True
        self._thread.join(5.0)


_known: weakref.WeakSet[Completions] = weakref.WeakSet()
"""Those of this process, and in a forked child those of its parent."""


def _after_fork_in_child() -> None:
    Completions._making, Completions._present = threading.Lock(), None
    for completions in list(_known):
        completions.fail_in_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
