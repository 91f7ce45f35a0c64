"""What all of BytePS's plugins have: the life of the job, ranks, and the speed."""

from __future__ import annotations

import os
import time

import gradlane
from gradlane import _core, local_rank, local_size, rank, shutdown, size
from gradlane.errors import InvalidArgumentError

__all__ = [
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]

_BUCKET_SECONDS = 10.0
_NO_SPEED = (0, -5.0)


def init(lazy: bool = True) -> None:
    """Joins the job that the environment describes: `DMLC_*` and `BYTEPS_LOCAL_*`, or any other launcher's variables.

    Args:
        lazy: has no effect; a member joins at once, and tensors are declared at their first use.
    Raises:
        ConfigError: the environment contradicts itself.
        NotFormedError: some members did not join in time; the message names them.
    """
    gradlane.init(lazy)
    _speed.restart()


def suspend() -> None:
    """Leaves the job, so that `resume` can join another one. All workers must do so together."""
    shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins a job of another size, whose coordinator and servers have been started again at the same address.

    Args:
        num_workers: processes that train, on all hosts together.
        num_servers: its summation servers.
        global_rank: this worker's rank among them.
        context: has no effect, as in BytePS.
    Raises:
        InvalidArgumentError: this process is still a member of the job before; call `suspend()` first. Or the workers
            cannot be shared evenly among hosts.
        NotFormedError: some members did not join in time; the message names them.
    """
    del context
    if gradlane.is_initialized():
        raise InvalidArgumentError("resume() of a worker that has not left its job; call suspend() first")
    if _core.detect_launch({})["source"] == "dmlc":
        os.environ.update(_described(num_workers, num_servers, global_rank))
        gradlane.init()
    else:
        gradlane.init(rank=global_rank, size=num_workers, servers=num_servers)
    _speed.restart()


def _described(num_workers: int, num_servers: int, global_rank: int) -> dict[str, str]:
    """The variables of BytePS that describe this worker's next job. BytePS changes them too.

    They say where the coordinator is, and place this worker on its host; arguments of `init` would take their place.
    """
    local_size = int(os.environ.get("BYTEPS_LOCAL_SIZE") or 1)
    hosts, rest = divmod(num_workers, local_size)
    if rest:
        raise InvalidArgumentError(
            f"resume() with num_workers={num_workers} where each host has BYTEPS_LOCAL_SIZE={local_size} workers; give a "
            "multiple of that"
        )
    described = {
        "DMLC_NUM_WORKER": hosts,
        "DMLC_NUM_SERVER": num_servers,
        "DMLC_WORKER_ID": global_rank // local_size,
        "BYTEPS_GLOBAL_RANK": global_rank,
    }
    return {name: str(value) for name, value in described.items()}


def get_pushpull_speed() -> tuple[int, float]:
    """The speed of this worker's reductions: milliseconds since 1970, and 10^6 bytes a second since the last answer.

    As in BytePS, there is an answer every ten seconds; in between it is `(0, -5.0)`.
    """
    return _speed.ask()


class _Speed:
    """Bytes that were reduced, and when that was last asked."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A job has begun, whose counters begin at 0."""
        self._at = time.monotonic()
        self._bytes = 0.0

    def ask(self) -> tuple[int, float]:
        now = time.monotonic()
        passed = now - self._at
        if passed < _BUCKET_SECONDS:
            return _NO_SPEED
        metrics = gradlane.metrics()
        # On one machine nothing is pushed; on several, what is pushed was reduced on the machine before.
        reduced = float(max(metrics["push_bytes"], metrics["local_bytes"]))
        speed = (reduced - self._bytes) / passed / 1e6
        self._at, self._bytes = now, reduced
        return time.time_ns() // 1_000_000, speed


_speed = _Speed()
