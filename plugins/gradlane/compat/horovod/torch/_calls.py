"""What the operations of `horovod.torch` do alike: checks, names and factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from gradlane import Handle, ReduceOp
from gradlane._recent import ChangingNames, Parts
from gradlane._reduction import Reduction, reduction_of
from gradlane.compat._unnamed import begin_unnamed
from gradlane.compat.horovod.common import ProcessSet, members_of
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch.compression import Compression, Compressor

T = TypeVar("T")

_named = ChangingNames()


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


@dataclass(frozen=True, slots=True)
class Scaled:
    """A reduction, and the factors by which tensors are multiplied before it and after it."""

    reduction: Reduction
    before: float
    after: float


def scaled(
    average: bool | None,
    op: Any,
    factors: tuple[float, float],
    process_set: ProcessSet,
    compression: Compressor = Compression.none,
) -> Scaled:
    """What the options of a call ask for.

    Raises:
        UnsupportedError, InvalidArgumentError, FailedPreconditionError: as `allreduce`.
    """
    members = members_of(process_set)
    return Scaled(reduction_of(checked_op(op), average, compression=compression, process_set=members), *factors)


def begin(
    call: str,
    name: str | None,
    tensors: Sequence[torch.Tensor],
    reduction: Reduction,
    submit: Callable[[str], Handle[T]],
    parts: Parts | None = None,
    *,
    waits: bool = False,
) -> Handle[T]:
    """Begins an operation by `submit`, which is called with a name. It is another one for each kind of call, as in Horovod.

    As in Horovod, a name may be used again for tensors of other shapes and element types.

    Args:
        call: the kind of the call.
        name: the user's; None for a tensor without one.
        tensors: whose element types and shapes a name fixes.
        reduction: whose codec and members a name fixes too.
        submit: called with the name in the engine.
        parts: the names that `submit` gives to tensors; the name itself by default.
        waits: whether the caller waits for the handle next.
    """
    codec, members = reduction.codec, reduction.process_set
    if not name:
        kind = f"{call}.noname" if codec == "none" else f"{call}.noname.{codec}"
        return begin_unnamed(tensors, submit, kind, members, parts, waits=waits)
    fixed = (codec, *[(tensor.dtype, tuple(tensor.shape)) for tensor in tensors])
    return _named.begin(f"{call}.{name}", fixed, submit, members=members, parts=parts)


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """`tensor` times `factor`, which is itself if the factor is 1.

    The element type stays. As in Horovod, integers are multiplied in float64, and what follows the point is cut off.
    """
    if factor == 1.0:
        return tensor
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor * factor
    return (tensor.to(torch.float64) * factor).to(tensor.dtype)


def scale_in_place(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiplies `tensor` by `factor` as `scale` does, and returns it."""
    if factor != 1.0:
        tensor.detach().copy_(scale(tensor.detach(), factor))
    return tensor
