"""Names for tensors that a script gives none."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from gradlane import Handle, ProcessSet
from gradlane._recent import Parts, RecentNames
from gradlane._sets import name_in_job

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
    described = ".".join([kind, *_described(tensors)])
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


def _described(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Element types and shapes in words, such as `float32.2x3` and `2 of float32.5`; a digest stands for the end of long lists."""
    kinds = [f"{str(tensor.dtype).removeprefix('torch.')}.{'x'.join(map(str, tensor.shape))}" for tensor in tensors]
    alike = [(kind, len(list(equal))) for kind, equal in itertools.groupby(kinds)]
    shown = [kind if count == 1 else f"{count} of {kind}" for kind, count in alike]
    if sum(map(len, shown)) + len(shown) <= _DESCRIBED_MAX:
        return shown
    digest = hashlib.blake2s(repr(kinds).encode(), digest_size=8).hexdigest()
    return [shown[0], f"{len(kinds)} tensors ~{digest}"]


_DESCRIBED_MAX = 100
"""How long element types and shapes in a name may be, because names have at most 256 bytes."""
