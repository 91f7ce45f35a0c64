"""The process-wide default session: from `init()` to `shutdown()`, the interpreter's exit or a fork.

The native module has no globals and can hold many sessions. The one default session of a process is a convenience of
Python, and exists only here.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gradlane import _bootstrap, _core, _ending
from gradlane._arguments import check_timeout
from gradlane.errors import ForkedProcessError, InvalidArgumentError, NotInitializedError

if TYPE_CHECKING:
    from torch.distributed import Store

_LEAVE_TIMEOUT = 10.0

_lock = threading.RLock()
_job: _bootstrap.Job | None = None
_generation = 0
_longest = (0, 0.0)
"""The generation of a job, and the longest timeout of which `note_timeout` does not warn in it."""
_followers: list[Callable[[], None]] = []
_visitors: list[Callable[[_core.Session | None], None]] = []
# A forked child keeps the parent's session but neither uses nor frees it: freeing would wait for threads that exist
# only in the parent.
_inherited: _bootstrap.Job | None = None


def init(
    lazy: bool = True,
    *,
    rank: int | None = None,
    size: int | None = None,
    local_rank: int | None = None,
    servers: int | None = None,
    coordinator: str | None = None,
    config: Mapping[str, object] | None = None,
    timeout: float | None = None,
) -> None:
    """Joins the job that this process was started for; a second call does nothing.

    Without arguments the job is found in the environment: `gradlane run`, `DMLC_*`, torchrun, `TF_CONFIG`, MPI, Slurm.
    Otherwise this is a job of one, in which every operation works and needs no server. If the launcher starts no
    servers, rank 0 embeds them.

    Args:
        lazy: accepted for BytePS scripts; has no effect.
        rank: this worker's rank; None takes it from the environment or lets the coordinator assign one.
        size: number of workers.
        local_rank: rank among the workers on this host.
        servers: number of servers.
        coordinator: its address, or a join string.
        config: settings by name, such as `{"step_timeout": "60s"}`; they go before environment and file.
        timeout: seconds for the whole job to form; None takes the setting `join_timeout`.
    Raises:
        ConfigError: the environment or the arguments contradict themselves, or a setting is unknown.
        NotFormedError: some members did not join in time; the message names them.
        ForkedProcessError: the parent of this forked process takes part in a job.
    """
    del lazy
    check_timeout(timeout)
    given = {"rank": rank, "size": size, "local_rank": local_rank, "servers": servers, "coordinator": coordinator}
    arguments = {name: str(value) for name, value in given.items() if value is not None}
    settings = {name: str(value) for name, value in (config or {}).items()}
    _join(arguments, settings, timeout)


def join_beside(store: Store) -> None:
    """Joins the job that this process was started for, if it has not yet, while PyTorch makes its first process group.

    Args:
        store: that of the group. Launchers without a store of their own give the join string through it.
    """
    _join({}, {}, None, store)


def _join(
    arguments: dict[str, str], settings: dict[str, str], timeout: float | None, store: Store | None = None
) -> None:
    global _job, _generation
    with _lock:
        refuse_in_fork()
        if _job is not None:
            _refuse_another(_job, arguments)
            return
        _job = _bootstrap.enter(arguments, settings, timeout, _generation, store)
        _generation += 1
        for visit in _visitors:
            visit(_job.session)
    _ending.watch(_give_up)


def shutdown(timeout: float = _LEAVE_TIMEOUT) -> None:
    """Leaves the job; pending operations fail. Repeating it does nothing. The interpreter's exit calls it too.

    Args:
        timeout: seconds to wait for the other members to leave before servers embedded in this process stop.
    """
    _end(lambda job: job.leave(timeout))


def is_initialized() -> bool:
    """Whether this process takes part in a job."""
    return _job is not None


def current() -> _bootstrap.Job:
    """The job of this process.

    Raises:
        NotInitializedError: before `init()` or after `shutdown()`.
        ForkedProcessError: in a process forked from a member of a job.
    """
    job = _job
    if job is None:
        refuse_in_fork()
        raise NotInitializedError("this process takes part in no job; call gradlane.init() first")
    return job


def session() -> _core.Session:
    """The session of this process; fails as `current` does."""
    return current().session


def fork_error() -> ForkedProcessError | None:
    """Why nothing can be reduced in this process, if it was forked from a member of a job."""
    if _inherited is None:
        return None
    return ForkedProcessError(
        f"process {os.getpid()} was forked from worker {_inherited.rank}, which takes part in a job; the engine does "
        "not work in a forked child, which can only ask for rank(), size() and alike. Start processes with "
        "multiprocessing's spawn or forkserver method"
    )


def refuse_in_fork() -> None:
    """Raises in a process that was forked from a member of a job. Costs next to nothing elsewhere.

    Raises:
        ForkedProcessError: the engine does not work here.
    """
    error = fork_error()
    if error is not None:
        raise error


def after_leaving(follow: Callable[[], None]) -> None:
    """Calls `follow` once, after this process has left its current job and no operation is in flight any more."""
    _followers.append(follow)


def whenever_joined(visit: Callable[[_core.Session | None], None]) -> None:
    """Calls `visit` with the session of each job that this process joins, the present one too; with None after it left."""
    with _lock:
        _visitors.append(visit)
        if _job is not None:
            visit(_job.session)


def rank() -> int:
    """This worker's number in the job, from 0. A forked process has the number of its parent."""
    return session().rank if _inherited is None else _inherited.rank


