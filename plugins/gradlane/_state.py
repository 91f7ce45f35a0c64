"""Brings the state of a training from a worker that has it to those that have come to the job. Knows no framework.

Every worker makes the same exchange, whether it was there before or not: no worker has to know who is new. It has these
parts, each under names that begin with `elastic.state` and the number of the formation:

1. A sum of a number for each worker: how many steps it has done, and one; 0 for a newcomer. The *donor* is the lowest of
   the ranks with the highest number. If all are 0, nobody has a state, and nothing more happens.
2. Each worker tells all others what its values are: their names and forms and, if it has a state, digests of those that
   must be equal. From that, every worker finds alike which newcomers fit, and whether the others agree.
3. The donor sends its values to the newcomers that fit. The others receive nothing, so their values keep their memory.
4. A sum in which the newcomers say that they have the values. If the donor was lost meanwhile, another one sends them.

How a value travels is up to its part; see `gradlane._parts`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from gradlane import _buffers, _session
from gradlane._objects import gather_by_rank
from gradlane._operations import submit
from gradlane._parts import REPLACEABLE, Copied, Part, Route, part_of
from gradlane._reduction import Reduction
from gradlane._sets import ProcessSet
from gradlane.errors import Error, FailedPreconditionError, MismatchError, RootLostError

_HAS_IT, _LACKS_IT = 1, 2
"""What a newcomer says when the values were sent."""


def exchange(values: Mapping[str, Any] | None, steps: int, *, is_newcomer: bool) -> tuple[int, dict[str, Any] | None]:
    """Gives newcomers the state of the others. All workers call it after the job has formed again.

    Args:
        values: those of this worker's state, by name; None if it has no state.
        steps: how many steps this worker has done.
    Returns:
        How many steps were done by those that have a state, and what this worker's values are to be; None if they stay.
    Raises:
        FailedPreconditionError: on a newcomer, if it or the others gave no state; on all workers, if those that have the state
            differ (the value is named).
        MismatchError: on a newcomer, if its values have other names or forms than those of the others (they are named).
        RootLostError: on a newcomer, if all that had the state were lost.
    """
    prefix = f"elastic.state/{_session.session().times_formed}"
    own = _session.rank()
    standing = _sum_of(f"{prefix}/standing", 0 if is_newcomer else steps + 1)
    done = max(standing) - 1
    if done < 0:
        return 0, None

    described: Any
    parts: dict[str, Part] = {}
    failure: Exception | None = None
    try:
        parts = {name: part_of(value) for name, value in (values or {}).items()}
        forms = {name: [part.kind, part.form()] for name, part in parts.items()}
        digests = {} if is_newcomer else {name: part.digest() for name, part in parts.items()}
        described = [None if values is None else forms, digests]
    except Exception as error:
        failure, described = error, f"{type(error).__name__}: {error}"
    everyones = gather_by_rank(described, f"{prefix}/values", plain=True)

    donors = [rank for rank in everyones if standing[rank] == done + 1]
    # One that cannot describe its values sends nothing, unless all are so: then each newcomer is told why.
    donors = [rank for rank in donors if not isinstance(everyones[rank], str)] or donors
    newcomers = [rank for rank in everyones if standing[rank] == 0]
    _check_agreement({rank: everyones[rank] for rank in everyones if standing[rank] > 0})
    if not donors and not is_newcomer:
        return done, None
    if not donors:
        raise RootLostError("the workers that had the state of the training were lost before they could send it")
    reasons = {rank: _unfit(donors[0], rank, everyones) for rank in newcomers}
    unfit = {rank: reason for rank, reason in reasons.items() if reason is not None}
    if failure is not None and is_newcomer:
        raise failure  # those that train go on, and lose nothing
    if own in unfit:
        raise unfit[own]
    receivers = [rank for rank in newcomers if rank not in unfit]
    if not receivers:
        return done, None
    agreed = everyones[donors[0]][0]
    mixed = {name for name in agreed for rank in receivers if everyones[rank][0][name][0] != agreed[name][0]}
    received: dict[str, Any] | None = None
    for attempt, donor in enumerate(donors):
        is_sent = True
        if own == donor or own in receivers:
            members = ProcessSet([donor, *receivers])
            try:
                # Positions and not names, because names in the job have at most 256 bytes.
                routes = {name: Route(f"{prefix}/{attempt}.{at}", donor, members) for at, name in enumerate(sorted(parts))}
                received = {
                    name: (Copied((values or {})[name]) if name in mixed else parts[name]).travel(route)
                    for name, route in routes.items()
                }
            except RootLostError:
                is_sent = False
        says = _sum_of(f"{prefix}/{attempt}/sent", _HAS_IT if is_sent else _LACKS_IT)
        if not any(says[rank] == _LACKS_IT for rank in receivers):
            return done, received if own in receivers else None
    if own not in receivers:
        return done, None
    raise RootLostError("each worker that had the state of the training was lost while it sent it")


def _sum_of(name: str, number: int) -> list[int]:
    """The numbers of all workers, by rank; of a worker that was lost 0."""
    numbers = array("q", bytes(8 * _session.first_size()))
    numbers[_session.rank()] = number
    place = _buffers.locate(numbers, writable=True)
    submit(name, place, place, Reduction("sum"), result=None).wait()
    return list(numbers)


def _check_agreement(described: Mapping[int, Any]) -> None:
    """Raises if workers that have the state differ. A worker that could not describe its values says so itself.

    Raises:
        FailedPreconditionError: a value differs; it is named.
    """
    told = {rank: of for rank, of in described.items() if not isinstance(of, str)}
    if not told:
        return
    first, (forms, digests) = next(iter(told.items()))
    for rank, (other_forms, other_digests) in told.items():
        if sorted(other_forms or ()) != sorted(forms or ()):
            raise FailedPreconditionError(
                f"the state of worker {first} has the values {_listed(forms)}, that of worker {rank} {_listed(other_forms)}; "
                "give elastic.steps the same values on all workers"
            )
        for name, digest in digests.items():
            if other_digests[name] != digest:
                raise FailedPreconditionError(
                    f"the value {name!r} of the state differs between worker {first} and worker {rank}, which train with "
                    "different values since a step before: average the gradients of all parameters, and begin with a "
                    "broadcast. Take a value out of the state that is another one on each worker"
                )


def _unfit(donor: int, rank: int, described: Mapping[int, Any]) -> Error | None:
    """Why a newcomer cannot get the state of the donor, if it cannot."""
    theirs, ours = described[donor], described[rank]
    if isinstance(theirs, str):
        return FailedPreconditionError(f"worker {donor} could not send the state of the training: {theirs}")
    if isinstance(ours, str):
        return FailedPreconditionError(f"worker {rank} could not take the state of the training: {ours}")
    forms, own = theirs[0], ours[0]
    if forms is None or own is None:
        who = f"the workers that train, such as worker {donor}," if forms is None else f"worker {rank}, which came to them,"
        return FailedPreconditionError(
            f"{who} gave gradlane.elastic.steps no state, so that the weights cannot come to a new worker; give it the state "
            "on all workers: elastic.State(model=model, optimizer=optimizer), or State() if there is nothing but steps"
        )
    if sorted(forms) != sorted(own):
        return MismatchError(
            f"the state of worker {donor}, which trains, has the values {_listed(forms)}, that of worker {rank}, which has "
            f"come, {_listed(own)}; give elastic.steps the same values on all workers",
            tensor=next(iter(sorted(set(forms) ^ set(own)))),
            field="name",
            first=(donor, _listed(forms)),
            second=(rank, _listed(own)),
        )
    for name in sorted(forms):
        (their_kind, their_rows), (kind, rows) = forms[name], own[name]
        if their_kind == kind and their_rows == rows:
            continue
        if {their_kind, kind} <= REPLACEABLE and (Copied.kind in (their_kind, kind) or their_rows == rows):
            continue
        ours_first, theirs_first = _difference(their_rows, rows)
        if ours_first == theirs_first:  # of the same form, and of another kind
            theirs_first, ours_first = their_kind, kind
        return MismatchError(
            f"the value {name!r} of the state: worker {donor}, which trains, has {theirs_first}, and worker {rank}, which has "
            f"come, {ours_first}; build the same model and optimizer on all workers",
            tensor=name,
            field="shape",
            first=(donor, theirs_first),
            second=(rank, ours_first),
        )
    return None


def _difference(theirs: list[list[Any]], ours: list[list[Any]]) -> tuple[str, str]:
    """The first rows that differ, in words: this worker's and the other's."""
    for place in range(max(len(theirs), len(ours))):
        pair = [of[place] if place < len(of) else None for of in (ours, theirs)]
        if pair[0] != pair[1]:
            mine, other = (" ".join(map(str, row)) if row is not None else "no more" for row in pair)
            return mine, other
    return "", ""


def _listed(forms: Mapping[str, Any] | None) -> str:
    return "none" if not forms else ", ".join(sorted(forms))
