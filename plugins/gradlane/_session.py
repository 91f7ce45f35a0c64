"""The process-wide default session: from `init()` to `shutdown()`, the interpreter's exit or a fork.

The native module has no globals and can hold many sessions. The one default session of a process is a convenience of
Python, and exists only here.

An elastic job may form again, with other workers. Its process then has another session in the same job: a new
*generation*, in which all names begin anew, and the same *enrolment*. Another enrolment begins with `init()`, and where the
job forms again because a server was lost, after which a script begins anew.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from gradlane import _bootstrap, _core, _ending
from gradlane._arguments import check_timeout
from gradlane.errors import Error, FailedPreconditionError, ForkedProcessError, InvalidArgumentError, NotInitializedError

if TYPE_CHECKING:
    from torch.distributed import Store

_LEAVE_TIMEOUT = 10.0

_lock = threading.RLock()
_job: _bootstrap.Job | None = None
_generation = 0
_enrolment = 0
_is_newcomer = False
_longest = (0, 0.0)
"""The generation of a job, and the longest timeout of which `note_timeout` does not warn in it."""
_followers: list[Callable[[], None]] = []
_visitors: list[Callable[[_core.Session | None], None]] = []
_joining: list[_bootstrap.Joining] = []
# A forked child keeps the parent's session but neither uses nor frees it: freeing would wait for threads that exist
# only in the parent.
_inherited: _bootstrap.Job | None = None


class Moving(Protocol):
    """What keeps something of a session that has to come along when the job forms again."""

    def before_forming_again(self) -> None:
        """Ends what is under way in the present session, and keeps what the next one needs. It waits for no new call of others."""


_moving: weakref.WeakSet[Moving] = weakref.WeakSet()


def init(
    lazy: bool = True,
    *,
    rank: int | None = None,
    size: int | None = None,
    local_rank: int | None = None,
    servers: int | None = None,
    coordinator: str | None = None,
    elastic: str | None = None,
    config: Mapping[str, object] | None = None,
    timeout: float | None = None,
) -> None:
    """Joins the job that this process was started for; a second call does nothing.

    Without arguments the job is found in the environment: `gradlane run`, `DMLC_*`, torchrun, `TF_CONFIG`, MPI, Slurm.
    Otherwise this is a job of one, in which every operation works and needs no server. If the launcher starts no
    servers, rank 0 embeds them.

    If an elastic job trains already, this returns once the other workers have come to the end of a step and have taken
    this one in. They wait for it then until it begins its first step; see `gradlane.elastic`.

    Args:
        lazy: accepted for BytePS scripts; has no effect.
        rank: this worker's rank; None takes it from the environment or lets the coordinator assign one.
        size: number of workers.
        local_rank: rank among the workers on this host.
        servers: number of servers.
        coordinator: its address, or a join string.
        elastic: the fewest and the most workers of an elastic job, such as `"2:8"`, equal on all members; the setting of
            that name. It needs a coordinator that no worker embeds.
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
    if elastic is not None:
        if settings.setdefault("elastic", elastic) != elastic:
            raise InvalidArgumentError(
                f"elastic={elastic!r} contradicts config={{'elastic': {settings['elastic']!r}}}; give one of the two"
            )
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
    global _job, _generation, _enrolment, _is_newcomer
    with _lock:
        refuse_in_fork()
        if _job is not None:
            _refuse_another(_job, arguments)
            return
        try:
            _job = _bootstrap.enter(arguments, settings, timeout, _generation, _tell_joining, store)
        except BaseException:
            for visit in _visitors:
                visit(None)
            raise
        _generation += 1
        _enrolment += 1
        _is_newcomer = _job.session.times_formed > 0
        for visit in _visitors:
            visit(_job.session)
    _ending.watch(_give_up)


def shutdown(timeout: float = _LEAVE_TIMEOUT) -> None:
    """Leaves the job; pending operations fail. Repeating it does nothing. The interpreter's exit calls it too.

    Args:
        timeout: seconds to wait for the other members to leave before servers embedded in this process stop.
    """
    _end(lambda job: job.leave(timeout))


def join_again() -> None:
    """Goes on in the job as it forms again, after the session has said so. Blocks until it has formed.

    What has to come along is asked first (`move_along`). Callbacks of `after_leaving` run as if this process had left one
    job and joined the next.

    Raises:
        NotFormedError: the workers did not meet in time. This process is in no job then; the same holds for any other error.
        NotInitializedError: this process takes part in no job.
    """
    with _lock:
        for one in list(_moving):
            one.before_forming_again()
        _go_on(current())


