"""Ctrl-C ends a process that waits for others, whatever it waits for."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from processes import Running, over

pytestmark = pytest.mark.over("local", "shm", "quic")

PATIENCE = 120.0
"""What each wait would last, in seconds."""

SOON = 2.0 + 4.0
"""The two seconds of a user, and what an interpreter needs to end on cores that are shared."""

JOIN = f"""
print("waiting", flush=True)
import gradlane
gradlane.init(timeout={PATIENCE})
"""

LEAVE = f"""
import gradlane, sys, time
gradlane.init()
gradlane.push_pull(bytearray(8), "work")
print("waiting", flush=True)
if gradlane.rank() == 0:
    gradlane.shutdown({PATIENCE})
time.sleep({PATIENCE})
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_init(transport, tmp_path, rank):
    # Rank 0 waits for rank 1 to join, and rank 1 for rank 0 to publish its address.
    with worker(JOIN, rank, transport, tmp_path) as process:
        process.line("waiting")
        until(lambda: "gl-call" in threads(process.pid))
        interrupted(process)


def test_ctrl_c_ends_shutdown(transport, tmp_path):
    with worker(LEAVE, 0, transport, tmp_path) as first, worker(LEAVE, 1, transport, tmp_path) as second:
        first.line("waiting")
        second.line("waiting")
        until(lambda: "gl-call" in threads(first.pid))
        interrupted(first)


def worker(script, rank, transport, directory):
    """A worker of a job of two without a launcher."""
    place = dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), str(rank))
    sizes = dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), "2")
    job = {"OMPI_MCA_ess_base_jobid": str(os.getpid()), "GRADLANE_STATE_DIR": str(directory)}
    return Running([sys.executable, "-c", script], env=over(transport) | place | sizes | job)


def interrupted(process):
    at = time.monotonic()
    process.interrupt(signal.SIGINT)
    ended = process.end(30.0)
    assert ended.code in (-signal.SIGINT, 130) and "KeyboardInterrupt" in ended.output, ended
    assert time.monotonic() - at < SOON


def threads(pid):
    names = (path / "comm" for path in Path(f"/proc/{pid}/task").iterdir())
    return {name.read_text().strip() for name in names if name.exists()}


def until(condition, timeout=30.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
