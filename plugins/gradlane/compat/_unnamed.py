"""Names for tensors that a script gives none."""

from __future__ import annotations

import itertools
from typing import TypeVar

import torch

from gradlane import Handle, ProcessSet
from gradlane._sets import name_in_job

T = TypeVar("T")

in_flight: set[str] = set()
"""The names in the job of tensors whose handles were not waited for."""


def free_name(tensor: torch.Tensor, kind: str = "noname", process_set: ProcessSet | None = None) -> str:
    """A name for a tensor without one, the same on workers that make the same calls in the same order.

    It is used again once its operation was waited for, so that a job needs few of them. The calls of each process set
    count apart.
    """
    dtype, shape = str(tensor.dtype).removeprefix("torch."), "x".join(map(str, tensor.shape))
    names = (f"{kind}.{dtype}.{shape}.{number}" for number in itertools.count())
    return next(name for name in names if name_in_job(name, process_set) not in in_flight)


def hold(name: str, handle: Handle[T], process_set: ProcessSet | None = None) -> Handle[T]:
    """Keeps `name` from other tensors until the handle is waited for, which programs do in the same order."""
    taken = name_in_job(name, process_set)
    in_flight.add(taken)

    def landed(result: T) -> T:
        in_flight.discard(taken)
        return result

    return handle.then(landed)
