"""What all of BytePS's plugins have: the life of the job, ranks, and the speed."""

from __future__ import annotations

import contextlib
import os
import time

import gradlane
from gradlane import _core, _session
from gradlane.errors import InvalidArgumentError, NotInitializedError, UnsupportedError

__all__ = [
    "BytePSBasics",
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
    _note_place()
    _speed.restart()


def shutdown(timeout: float = 10.0) -> None:
    """Leaves the job; see `gradlane.shutdown`. The ranks stay what they were, as in BytePS."""
    _note_place()
    gradlane.shutdown(timeout)


def rank() -> int:
    """This worker's number in the job; after it, the one that it had, and 0 before the first."""
    return _place_now()["rank"]


def size() -> int:
    """The number of workers in the job; after it, the one that there was, and 1 before the first."""
    return _place_now()["size"]


def local_rank() -> int:
    """This worker's number on its host, also between `suspend()` and `resume()`; 0 before the first job."""
    return _place_now()["local_rank"]


def local_size() -> int:
    """The number of workers on this host, as `local_rank()`; 1 before the first job."""
    return _place_now()["local_size"]


_place = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1}
"""BytePS knows these at any time: outside of a job those of the last one."""


def _place_now() -> dict[str, int]:
    with contextlib.suppress(NotInitializedError):
        _note_place()
    return _place


def _note_place() -> None:
    if gradlane.is_initialized() or _session._inherited is not None:
        _place.update(
            rank=gradlane.rank(),
            size=gradlane.size(),
            local_rank=gradlane.local_rank(),
            local_size=gradlane.local_size(),
        )


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
    _note_place()
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


ASYNC_SWITCH = "BYTEPS_ENABLE_ASYNC"


def is_asynchronous() -> bool:
    """Whether the environment asks for asynchronous training.

    Raises:
        InvalidArgumentError: the variable is no number.
    """
    value = os.environ.get(ASYNC_SWITCH, "").strip() or "0"
    try:
        return int(value) != 0
    except ValueError as error:
        raise InvalidArgumentError(f"{ASYNC_SWITCH}={value}; give 1, or 0 for synchronous training") from error


def refuse_asynchronous(door: str, instead: str) -> None:
    """Raises UnsupportedError if the environment asks for asynchronous training, where `door` has none."""
    if is_asynchronous():
        raise UnsupportedError(f"{ASYNC_SWITCH}=1 with {door}, which is synchronous; unset it, or use {instead}")


class BytePSBasics:
    """The functions of this module as methods, from which plugins of other frameworks take them."""

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        """The arguments say where BytePS's library is, and there is none."""
        del pkg_path, args

    init = staticmethod(init)
    shutdown = staticmethod(shutdown)
    suspend = staticmethod(suspend)
    resume = staticmethod(resume)
    size = staticmethod(size)
    local_size = staticmethod(local_size)
    rank = staticmethod(rank)
    local_rank = staticmethod(local_rank)
    get_pushpull_speed = staticmethod(get_pushpull_speed)


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
