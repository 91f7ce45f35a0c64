"""Process groups that get other members: the functions of PyTorch for that, and handles by which workers find one another.

A handle names a worker of a job by its rank, as long as the job does not form again. It says nothing that another job could
use: a digest of the workers' key tells jobs apart.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch

from gradlane import _session
from gradlane._recent import RecentNames
from gradlane._reduction import Max
from gradlane._sets import ProcessSet
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError, UnsupportedError
from gradlane.torch._futures import Completions
from gradlane.torch._group_transfers import Transfers
from gradlane.torch._reductions import GroupOp
from gradlane.torch._works import Start, Work, seconds

_KIND = "gradlane"
_MAX = GroupOp("MAX", Max)


class Reconfigurable(Transfers):
    """A process group that may get other members."""

    _timeout: float | None
    """Seconds for a call; None takes the job's step timeout."""
    _generation: int
    """The session in which the group has its ranks."""
    _is_complete: bool
    """Whether its members are known."""
    _channels: dict[str, RecentNames]
    _first_name: str
    """What the names of its transfers began with before."""
    _past_uuids: frozenset[int] = frozenset()
    """Those of earlier calls of `reconfigure`."""

    @property
    def supports_reconfigure(self) -> bool:
        """Whether `reconfigure` gives the group other members."""
        return True

    def get_reconfigure_handle(self) -> str:
        """What stands for this worker in `reconfigure`. It is good until the elastic job forms again."""
        return own_handle()

    def reconfigure(self, opts: Any) -> Work:
        """Gives the group other members, which are workers of the job. All of them, and only they, call it alike.

        From the call on, ranks are the new ones. What has begun before ends on its own. The work ends when all members have
        come, and have given the same handles.

        Args:
            opts: `uuid`, which this group has not had before; `handles`, one for each member in the order of their ranks, or
                a set, whose order is that of the ranks in the job; `timeout`. There are no `hints`.
        Raises:
            InvalidArgumentError: the handles are not those of workers of this job, with this one among them, or the group had
                the uuid before. Nothing was changed.
            FailedPreconditionError: a handle is one from before the job formed again, or of a lost worker. Nothing was changed.
            UnsupportedError: hints are given.
            MismatchError: from the work, on all members: they gave different handles.
            StallError: from the work: some members did not come (they are named).
        """
        if opts.hints:
            raise UnsupportedError(f'hints={opts.hints!r} would have no effect on "gradlane"; leave them out of reconfigure')
        if opts.uuid in self._past_uuids:
            raise InvalidArgumentError(f"uuid={opts.uuid} was that of this group before; give a fresh number on all workers")
        ranks = ranks_of(opts.handles)
        self._past_uuids = self._past_uuids | {opts.uuid}
        self._ranks, self._size, self._rank = ranks, len(ranks), ranks.index(_session.rank())
        self._set = None if sorted(ranks) == list(range(_session.first_size())) else ProcessSet(ranks)
        self._generation, self._is_complete = _session.generation(), True
        self._name = f"{self._first_name}@{opts.uuid}"
        for names in (self._names, *self._channels.values()):
            names.restart()
        self._channels, self._messages = {}, Counter()
        Completions.of_this_job()  # also of one that has formed again
        return Work([], [self._agreement(ranks, seconds(opts.timeout) or self._timeout)])

    def _agreement(self, ranks: tuple[int, ...], limit: float | None) -> Start:
        """Whether all members have the same ranks in the same order."""
        digest = int.from_bytes(hashlib.blake2b(repr(ranks).encode(), digest_size=7).digest(), "little")
        told = torch.tensor([digest, -digest])
        largest = self._sum(told, _MAX, "reconfigure", limit)

        def check(_: object) -> None:
            if told[0] != -told[1]:
                raise MismatchError(
                    f"reconfigure: the members {sorted(ranks)} gave their handles in different orders; give the same list on "
                    "all of them, or a set",
                    tensor=f"{self._name}/reconfigure",
                    field="ranks",
                )

        return lambda: largest().then(check)

    @property
    def was_reconfigured(self) -> bool:
        """Whether it has other members than those with which PyTorch made it."""
        return bool(self._past_uuids)

    def _key(self, kind: str, tensor: torch.Tensor) -> str:
        self._refuse_other_formation()
        return super()._key(kind, tensor)

    def _refuse_other_formation(self) -> None:
        """Raises if the group has no members, or the job other workers and other ranks than the group.

        Raises:
            FailedPreconditionError: the elastic job has formed again since the group was made.
        """
        if not self._is_complete:
            raise FailedPreconditionError(
                "this process group was made with enable_reconfigure=True and has no members yet; exchange the handles of "
                "torch.distributed._get_reconfigure_handle() and call torch.distributed._reconfigure"
            )
        if self._generation != _session.generation() and _session.is_initialized():
            raise FailedPreconditionError(
                f"this process group of {self._size} workers was made before the elastic job formed again, in which ranks "
                "were given anew: exchange the handles of torch.distributed._get_reconfigure_handle() and call "
                "torch.distributed._reconfigure, or use gradlane's own collectives"
            )


def own_handle() -> str:
    """That of this worker."""
    return f"{_prefix()}:{_session.session().times_formed}:{_session.rank()}"


def ranks_of(handles: Collection[str]) -> tuple[int, ...]:
    """The ranks in the job of the workers with these handles, in their order; a set has the order of the ranks.

    Raises:
        InvalidArgumentError: one is no handle of this job, comes twice, or that of this worker is not among them.
        FailedPreconditionError: the job has formed again since, or a worker has left or was lost.
    """
    ranks = tuple(_rank_of(handle) for handle in handles)
    if isinstance(handles, set | frozenset):
        ranks = tuple(sorted(ranks))
    if len(set(ranks)) < len(ranks):
        raise InvalidArgumentError(f"the handles are those of the workers {list(ranks)}; give that of each worker once")
    if _session.rank() not in ranks:
        raise InvalidArgumentError(
            f"the handles are those of the workers {list(ranks)}, and this is worker {_session.rank()}; only members of the "
            "new group reconfigure it"
        )
    gone = sorted(set(ranks).difference(_session.ranks()))
    if gone:
        raise FailedPreconditionError(
            f"the handles name worker{'s' * (len(gone) > 1)} {', '.join(map(str, gone))}, which the job has no more; leave "
            "them out on all workers"
        )
    return ranks


def _rank_of(handle: str) -> int:
    kind, _, rest = handle.partition(":")
    job, _, place = rest.partition(":")
    formed, _, rank = place.partition(":")
    if kind != _KIND or not (formed.isdecimal() and rank.isdecimal()):
        raise InvalidArgumentError(
            f'{handle[:80]!r} is no handle of the backend "gradlane"; give what torch.distributed._get_reconfigure_handle() '
            "has returned on each worker"
        )
    if f"{kind}:{job}" != _prefix():
        raise InvalidArgumentError(f"{handle!r} is the handle of a worker of another job; give those of this job")
    if int(formed) != _session.session().times_formed:
        raise FailedPreconditionError(
            f"{handle!r} is a handle from before the elastic job formed again, in which ranks were given anew; exchange "
            "those that _get_reconfigure_handle() returns now"
        )
    return int(rank)


def _prefix() -> str:
    key = _session.session().workers_key
    return f"{_KIND}:{hashlib.blake2b(key, digest_size=8, person=b'reconfigure').hexdigest()}"
