"""Brings workers to the same state before training: parameters, optimizer state, objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gradlane import _plain, _session
from gradlane._objects import allgather, broadcast_bytes, broadcast_object
from gradlane._operations import check_root
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError, ProtocolError
from gradlane.torch import _tensors
from gradlane.torch.groups import broadcast_all

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "broadcast_tensors",
]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int = 0,
    prefix: str = "parameter.",
    *,
    process_set: ProcessSet | None = None,
) -> None:
    """Give every worker the tensors of `root_rank`, in place, bit for bit.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or alike; any element type; the same names on all
            workers.
        root_rank: the rank whose tensors all workers get.
        prefix: put before each name, to distinguish them from other uses of the same names.
        process_set: the workers that take part, with the root and this one among them; all by default.
    Raises:
        MismatchError: a worker has one of them in another dtype or shape (both are named).
        InvalidArgumentError: a value in `params` is no tensor, or a name occurs twice.
    """
    pairs = list(params.items() if isinstance(params, Mapping) else params)
    unnamed = next((one for one in pairs if not (isinstance(one, tuple) and len(one) == 2)), None)
    if unnamed is not None:
        raise InvalidArgumentError(
            f"params holds {type(unnamed).__name__} without a name; give model.state_dict(), model.named_parameters() or "
            "pairs (name, tensor)"
        )
    named = {prefix + name: tensor for name, tensor in pairs}
    if len(named) < len(pairs):
        raise InvalidArgumentError("a name comes twice in params; give each tensor its own")
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(
                f"params[{name!r}] is {type(tensor).__name__}, no tensor; leave it out, or send it by broadcast_object"
            )
    broadcast_tensors(named, root_rank, process_set)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, prefix: str = "optimizer.") -> None:
    """Give every worker the optimizer state of `root_rank`: hyper-parameters, step counts, moments.

    The other workers need not have taken a step before; their state gets the structure of the root's.

    Args:
        optimizer: any torch optimizer or `DistributedOptimizer`, over the same parameters on all workers.
        root_rank: the rank whose state all workers get.
        prefix: put before the names of the broadcasts.
    Raises:
        InvalidArgumentError: the state holds something other than tensors, numbers, texts and alike; it is named.
    """
    is_root = _session.rank() == check_root(root_rank)
    tensors: list[torch.Tensor] = []
    outline = _take_tensors(optimizer.state_dict(), tensors) if is_root else None
    # Through host memory, because only load_state_dict knows the device of a worker's state, and moves it there.
    tensors = [tensor.cpu() for tensor in tensors]
    slots = [_Slot.of(tensor) for tensor in tensors]
    # Not pickled: the bytes pass through servers, and unpickling would run what they contain.
    payload = _plain.encode([outline, [[slot.dtype, slot.shape] for slot in slots]]) if is_root else None
    received = broadcast_bytes(payload, root_rank, f"{prefix}outline")
    if not is_root:
        outline, described = _plain.decode(received)
        slots = [_Slot(tuple(shape), dtype) for dtype, shape in described]
        tensors = [slot.empty() for slot in slots]
    # The structure is part of the names, because an optimizer that has stepped since holds other tensors at the same
    # position.
    digest = hashlib.sha256(repr(slots).encode()).hexdigest()[:12]
    broadcast_tensors({f"{prefix}{digest}.{i}": tensor for i, tensor in enumerate(tensors)}, root_rank)
    if not is_root:
        optimizer.load_state_dict(_put_tensors(outline, tensors))


def allgather_object(
    value: Any, name: str = "allgather_object", *, plain: bool = False, process_set: ProcessSet | None = None
) -> list[Any]:
    """Give every worker the objects of all, in rank order; see `gradlane.allgather`."""
    return allgather(value, name, plain=plain, process_set=process_set)


def broadcast_tensors(named: Mapping[str, torch.Tensor], root_rank: int, process_set: ProcessSet | None = None) -> None:
    """Broadcasts all tensors at once; small ones share messages."""
    broadcast_all(list(named.values()), list(named), root_rank, process_set)


@dataclass(frozen=True)
class _Slot:
    """The place of a tensor in an outline."""

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(tensor: torch.Tensor) -> _Slot:
        return _Slot(tuple(tensor.shape), _tensors.dtype_name(tensor.dtype))

    def empty(self) -> torch.Tensor:
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ProtocolError(f"received an optimizer state with a tensor of the unknown element type {self.dtype!r}")
        return torch.empty(self.shape, dtype=dtype)


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A copy of nested dicts, lists and tuples with positions instead of tensors, which go to `tensors` in order."""
    match value:
        case torch.Tensor():
            tensors.append(value)
            return _plain.Position(len(tensors) - 1)
        case dict():
            return {key: _take_tensors(item, tensors) for key, item in value.items()}
        case list() | tuple():
            return type(value)([_take_tensors(item, tensors) for item in value])
        case _:
            return value


def _put_tensors(outline: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of `_take_tensors`."""
    match outline:
        case _plain.Position():
            return tensors[outline.index]
        case dict():
            return {key: _put_tensors(item, tensors) for key, item in outline.items()}
        case list() | tuple():
            return type(outline)([_put_tensors(item, tensors) for item in outline])
        case _:
            return outline
