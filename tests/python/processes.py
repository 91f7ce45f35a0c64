"""Starts processes for tests, with a deadline and without leftovers."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAUNCH_VARIABLES = ("GRADLANE_", "DMLC_", "BYTEPS_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MASTER_")
LAUNCH_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TF_CONFIG")

SLOWNESS = 4
"""How much slower a machine may be than the one for which tests give their limits: loaded, or with nothing in memory yet.

A limit ends what hangs, and no test waits for it if all goes well. How fast the engine is, `gradlane-bench` tells.
"""

TRANSPORTS = {
    "default": {},  # transport = auto
    "local": {"transport": "quic", "local_reduce": "auto"},
    "shm": {"transport": "shm", "local_reduce": "off"},
    "quic": {"transport": "quic", "local_reduce": "off"},
}
"""By the name of a transport, the settings under which gradients cannot travel in another way.

`local`: the workers of one machine reduce among themselves, and no server takes part. `default`: what there is without
these settings, for tests that are about that; only `local_reduce` is off.
"""

SAY = """
import os

def say(line):
    os.write(1, f"{line}\\n".encode())
"""
"""The beginning of a script for several workers: `say` prints whole lines, as all workers write to one place."""


@dataclass(frozen=True)
class Ended:
    """How a process ended; `output` is standard output and error together."""

    code: int
    output: str


def run_python(script: str, *, env: Mapping[str, str] | None = None, timeout: float = 60.0) -> Ended:
    """Runs Python source in a process of its own."""
    return run_all([([sys.executable, "-c", script], env or {})], timeout=timeout)[0]


def run_all(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], *, timeout: float, cwd: Path | None = None
) -> list[Ended]:
    """Runs commands side by side, each with additions to a clean environment, and waits for all.

    `timeout` is in seconds of a usual machine (`SLOWNESS`). What still runs at the deadline is killed with everything it
    started; its code is that of the signal. The same happens if the tests are interrupted.
    """
    clean = clean_environment()
    deadline = time.monotonic() + timeout * SLOWNESS
    ended = []
    with contextlib.ExitStack() as stack:
        started = []
        for command, env in commands:
            output = stack.enter_context(tempfile.TemporaryFile())
            options = {"env": clean | dict(env), "cwd": cwd, "stdout": output, "stderr": output}
            process = subprocess.Popen(command, start_new_session=True, **options)
            stack.callback(kill_group, process)
            started.append((process, output))
        for process, output in started:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill_group(process)
            output.seek(0)
            ended.append(Ended(process.returncode, output.read().decode(errors="replace")))
    return ended


def run_as_it_is(
    package: str, script: str, folder: Path, *arguments: str, env: Mapping[str, str], timeout: float = 90.0
) -> Ended:
    """Runs a script of BytePS or Horovod in two workers of a job with a server, as `python -m gradlane.compat.<package>`."""
    place = folder / "train.py"
    place.write_text(script)
    as_module = [sys.executable, "-m", f"gradlane.compat.{package}", str(place), *arguments]
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", *as_module]
    [ended] = run_all([(command, env)], timeout=timeout)
    return ended


def kill_group(process: subprocess.Popen) -> None:
    """Kills a leader of a group that has not ended, with everything it started, and waits for its end."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """A port of UDP and TCP that nobody uses now.

    It is below the ports that Linux gives out by itself, so that no other job gets it before the test uses it.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
            udp.bind(("127.0.0.1", port))
            tcp.bind(("127.0.0.1", port))
            return port


class Running:
    """A process that a test talks with while it runs; leaving the context kills what is left of it."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None) -> None:
        """Starts the command with additions to a clean environment, as a group's leader, as a terminal does."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": cwd}
        options |= {"env": clean_environment() | dict(env)}
        self._process = subprocess.Popen(command, start_new_session=True, **options)
        self.pid = self._process.pid
        self.output = ""  # standard output and error together
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def line(self, start: str, timeout: float = 30.0) -> str:
        """The next line with this start; those before it are skipped. Fails if none comes in the seconds of a usual machine."""
        deadline = time.monotonic() + timeout * SLOWNESS
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {start!r} within {timeout * SLOWNESS} s, but:\n{self.output}") from None
            assert line is not None, f"ended without a line {start!r}, but:\n{self.output}"
            if line.startswith(start):
                return line

    def interrupt(self, number: signal.Signals) -> None:
        """Sends a signal to the group, as Ctrl-C in a terminal does."""
        os.killpg(self.pid, number)

    def end(self, timeout: float) -> Ended:
        """Waits for the end, in seconds of a usual machine; the code of a process that did not end in time is that of SIGKILL."""
        try:
            self._process.wait(timeout * SLOWNESS)
        except subprocess.TimeoutExpired:
            self._kill()
        while self._lines.get() is not None:
            pass
        return Ended(self._process.returncode, self.output)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout:
            self.output += line
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


def over(transport: str) -> dict[str, str]:
    """The environment variables that make a process use the transport of this name."""
    return {f"GRADLANE_{name.upper()}": value for name, value in TRANSPORTS[transport].items()}


def clean_environment() -> dict[str, str]:
    """The environment of this process without what a launcher may have put there.

    The workers of a test are all on one machine, and would need no server; most tests are about what servers do.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES) and k not in LAUNCH_NAMES}
    return kept | {"GRADLANE_LOCAL_REDUCE": "off"}


def lives(pid: int) -> bool:
    """Whether the process runs, or is stopped; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> dict[int, str]:
    """The child processes and their command lines."""
    numbers = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return {int(child): Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip() for child in numbers}
