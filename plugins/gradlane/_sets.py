"""Process sets: some workers of the job that reduce and copy among themselves."""

from __future__ import annotations

import contextlib
import hashlib
import operator
from collections.abc import Callable, Iterable
from typing import TypeVar

from gradlane import _session
from gradlane.errors import InvalidArgumentError, RootLostError

T = TypeVar("T")


class ProcessSet:
    """Some workers of the job, for the argument `process_set` of reductions and copies.

    Only the members make a call with the set, and only they are waited for. A set needs no set-up, and any number of
    sets may be in use at once. Each has names of its own: `"loss"` of one set is another tensor than `"loss"` of
    another one.

    Args:
        ranks: the ranks of the members in the job, in any order.
    """

    __slots__ = ("_prefix", "ranks")

    def __init__(self, ranks: Iterable[int]) -> None:
        try:
            self.ranks = tuple(sorted(map(operator.index, ranks)))
        except TypeError as error:
            raise InvalidArgumentError(f"a process set of {ranks!r}; give a list of ranks") from error
        if not self.ranks or self.ranks[0] < 0 or len(set(self.ranks)) < len(self.ranks):
            raise InvalidArgumentError(f"a process set of the ranks {list(self.ranks)}; give each member once")
        self._prefix = f"set {_written(self.ranks)}: "

    def included(self) -> bool:
        """Whether this worker is a member."""
        return _session.rank() in self.ranks

    def rank(self) -> int:
        """The position of this worker among the members, from 0.

        Raises:
            InvalidArgumentError: it is not a member.
        """
        if not self.included():
            raise InvalidArgumentError(f"rank {_session.rank()} is not in {self}; only members may make this call")
        return self.ranks.index(_session.rank())

    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    def name_of(self, name: str) -> str:
        """The name in the job of a tensor that has this name in the set."""
        return self._prefix + name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and self.ranks == other.ranks

    def __hash__(self) -> int:
        return hash(self.ranks)

    def __repr__(self) -> str:
        return f"ProcessSet({list(self.ranks)})"


_WRITTEN_MAX = 64
"""How long the ranks in a name may be, because names have at most 256 bytes."""


def _written(ranks: tuple[int, ...]) -> str:
    """The ranks as names and errors show them: `0.1`, `0-19`, `0-56/8` for every eighth, and these joined by points.

    Only ranks without any order are too long for that. Their beginning is shown, with a digest that tells them from others.
    """
    pieces, start = [], 0
    while start < len(ranks):
        end = start + 1
        step = ranks[end] - ranks[start] if end < len(ranks) else 0
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if end - start < 3:
            pieces.append(str(ranks[start]))
            start += 1
        else:
            pieces.append(f"{ranks[start]}-{ranks[end - 1]}" + (f"/{step}" if step > 1 else ""))
            start = end
    written = ".".join(pieces)
    if len(written) <= _WRITTEN_MAX:
        return written
    digest = hashlib.blake2s(written.encode(), digest_size=8).hexdigest()
    return f"{'.'.join(pieces[:3])} and more, {len(ranks)} ranks ~{digest}"


def members_of(process_set: ProcessSet | None) -> tuple[int, ...]:
    """The ranks of a set, or of all workers that the job has, in their order."""
    return _session.ranks() if process_set is None else process_set.ranks


def places_of(process_set: ProcessSet | None) -> tuple[int, ...]:
    """The ranks that have a place in what workers tell each other in one tensor: those of a set, or all with which the job began.

    A tensor has one shape, and the job may lose workers at any time. What stands in the place of a lost one is what the
    others have put there.
    """
    return tuple(range(_session.first_size())) if process_set is None else process_set.ranks


def from_one_left(root: int, send: Callable[[int], T]) -> T:
    """Calls `send` with the rank `root` or, if that worker was lost, with the next one that was not.

    All workers end with the same rank, because servers tell all of them the same of a broadcast.
    """
    size = _session.first_size()
    for step in range(size - 1):
        with contextlib.suppress(RootLostError):
            return send((root + step) % size)
    return send((root - 1) % size)


def name_in_job(name: str, process_set: ProcessSet | None) -> str:
    """The name in the job of a tensor that has this name in a set, or among all workers."""
    return name if process_set is None else process_set.name_of(name)


def check_member(rank: int, process_set: ProcessSet | None, what: str) -> int:
    """Returns `rank` if it is one of the members."""
    if rank in places_of(process_set):
        return rank
    among = f"these are {list(places_of(process_set))}"
    raise InvalidArgumentError(f"{what}={rank} is not one of the workers that take part; {among}")
