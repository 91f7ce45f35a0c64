"""Servers inside a Python process, for notebooks, tests and custom launchers."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from gradlane import _core, _stacks
from gradlane.errors import FailedPreconditionError


class Server:
    """A coordinator and its servers in this process; the same as the command `gradlane server`.

    Use it as a context manager, or call `start` and `stop`. A server that was stopped does not start again.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        *,
        workers: int = 1,
        servers: int = 1,
        job: str = "job",
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Describes the server; nothing runs yet.

        Args:
            bind: address and UDP port; port 0 selects a free one.
            workers: how many workers the job has.
            servers: how many servers to run here.
            job: the job's name.
            config: settings by name.
        """
        self._bind, self._workers, self._servers, self._job = bind, workers, servers, job
        self._settings = {name: str(value) for name, value in (config or {}).items()}
        self._running: _core.Embedded | None = None
        self._stopped = False

    @property
    def join(self) -> str:
        """The join string, with which a worker finds the job and proves that it belongs to it. Keep it secret.

        Give it to `init(coordinator=...)` or put it into the variable GRADLANE_JOIN.
        """
        if self._running is None:
            raise FailedPreconditionError("the server does not run; call start() first")
        return self._running.join

    def start(self) -> Self:
        """Starts the server. Does nothing if it runs already.

        Raises:
            FailedPreconditionError: it was stopped.
            UnavailableError: the address cannot be bound.
        """
        if self._stopped:
            raise FailedPreconditionError("the server was stopped; make a new one")
        if self._running is None:
            self._running = _core.Embedded(
                bind=self._bind, workers=self._workers, servers=self._servers, job=self._job, settings=self._settings
            )
            _stacks.started(self._running)
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """Waits up to `timeout` seconds for the members to leave, then stops. Repeating it does nothing."""
        self._stopped = True
        running, self._running = self._running, None
        if running is not None:
            try:
                running.stop(timeout)
            finally:
                _stacks.stopped(running)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
