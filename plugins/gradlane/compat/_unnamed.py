"""Names for tensors that a script gives none."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch

from gradlane import Handle, ProcessSet, _session
from gradlane._recent import Parts, RecentNames
from gradlane._sets import name_in_job
from gradlane.torch._tensors import dtype_name

T = TypeVar("T")

NAMES_MAX = 4096
"""How many such names all workers keep, and the workers of each process set."""

in_flight: set[str] = set()
"""The names in the job of tensors whose handles were not waited for."""

_recent: defaultdict[ProcessSet | None, RecentNames] = defaultdict(lambda: RecentNames(NAMES_MAX))
"""By process set, because only the calls of one set have the same order on all of its members."""


def begin_unnamed(
    tensors: Sequence[torch.Tensor],
    submit: Callable[[str], Handle[T]],
    kind: str = "noname",
    process_set: ProcessSet | None = None,
    parts: Parts | None = None,
    *,
    waits: bool = False,
) -> Handle[T]:
    """Begins an operation by `submit`, under a name that is the same on workers that make the same calls in the same order.

    A name is used again once its operation was waited for. So a job needs few of them, and those for shapes that came
    long ago end.

    Args:
        tensors: whose element types and shapes tell the calls apart; there may be none.
        submit: called with the name.
        kind: of the call.
        process_set: the workers that take part. The calls of each process set count apart.
        parts: the names that `submit` gives to tensors; the name itself by default.
        waits: whether the caller waits for the handle next. Then no other tensor needs to be kept from the name.
    """
    described = _described(kind, tensors, process_set)
    names = (f"{described}.{number}" for number in itertools.count())
    name = next(name for name in names if name_in_job(name, process_set) not in in_flight)
    taken = name_in_job(name, process_set)
    handle = _recent[process_set].begin(name, submit, members=process_set, parts=parts)
    if waits:
        return handle
    in_flight.add(taken)

    def landed(result: T) -> T:
        in_flight.discard(taken)
        return result

    return handle.then(landed)


class _Lists:
    """Numbers for lists of element types and shapes, in the order in which they first came: the same on all workers."""

    def __init__(self) -> None:
        self._generation = _session.generation()
        self._numbers: dict[Hashable, int] = {}
        self._given = 0

    def number(self, kinds: Hashable) -> int:
        if self._generation != _session.generation():
            self._generation, self._numbers, self._given = _session.generation(), {}, 0
        number = self._numbers.pop(kinds, None)
        if number is None:
            self._given += 1
            number = self._given
        self._numbers[kinds] = number  # the last one is the one used last
        if len(self._numbers) > NAMES_MAX:
            del self._numbers[next(iter(self._numbers))]
        return number


_lists: defaultdict[tuple[ProcessSet | None, str], _Lists] = defaultdict(_Lists)
"""By process set and kind of the call."""


def _described(kind: str, tensors: Sequence[torch.Tensor], process_set: ProcessSet | None) -> str:
    kinds = tuple([(dtype_name(tensor.dtype), tuple(tensor.shape)) for tensor in tensors])
    shown = [f"{dtype}.{'x'.join(map(str, shape))}" for dtype, shape in kinds[:1]]
    if len(kinds) > 1:
        shown.append(f"and {len(kinds) - 1} more, list {_lists[process_set, kind].number(kinds)}")
    return ".".join([kind, *shown])
