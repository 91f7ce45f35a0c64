"""The reductions of `torch.distributed`, and the form in which tensors of each element type are reduced.

The engine adds, averages, and finds the least and the greatest of real numbers. Complex numbers are added as pairs of
real numbers, and booleans are bytes of 0 and 1. For the other operations of PyTorch the tensors of all workers are
brought together, and the worker that gets the result combines them in the order of their ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import distributed

from gradlane._reduction import Average, Max, Min, ReduceOp, Sum
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch import _tensors

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class GroupOp:
    """An operation of a process group's reductions."""

    name: str
    """PyTorch's name for it, such as `SUM`."""
    native: ReduceOp | None
    """The engine's operation; None if tensors are brought together and combined."""
    combine: Combine | None = None
    factor: float | torch.Tensor | None = None
    """What each worker's tensor is multiplied by first."""


_KNOWN = {
    known.name: known
    for known in (
        GroupOp("SUM", Sum),
        GroupOp("AVG", Average),
        GroupOp("MIN", Min),
        GroupOp("MAX", Max),
        GroupOp("PRODUCT", None, torch.mul),
        GroupOp("BAND", None, torch.bitwise_and),
        GroupOp("BOR", None, torch.bitwise_or),
        GroupOp("BXOR", None, torch.bitwise_xor),
        GroupOp("PREMUL_SUM", Sum),
    )
}

_OF_BOOL = {"SUM": Max, "MAX": Max, "BOR": Max, "MIN": Min, "PRODUCT": Min, "BAND": Min}
"""What the operations are on bytes of 0 and 1. A sum of booleans is their OR, as on NCCL."""


def op_of(opts: Any) -> GroupOp:
    """The reduction of a call's options; a sum without options.

    Raises:
        UnsupportedError: there is no such reduction here; it is named.
    """
    if opts is None:
        return _KNOWN["SUM"]
    kind, factor = opts.reduceOp.__getstate__()
    known = _KNOWN.get(kind.name)
    if known is None:
        raise UnsupportedError(
            f"the reduction {kind.name} does not exist here; {', '.join(_KNOWN)} do. For others, make a second group: "
            'torch.distributed.new_group(backend="gloo")'
        )
    return known if factor is None else replace(known, factor=factor)


def form_of(tensor: torch.Tensor, op: GroupOp) -> tuple[torch.Tensor, GroupOp]:
    """The values of `tensor` as a vector that can be reduced, and the reduction of it.

    The vector is over the memory of the tensor where that is possible. `values_of` undoes it.

    Raises:
        InvalidArgumentError: the element type has no such reduction.
    """
    name, dtype = op.name, tensor.dtype
    if dtype == torch.bool:
        if name not in _OF_BOOL:
            raise InvalidArgumentError(f"the reduction {name} of bool; {', '.join(_OF_BOOL)} are there for it")
        return flat(tensor).view(torch.uint8), GroupOp(name, _OF_BOOL[name])
    if dtype.is_complex and name in ("MIN", "MAX"):
        raise InvalidArgumentError(f"the reduction {name} of {dtype}, whose numbers have no order; reduce tensor.abs()")
    if name in ("BAND", "BOR", "BXOR") and (dtype.is_floating_point or dtype.is_complex):
        raise InvalidArgumentError(f"the reduction {name} of {dtype}; reduce a tensor of integers")
    if op.factor is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise InvalidArgumentError(
            f"the reduction {name} of {dtype}, whose products with a factor are no integers; reduce a tensor of floats"
        )
    values = flat(tensor)
    return (torch.view_as_real(values).view(-1) if dtype.is_complex and op.native else values), op


def values_of(wire: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What a vector of `form_of` stands for, with the element type and shape of `like`."""
    if like.dtype.is_complex and not wire.dtype.is_complex:
        wire = torch.view_as_complex(wire.view(-1, 2))
    return wire.view(like.dtype).view(like.shape)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor as a vector, over its memory where that is possible: names know lengths, not shapes."""
    return _tensors.vector(_tensors.dense(tensor))
