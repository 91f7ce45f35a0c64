"""What all of Horovod's plugins have: the life of the job, ranks, what it was built with, and process sets."""

from __future__ import annotations

from collections.abc import Sequence

import gradlane
from gradlane import is_initialized, local_rank, local_size, rank, shutdown, size, stop_timeline
from gradlane.errors import UnsupportedError

__all__ = [
    "ProcessSet",
    "add_process_set",
    "check_process_set",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


class ProcessSet:
    """Workers that reduce among themselves. Here that can be all of them only."""

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        self.ranks = None if ranks is None else sorted(ranks)

    def size(self) -> int:
        """The number of its workers."""
        return size()

    def rank(self) -> int:
        """The rank of this worker in it."""
        return rank()

    def included(self) -> bool:
        """Whether this worker is in it."""
        return True


global_process_set = ProcessSet()
"""All workers."""


def init(comm: object = None, process_sets: object = None) -> None:
    """Joins the job that the environment describes.

    Args:
        comm: has no effect; MPI's variables are read, not its communicators.
        process_sets: None, or process sets that span all workers.
    Raises:
        UnsupportedError: a process set spans a part of the workers.
        NotFormedError: some members did not join in time; the message names them.
    """
    del comm
    gradlane.init()
    for process_set in process_sets if isinstance(process_sets, Sequence) and not isinstance(process_sets, str) else []:
        check_process_set(process_set)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Returns a process set of all workers.

    Raises:
        UnsupportedError: it spans a part of them.
    """
    wanted = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    check_process_set(wanted)
    return wanted


def check_process_set(process_set: object) -> None:
    """Raises UnsupportedError if `process_set` is not that of all workers."""
    ranks = getattr(process_set, "ranks", None)
    if ranks is not None and list(ranks) != list(range(size())):
        raise UnsupportedError(f"a process set of the ranks {list(ranks)}; reductions are among all {size()} workers")


def cross_rank() -> int:
    """The index of this host."""
    return gradlane.node_rank()


def cross_size() -> int:
    """The number of hosts."""
    return gradlane.num_nodes()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes a timeline of every part from now on; there are no cycles to mark."""
    del mark_cycles
    gradlane.start_timeline(file_path)
