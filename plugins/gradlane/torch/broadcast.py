"""Brings workers to the same state before training: parameters, optimizer state, objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradlane import _plain, _session
from gradlane._alike import Row, check_alike
from gradlane._objects import allgather, broadcast_bytes, broadcast_object
from gradlane._operations import check_root
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError, ProtocolError
from gradlane.torch import _tensors
from gradlane.torch._aliases import without_aliases
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
            workers, in any order.
        root_rank: the rank whose tensors all workers get.
        prefix: put before each name, to distinguish them from other uses of the same names.
        process_set: the workers that take part, with the root and this one among them; all by default.
    Raises:
        MismatchError: the names, dtypes or shapes of the workers differ; it names the first difference.
        InvalidArgumentError: a value in `params` is no tensor, a name occurs twice, or two tensors overlap without being
            the same (both are named). One tensor may have several names, as tied weights do.
    """
    named: Mapping[str, torch.Tensor] | Exception
    try:
        named = _prefixed(params, prefix)
    except Exception as error:
        named = error
    broadcast_alike(named, prefix, root_rank, process_set)


def _prefixed(
    params: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]], prefix: str
) -> dict[str, torch.Tensor]:
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
    return named


def broadcast_alike(
    named: Mapping[str, torch.Tensor] | Exception, prefix: str, root_rank: int, process_set: ProcessSet | None = None
) -> None:
    """Broadcasts tensors after all workers have found that they have the same ones.

    Args:
        named: one tensor may have several names, if it has them on all workers. Or why this worker has none: then that is
            raised here, and the others get an error with its text.
        prefix: of the names; left out of errors about differences.
    Raises:
        MismatchError: the workers have other tensors; it names the first difference.
        InvalidArgumentError: two tensors overlap (both are named), or one cannot be sent.
    """
    rows: list[Row] | Exception
    distinct: dict[str, torch.Tensor] = {}
    try:
        if isinstance(named, Exception):
            raise named
        # In the order of names, because dictionaries with the same names may have different orders on the workers.
        distinct, aliases = without_aliases(dict(sorted(named.items(), key=lambda pair: pair[0])))
        rows = [_row(name, tensor, aliases.get(name), prefix) for name, tensor in named.items()]
    except Exception as error:
        rows = error
    check_alike("tensor", rows, f"{prefix}list", process_set, by_name=True)
    broadcast_all(list(distinct.values()), list(distinct), root_rank, process_set)


def _row(name: str, tensor: torch.Tensor, same: str | None, prefix: str) -> Row:
    kind = f"the same tensor as {same.removeprefix(prefix)}," if same else _tensors.dtype_name(tensor.dtype)
    return name.removeprefix(prefix), kind, tuple(tensor.shape)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, prefix: str = "optimizer.") -> None:
    """Give every worker the optimizer state of `root_rank`: hyper-parameters, step counts, moments.

    The other workers need not have taken a step before; their state gets the structure of the root's.

    Args:
        optimizer: any torch optimizer or `DistributedOptimizer`, over the same parameters on all workers.
        root_rank: the rank whose state all workers get.
        prefix: put before the names of the broadcasts.
    Raises:
        InvalidArgumentError: the state of the root holds something other than tensors, numbers, texts and alike; it is
            named on all workers.
    """
    is_root = _session.rank() == check_root(root_rank)
    if _session.passes_over(f"{prefix}outline", is_broadcast=True):
        return
    outline: Any = None
    tensors: list[torch.Tensor] = []
    slots: list[_Slot] = []
    payload: bytes | Exception | None = None
    if is_root:
        try:
            outline = take_tensors(optimizer.state_dict(), tensors)
            tensors = apart(tensors)
            slots = [_Slot.of(tensor) for tensor in tensors]
            # Not pickled: the bytes pass through servers, and unpickling would run what they contain.
            payload = _plain.encode([outline, [[slot.dtype, slot.shape] for slot in slots]])
        except Exception as error:
            payload = error
    received = broadcast_bytes(payload, root_rank, f"{prefix}outline")
    if not is_root:
        outline, described = _plain.decode(received)
        slots = [_Slot(tuple(shape), dtype) for dtype, shape in described]
        tensors = [slot.empty() for slot in slots]
    # The structure is part of the names, because an optimizer that has stepped since holds other tensors at the same
    # position. All workers get to know the structures in the same order.
    structures = _structures.setdefault((_session.generation(), prefix), [])
    if slots not in structures:
        structures.append(slots)
    number = structures.index(slots)
    broadcast_tensors({f"{prefix}{number}.{i}": tensor for i, tensor in enumerate(tensors)}, root_rank)
    if not is_root:
        optimizer.load_state_dict(put_tensors(outline, tensors))


def allgather_object(
    value: Any, name: str = "allgather_object", *, plain: bool = False, process_set: ProcessSet | None = None
) -> list[Any]:
    """Give every worker the objects of all, in rank order; see `gradlane.allgather`."""
    return allgather(value, name, plain=plain, process_set=process_set)


def broadcast_tensors(named: Mapping[str, torch.Tensor], root_rank: int, process_set: ProcessSet | None = None) -> None:
    """Broadcasts all tensors at once; small ones share messages. A tensor with several names travels once."""
    distinct, _ = without_aliases(named)
    broadcast_all(list(distinct.values()), list(distinct), root_rank, process_set)


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


_structures: dict[tuple[int, str], list[list[_Slot]]] = {}
"""By generation of the session and prefix: the shapes of the optimizer states that were broadcast."""


def apart(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in host memory, where only `load_state_dict` of a worker knows a device, and in memory of their own.

    Raises:
        InvalidArgumentError: a tensor has no elements in order, such as a sparse one.
    """
    separate, used = [], set()
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise InvalidArgumentError(
                f"the state holds a tensor of shape {list(tensor.shape)} that is sparse, quantized or without data; make it "
                "dense, or take it out of the state"
            )
        moved = tensor.detach().cpu()
        storage = moved.untyped_storage().data_ptr()
        if storage in used or _tensors.overlaps_itself(moved):
            moved = moved.clone(memory_format=torch.contiguous_format)
        separate.append(moved)
        used.add(storage)
    return separate


def take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A copy of nested dicts, lists and tuples with positions instead of tensors, which go to `tensors` in order."""
    match value:
        case torch.Tensor():
            tensors.append(value)
            return _plain.Position(len(tensors) - 1)
        case dict():
            return {key: take_tensors(item, tensors) for key, item in value.items()}
        case list() | tuple():
            return type(value)([take_tensors(item, tensors) for item in value])
        case _:
            return value


def put_tensors(outline: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of `take_tensors`."""
    match outline:
        case _plain.Position():
            return tensors[outline.index]
        case dict():
            return {key: put_tensors(item, tensors) for key, item in outline.items()}
        case list() | tuple():
            return type(outline)([put_tensors(item, tensors) for item in outline])
        case _:
            return outline
