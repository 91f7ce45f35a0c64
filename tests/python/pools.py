"""Elastic jobs whose workers a test starts one by one."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from processes import Running, free_port, over, run_all

GRADLANE = [sys.executable, "-m", "gradlane"]


class Pool:
    """A coordinator and a server that wait for workers, which a test starts by itself."""

    def __init__(self, folder: Path, transport: str, workers: int, elastic: str, **settings: str) -> None:
        self._stack = ExitStack()
        self._folder, join = folder, folder / "join"
        self._env = over(transport) | {"GRADLANE_STATE_DIR": str(folder / "state"), "GRADLANE_ELASTIC": elastic}
        self._env |= {f"GRADLANE_{name.upper()}": value for name, value in settings.items()}
        self.stop = folder / "stop"
        roles = ["coordinator", "-n", str(workers), "-s", "1", "--bind", f"127.0.0.1:{free_port()}"]
        self._coordinator = [*GRADLANE, *roles, "--join-file", str(join)]
        self.coordinator = self._start(self._coordinator, {})
        self._join = {"GRADLANE_JOIN_FILE": str(join)}
        self._start([*GRADLANE, "server"], self._join)

    def replace_coordinator(self) -> None:
        """Kills the coordinator, and starts another one that goes on with the job."""
        self.coordinator.interrupt(signal.SIGKILL)
        self.coordinator.end(30)
        self.coordinator = self._start([*self._coordinator, "--resume"], {})

    def worker(self, script: str, *through: str) -> Running:
        """One of the first workers, perhaps as the child of another program."""
        return self._start([*through, sys.executable, "-c", script, str(self.stop)], self._join)

    def newcomer(self, script: str, *through: str) -> Running:
        """One that has a token, because the job lets nobody else in once it has formed. Arguments as for `worker`."""
        file = self._folder / f"token{len(list(self._folder.glob('token*')))}"
        command = [*GRADLANE, "token", "new", "--role", "worker", "--uses", "1", "--ttl", "10m", "--join-file", str(file)]
        [made] = run_all([(command, self._env)], timeout=30)
        assert made.code == 0, made.output
        return self._start([*through, sys.executable, "-c", script, str(self.stop)], {"GRADLANE_JOIN_FILE": str(file)})

    def _start(self, command: list[str], env: dict[str, str]) -> Running:
        return self._stack.enter_context(Running(command, env=self._env | env))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
