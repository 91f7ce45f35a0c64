"""A barrier of some workers of the job that knows who has come, however short its time limit is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from gradlane import _buffers, _session
from gradlane._handle import Handle, begin_all
from gradlane._operations import barrier, submit
from gradlane._reduction import Reduction
from gradlane._sets import ProcessSet
from gradlane.errors import StallError, TimeoutError

PAIRS_OF_MAX = 32
"""The most members of a set that meet in pairs.

Each pair has a name of its own, and a job has at most 65,536 names. A set of 32 members has 496 pairs. A job of 1,024
workers in a mesh of 32 x 32 has 64 such sets, and so 31,744 pairs.
"""


def meet(name: str, members: ProcessSet, timeout: float | None) -> None:
    """Waits until every member has called this with the same name.

    Each two members meet by an operation of their own. So each member sees by itself which others have not come. More than
    `PAIRS_OF_MAX` members have one operation together. Only servers know who is missing from that, and they say it after
    the job's step timeout.

    Args:
        timeout: seconds; None takes the job's step timeout.
    Raises:
        StallError: some members did not come within the step timeout (they are named).
        TimeoutError: some members did not come within `timeout` (they are named, except in the large sets above).
    """
    if members.size() > PAIRS_OF_MAX:
        barrier(name, process_set=members, timeout=timeout)
        return
    begun, own = time.monotonic(), _session.rank()

    def start(rank: int) -> Handle[None]:
        place, pair = _buffers.locate(bytearray(1), writable=True), ProcessSet({own, rank})
        return submit(name, place, place, Reduction("max", process_set=pair, timeout=timeout), result=None)

    others = [rank for rank in members.ranks if rank != own]
    meetings = dict(zip(others, begin_all(partial(start, rank) for rank in others), strict=True))
    missing: dict[int, TimeoutError] = {}
    for rank, meeting in meetings.items():
        try:
            meeting.wait()
        except TimeoutError as error:
            missing[rank] = error
    if missing:
        raise _absence(name, missing, time.monotonic() - begun)


def _absence(name: str, missing: Mapping[int, TimeoutError], waited: float) -> TimeoutError:
    """The error for all members that did not come, from those of the meetings with each."""
    first, ranks = next(iter(missing.values())), list(missing)
    if len(ranks) == 1 and isinstance(first, StallError):
        return first
    listed = ", ".join(map(str, ranks))
    message = f"barrier {name!r}: waiting for rank{'s' * (len(ranks) > 1)} {listed}: not done after {waited:.1f} s"
    fields = first.fields | {"missing": ranks, "waited": waited}
    if all(isinstance(error, StallError) for error in missing.values()):
        said = {rank: (error.fields["notice"], error.fields["detail"]) for rank, error in missing.items()}
        details = "; ".join(f"rank {rank}: {'; '.join(filter(None, texts))}" for rank, texts in said.items())
        return StallError(f"{message}; {details}", **fields)
    return TimeoutError(message, **fields)
