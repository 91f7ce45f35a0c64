"""What the operations of `horovod.torch` do alike: checks, names and factors."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from gradlane import Handle, ProcessSet, ReduceOp
from gradlane.compat._unnamed import free_name, hold
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch.compression import Compression, Compressor, check_compression

T = TypeVar("T")


class _Adasum:
    """Horovod's adaptive sum, which there is not."""


Adasum = _Adasum()
"""Refused wherever it is given."""


def checked_op(op: Any) -> ReduceOp | None:
    """Returns `op` if it is a reduction that there is."""
    if op is Adasum:
        raise UnsupportedError("op=Adasum does not exist here; use Average or Sum")
    if op is not None and not isinstance(op, ReduceOp):
        raise InvalidArgumentError(f"op={op!r} is no reduction; use Average, Sum, Min or Max")
    return op


def named(
    call: str,
    name: str | None,
    tensor: torch.Tensor,
    members: ProcessSet | None,
    compression: Compressor = Compression.none,
) -> str:
    """A tensor's name, which is another one for each kind of call, as in Horovod.

    An unnamed tensor has another name for each compression too, because a name fixes it.
    """
    if name:
        return f"{call}.{name}"
    codec = check_compression(compression).codec
    return free_name(tensor, f"{call}.noname" if codec == "none" else f"{call}.noname.{codec}", members)


def held(name: str | None, chosen: str, members: ProcessSet | None, handle: Handle[T]) -> Handle[T]:
    """Keeps a name that was chosen for an unnamed tensor from others until `handle` is waited for."""
    return handle if name else hold(chosen, handle, members)


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """`tensor` times `factor`, which is itself if the factor is 1."""
    return tensor if factor == 1.0 else tensor * factor


def scale_in_place(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiplies `tensor` by `factor`, and returns it."""
    return tensor if factor == 1.0 else tensor.mul_(factor)
