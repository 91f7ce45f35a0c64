"""Names for the tensors of wrappers, equal on all workers without the user's help. Knows no framework."""

from __future__ import annotations

from collections import Counter

from gradlane import _session

_made: Counter[tuple[int, str]] = Counter()


def namespace(kind: str, name: str | None) -> str:
    """A prefix for one wrapper's tensors: `name`, or a number per `kind`.

    The numbers agree between workers if each makes its wrappers of a kind in the same order. Making them requires that
    anyway, because it broadcasts. They go on when an elastic job forms again, in which earlier wrappers keep their names.
    """
    if name is not None:
        return name
    key = (_session.enrolment(), kind)
    _made[key] += 1
    return f"{kind}{_made[key] - 1}"
