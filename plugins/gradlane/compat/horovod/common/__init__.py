"""What all of Horovod's plugins have: the life of the job, ranks, what it was built with, and process sets."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

import gradlane
from gradlane import _session, elastic, is_initialized, local_rank, local_size, shutdown, stop_timeline
from gradlane._objects import gather_by_rank
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError, UnsupportedError

__all__ = [
    "ProcessSet",
    "add_process_set",
    "check_added",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "members_of",
    "rank",
    "remove_process_set",
    "root_of",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def rank() -> int:
    """The number of this worker, from 0 and without gaps.

    If a worker is lost, the ranks behind its own become one less. In a training of `horovod.torch.elastic`, they and `size()`
    change at commits only, and are those of the job elsewhere.
    """
    own = _session.rank()  # raises before `init()`
    world = elastic.trained_world()
    return own if world is None else world.index


def size() -> int:
    """The number of workers."""
    number = _session.size()
    world = elastic.trained_world()
    return number if world is None else world.size


def root_of(root_rank: int) -> int:
    """The rank in the job of the worker that has the rank `root_rank` here.

    Raises:
        InvalidArgumentError: there is no such worker.
    """
    world = elastic.trained_world()
    if world is None or not isinstance(root_rank, int):
        return root_rank
    if not 0 <= root_rank < world.size:
        raise InvalidArgumentError(f"root_rank={root_rank} in a job of {world.size} workers; give 0 to {world.size - 1}")
    return world.ranks[root_rank]


class ProcessSet:
    """Workers that reduce among themselves, once `init` or `add_process_set` has added the set."""

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """A set of these ranks of the job, in any order.

        Raises:
            UnsupportedError: it is a communicator of MPI; there are none here.
            InvalidArgumentError: there is no rank, one comes twice, or one is no rank.
        """
        if not isinstance(ranks_or_comm, Iterable):
            raise UnsupportedError(
                f"a process set of {type(ranks_or_comm).__name__}; communicators of MPI are not used here, so give a "
                "list of ranks"
            )
        self.members: gradlane.ProcessSet | None = gradlane.ProcessSet(ranks_or_comm)

    @property
    def ranks(self) -> list[int]:
        """The ranks of its workers in the job, in order; those of the global set are known after `init`.

        In a training of `horovod.torch.elastic`, the job keeps the ranks of workers when others are lost.
        """
        if self.members is not None:
            return list(self.members.ranks)
        return list(_session.ranks()) if is_initialized() else []

    @property
    def process_set_id(self) -> int | None:
        """Its number, equal on all workers; None before the set was added, and after it was removed."""
        return 0 if self.members is None else _added.get((_session.generation(), self.members))

    def size(self) -> int | None:
        """The number of its workers; None if it was not added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """The place of this worker in it, from 0; None if it was not added.

        Roots of broadcasts are ranks in the job, not places in the set.

        Raises:
            InvalidArgumentError: this worker is not in it.
        """
        if self.process_set_id is None:
            return None
        return rank() if self.members is None else self.members.rank()

    def included(self) -> bool:
        """Whether this worker is in it."""
        return self.members is None or self.members.included()

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _AllWorkers(ProcessSet):
    """The set of all workers."""

    def __init__(self) -> None:
        self.members = None


global_process_set: ProcessSet = _AllWorkers()
"""All workers."""

_added: dict[tuple[int, gradlane.ProcessSet], int] = {}
"""By the generation of a session, the numbers of the sets that were added to its job."""

_counted: Counter[int] = Counter()
"""By the generation of a session, how many sets were ever added to its job."""


