"""Starts processes for tests, with a deadline and without leftovers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAUNCH_VARIABLES = ("GRADLANE_", "DMLC_", "BYTEPS_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MASTER_")
LAUNCH_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TF_CONFIG")


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

    What still runs at the deadline is killed with everything it started; its code is that of the signal.
    """
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES) and k not in LAUNCH_NAMES}
    deadline = time.monotonic() + timeout
    ended = []
    with contextlib.ExitStack() as outputs:
        started = []
        for command, env in commands:
            output = outputs.enter_context(tempfile.TemporaryFile())
            options = {"env": clean | dict(env), "cwd": cwd, "stdout": output, "stderr": output}
            started.append((subprocess.Popen(command, start_new_session=True, **options), output))
        for process, output in started:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            ended.append(Ended(process.returncode, output.read().decode(errors="replace")))
    return ended
