"""Names for tensors that a script gives none."""

from __future__ import annotations

import itertools
from typing import TypeVar

import torch

from gradlane import Handle

T = TypeVar("T")

in_flight: set[str] = set()
"""The names given to tensors whose handles were not waited for."""


def free_name(tensor: torch.Tensor, kind: str = "noname") -> str:
    """A name for a tensor without one, the same on workers that make the same calls in the same order.

    It is used again once its operation was waited for, so that a job needs few of them.
    """
    dtype, shape = str(tensor.dtype).removeprefix("torch."), "x".join(map(str, tensor.shape))
    names = (f"{kind}.{dtype}.{shape}.{number}" for number in itertools.count())
    return next(name for name in names if name not in in_flight)


def hold(name: str, handle: Handle[T]) -> Handle[T]:
    """Keeps `name` from other tensors until the handle is waited for, which programs do in the same order."""
    in_flight.add(name)

    def landed(result: T) -> T:
        in_flight.discard(name)
        return result

    return handle.then(landed)