def init(comm: object = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Joins the job that the environment describes.

    A timeline begins if `HOROVOD_TIMELINE` names a file. Other variables of Horovod have no effect; those that are set are
    named in a warning.

    Args:
        comm: None; the environment says which workers there are.
        process_sets: sets to add, the same on all workers; None and "dynamic" add none. Sets can always be added later.
    Raises:
        NotFormedError: some members did not join in time; the message names them.
        MismatchError: the workers add different sets (both are named).
        InvalidArgumentError: see `add_process_set`.
        UnsupportedError: `comm` is given. A part of the workers is a process set.
    """
    if comm is not None:
        raise UnsupportedError(
            f"init(comm={comm!r}): the launcher says which workers there are; leave it out, and give process_sets for "
            "some of them"
        )
    joins = not is_initialized()
    gradlane.init()
    if joins:
        _read_environment()
    if process_sets is None or process_sets == "dynamic":
        return
    if isinstance(process_sets, str):
        raise InvalidArgumentError(f'process_sets={process_sets!r}; give a list of process sets, or "dynamic"')
    for process_set in process_sets:
        if not isinstance(process_set, ProcessSet) or process_set.process_set_id is None:
            add_process_set(process_set)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a set of workers, and returns it. All workers of the job must call it, with the same ranks.

    Raises:
        MismatchError: the workers give different ranks (both are named); the set is added on none.
        StallError: some workers did not call it in time (they are named).
        InvalidArgumentError: a set of these workers was added already, or the job lacks one of the ranks.
    """
    wanted = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    everyones = gather_by_rank(wanted.ranks, "horovod.add_process_set", plain=True)
    for other, ranks in everyones.items():
        if ranks != wanted.ranks:
            raise MismatchError(
                f"add_process_set: worker {_session.rank()} gave the ranks {wanted.ranks}, worker {other} {ranks}; add the same "
                "sets in the same order on all workers, also on those outside of them",
                tensor="horovod.add_process_set",
                field="ranks",
                first=(_session.rank(), str(wanted.ranks)),
                second=(other, str(ranks)),
            )
    first_size = _session.first_size()
    if wanted.process_set_id is not None or wanted.ranks == list(range(first_size)):
        raise InvalidArgumentError(f"there is a process set of the ranks {wanted.ranks} already; use that one")
    if wanted.ranks[-1] >= first_size:
        raise InvalidArgumentError(
            f"a process set of the ranks {wanted.ranks} in a job of {first_size} workers: give ranks from 0 to "
            f"{first_size - 1}"
        )
    assert wanted.members is not None, "the set of all workers has a number from the start"
    generation = _session.generation()
    _counted[generation] += 1
    _added[generation, wanted.members] = _counted[generation]
    return wanted


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set, which operations refuse from then on. All workers must call it.

    Returns:
        Whether it was removed: False for a set that was not added, and for the global one.
    """
    if process_set.members is None:
        return False
    return _added.pop((_session.generation(), process_set.members), None) is not None


def members_of(process_set: object) -> gradlane.ProcessSet | None:
    """The workers of an operation with the argument `process_set`; None if they are all.

    Raises:
        InvalidArgumentError: it is no process set, or this worker is not in it.
        FailedPreconditionError: it was not added, or was removed.
    """
    members = check_added(process_set).members
    if members is not None:
        members.rank()  # raises if this worker is not a member
    return members


def check_added(process_set: object) -> ProcessSet:
    """Returns `process_set` if it is a process set that was added."""
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"process_set={process_set!r} is none; give what hvd.add_process_set returned")
    if process_set.process_set_id is None:
        raise FailedPreconditionError(
            f"the process set of the ranks {process_set.ranks} was not added, or was removed; call "
            "hvd.add_process_set on all workers first"
        )
    return process_set


def cross_rank() -> int:
    """The index of this host."""
    return gradlane.node_rank()


def cross_size() -> int:
    """The number of hosts."""
    return gradlane.num_nodes()


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of workers. On several hosts, all workers must call it.

    Raises:
        StallError: some workers did not call it in time (they are named).
    """
    if cross_size() == 1:
        return True
    return len(set(gradlane.allgather(local_size(), "horovod.is_homogeneous", plain=True))) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes a timeline of every part from now on.

    Args:
        file_path: see `gradlane.start_timeline`.
        mark_cycles: there are no cycles here; True is answered by a warning.
    """
    if mark_cycles:
        warnings.warn("mark_cycles=True has no effect: operations wait for no cycle here", stacklevel=2)
    gradlane.start_timeline(file_path)


_HEEDED = ("HOROVOD_TIMELINE", "HOROVOD_DYNAMIC_PROCESS_SETS")
"""Sets can always be added, which the second one asks for."""


def _read_environment() -> None:
    """Begins the timeline that is asked for, and warns of variables that ask for something that there is not."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path and path != "DYNAMIC":  # which leaves it to start_timeline
        gradlane.start_timeline(path)
    unread = [
        name
        for name, value in sorted(os.environ.items())
        if name.startswith("HOROVOD_") and name not in _HEEDED and value not in ("", "0")
    ]
    if unread:
        warnings.warn(
            f"{', '.join(unread)} {'have' if len(unread) > 1 else 'has'} no effect; `gradlane config` lists the settings "
            "that there are",
            stacklevel=3,
        )