def begin_anew() -> None:
    """Joins the job again that forms again because a server was lost, with all that it kept. Blocks until it has formed.

    Nothing comes along: for wrappers, names and trainings this is another job, so that a script makes them anew.

    Raises:
        NotFormedError, NotInitializedError: as `join_again`.
    """
    global _enrolment
    with _lock:
        _go_on(current())
        _enrolment += 1
        end_newcomer()


def _go_on(job: _bootstrap.Job) -> None:
    """Replaces the session by one of the next formation of its job."""
    global _job, _generation, _is_newcomer
    with _lock:
        try:
            session = job.session.join_again()
        except BaseException:
            _job, _is_newcomer = None, False
            _ending.ignore()
            with contextlib.suppress(Error):
                job.session.shutdown(0.0)
            raise
        finally:
            followers, _followers[:] = _followers[:], []
            for follow in followers:
                follow()
            for visit in _visitors:
                visit(None)
        _job = dataclasses.replace(
            job, session=session, launch=job.launch.placed(session), rank=session.rank, size=session.size
        )
        _generation += 1
        for visit in _visitors:
            visit(session)


def is_newcomer() -> bool:
    """Whether this process has come to a job that trained before, and has not been given its state yet."""
    return _is_newcomer


def end_newcomer() -> None:
    """From now on this process makes the same calls as the other workers, beginning with the exchange of the state."""
    global _is_newcomer
    _is_newcomer = False


def passes_over(call: str, *, is_broadcast: bool = False) -> bool:
    """Whether this worker leaves a call out, because it is a newcomer and the others made that call long ago.

    A broadcast at the beginning of a script brings all workers to the same values. A newcomer gets these with the state, at
    its first step.

    Args:
        call: for errors, such as the name of a tensor.
        is_broadcast: whether the call only gives this worker the values of another one.
    Raises:
        FailedPreconditionError: this is a newcomer, and nobody would answer the call.
    """
    if not _is_newcomer:
        return False
    if is_broadcast:
        return True
    raise FailedPreconditionError(
        f"{call}: this worker came to a job that trains already, and its first collective is that of "
        "gradlane.elastic.steps; begin a step, which gives it the state of the others, before it reduces anything"
    )


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


def move_along(one: Moving) -> None:
    """Asks `one`, as long as it lives, before this process goes on in a job that forms again."""
    _moving.add(one)


def whenever_joined(visit: Callable[[_core.Session | None], None]) -> None:
    """Calls `visit` with the session of each job that this process joins, the present one too; with None after it left, or
    could not join."""
    with _lock:
        _visitors.append(visit)
        if _job is not None:
            visit(_job.session)


def whenever_joining(visit: _bootstrap.Joining) -> None:
    """Calls `visit` whenever this process is about to join a job of several workers. `whenever_joined` tells how that ended."""
    _joining.append(visit)


def _tell_joining(settings: Mapping[str, str], embedded: _core.Embedded | None) -> None:
    for visit in _joining:
        visit(settings, embedded)


def rank() -> int:
    """This worker's number in the job, from 0. A forked process has the number of its parent."""
    return session().rank if _inherited is None else _inherited.rank


def size() -> int:
    """The number of workers in the job. A job that goes on without lost workers has fewer then, and those keep their ranks."""
    return session().size if _inherited is None else _inherited.size


def is_alone() -> bool:
    """Whether no other worker is in the job or can ever come to it, so that a compiled function needs no reductions."""
    entrance = current().launch.entrance
    return not isinstance(entrance, BaseException) and entrance["way"] == "alone"


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
    """How many sessions this process has had: one for each formation of each job. State of an earlier generation is stale."""
    return _generation


def enrolment() -> int:
    """How many jobs this process has joined. It stays the same when an elastic job forms again, and its training goes on."""
    return _enrolment


def _give_up(cause: str) -> None:
    """Ends the job of this process, and for all others, because of `cause`."""
    _end(lambda job: job.give_up(cause))


def _end(leave: Callable[[_bootstrap.Job], None]) -> None:
    global _job, _is_newcomer
    with _lock:
        if _job is None:
            return
        job, _job = _job, None
        _is_newcomer = False
        followers, _followers[:] = _followers[:], []
    _ending.ignore()
    leave(job)
    for follow in followers:
        follow()
    for visit in _visitors:
        visit(None)


def _refuse_another(job: _bootstrap.Job, arguments: Mapping[str, str]) -> None:
    if job.session.times_formed > 0:
        return  # ranks were given anew, and nobody could know them
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