def size() -> int:
    """The number of workers in the job. A job that goes on without lost workers has fewer then, and those keep their ranks."""
    return session().size if _inherited is None else _inherited.size


def first_size() -> int:
    """The number of workers with which the job began. Ranks are below it, also of those that are left if some were lost."""
    return session().first_size


def ranks() -> tuple[int, ...]:
    """The ranks of the workers in the job, in their order."""
    return tuple(session().ranks)


def local_rank() -> int:
    """This worker's number on its host, from 0."""
    return _place().local_rank


def local_size() -> int:
    """The number of workers on this host."""
    return _place().local_size


def node_rank() -> int:
    """This host's number in the job, from 0."""
    return _place().node_rank


def num_nodes() -> int:
    """The number of hosts with workers."""
    return _place().num_nodes


def _place() -> _bootstrap.Launch:
    """The place of this process in its job, also in a forked process."""
    return current().launch if _inherited is None else _inherited.launch


def compression() -> _bootstrap.CompressionSettings:
    """The settings of compression; those of nobody before `init()`."""
    job = _job
    return _NO_SETTINGS if job is None else job.compression


_NO_SETTINGS = _bootstrap.CompressionSettings("none", 0, False)


def note_timeout(timeout: float | None) -> None:
    """Warns once in a job if an operation is to wait longer for other workers than the job's step timeout allows."""
    global _longest
    job = _job
    if timeout is None or job is None or job.size == 1:
        return
    if _longest[0] != _generation:
        _longest = _generation, job.step_timeout
    if timeout <= _longest[1]:
        return
    _longest = _generation, math.inf
    warnings.warn(
        f"a timeout of {timeout:g} s is longer than the job's step timeout of {job.step_timeout:g} s, after which a "
        "tensor that waits for a worker fails on all workers; to wait longer, set GRADLANE_STEP_TIMEOUT (or step_timeout "
        "in init) for the whole job",
        stacklevel=3,
    )


def generation() -> int:
    """How many jobs this process has joined. State of an earlier generation is stale."""
    return _generation


def _give_up(cause: str) -> None:
    """Ends the job of this process, and for all others, because of `cause`."""
    _end(lambda job: job.give_up(cause))


def _end(leave: Callable[[_bootstrap.Job], None]) -> None:
    global _job
    with _lock:
        if _job is None:
            return
        job, _job = _job, None
        followers, _followers[:] = _followers[:], []
    _ending.ignore()
    leave(job)
    for follow in followers:
        follow()
    for visit in _visitors:
        visit(None)


def _refuse_another(job: _bootstrap.Job, arguments: Mapping[str, str]) -> None:
    for word, present in (("rank", job.session.rank), ("size", job.session.first_size)):
        wanted = arguments.get(word, str(present))
        if wanted != str(present):
            raise InvalidArgumentError(
                f"this process is in a job already, with {word} {present}, not {wanted}; call gradlane.shutdown() first"
            )


def _after_fork_in_child() -> None:
    global _job, _inherited, _lock
    _lock = threading.RLock()  # a thread of the parent may have held it
    if _job is not None:
        _job, _inherited = None, _job


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(shutdown)
