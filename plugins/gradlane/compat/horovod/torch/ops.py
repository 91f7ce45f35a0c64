"""The operations of `horovod.torch`: reductions, broadcasts and gathers with Horovod's positional arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

import gradlane.torch as gl
from gradlane import Average, Handle, ReduceOp
from gradlane._objects import Gathering
from gradlane.compat._unnamed import free_name, hold
from gradlane.compat.horovod.common import ProcessSet, check_process_set, global_process_set, rank, size
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch import _tensors
from gradlane.torch._sparse import content_of
from gradlane.torch.compression import Compression, Compressor

T = TypeVar("T")


class _Adasum:
    """Horovod's adaptive sum, which there is not."""


Adasum = _Adasum()
"""Refused wherever it is given."""


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces `tensor` over all workers into a new tensor. Differentiable.

    Args:
        tensor: see `gradlane.torch.push_pull`, also for errors.
        average: Horovod's old form of `op`: True for Average, False for Sum.
        name: equal on all workers. Without one, tensors are told apart by dtype, shape and the order of the calls.
        compression: the element type on the wire.
        op: `Average` (default), `Sum`, `Min` or `Max`.
        prescale_factor: the tensor is multiplied by it before.
        postscale_factor: the result is multiplied by it.
        process_set: that of all workers.
    Raises:
        UnsupportedError: `Adasum`, or another process set.
    """
    op = _checked(op, process_set)
    chosen = _named("allreduce", name, tensor)
    scaled = _scale(tensor, prescale_factor)
    return _scale(gl.push_pull(scaled, chosen, op=op, average=average, compression=compression), postscale_factor)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Like `allreduce`, but returns at once; `synchronize(handle)` yields the new tensor."""
    op = _checked(op, process_set)
    chosen = _named("allreduce", name, tensor)
    handle = gl.push_pull_async(_scale(tensor, prescale_factor), chosen, op=op, average=average)
    return _held(name, chosen, handle.then(lambda reduced: _scale(reduced, postscale_factor)))


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Like `allreduce`, but the result replaces `tensor`."""
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Like `allreduce_`, but returns at once. Do not use `tensor` before `synchronize(handle)` has returned."""
    op = _checked(op, process_set)
    chosen = _named("allreduce", name, tensor)
    _scale_in_place(tensor, prescale_factor)
    handle = gl.push_pull_async_inplace(tensor, chosen, op=op, average=average)
    return _held(name, chosen, handle.then(lambda reduced: _scale_in_place(reduced, postscale_factor)))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces many tensors in one call, into new ones. Arguments and errors are those of `allreduce`."""
    op = _checked(op, process_set)
    chosen = _group_name(name, tensors)
    scaled = [_scale(tensor, prescale_factor) for tensor in tensors]
    reduced = gl.grouped_push_pull(scaled, chosen, op=op, average=average, compression=compression)
    return [_scale(tensor, postscale_factor) for tensor in reduced]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """Like `grouped_allreduce`, but returns at once."""
    op = _checked(op, process_set)
    chosen = _group_name(name, tensors)
    scaled = [_scale(tensor, prescale_factor) for tensor in tensors]
    handle = gl.grouped_push_pull_async(scaled, chosen, op=op, average=average)
    return _held(name, chosen, handle.then(lambda reduced: [_scale(tensor, postscale_factor) for tensor in reduced]))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Like `grouped_allreduce`, but the results replace `tensors`."""
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """Like `grouped_allreduce_`, but returns at once. Do not use the tensors before the handle was waited for."""
    op = _checked(op, process_set)
    chosen = _group_name(name, tensors)
    for tensor in tensors:
        _scale_in_place(tensor, prescale_factor)
    handle = gl.grouped_push_pull_async_(tensors, chosen, op=op, average=average)
    return _held(
        name, chosen, handle.then(lambda reduced: [_scale_in_place(tensor, postscale_factor) for tensor in reduced])
    )


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Joins the tensors of all workers along their first dimension, in rank order; only that may differ."""
    return allgather_async(tensor, name, process_set).wait()


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """Like `allgather`; waits for the lengths of all workers, and returns while the contents are on their way."""
    check_process_set(process_set)
    if tensor.dim() == 0:
        raise InvalidArgumentError("allgather of a tensor without dimensions; give tensor.reshape(1)")
    _tensors.check_place(tensor)
    row = tensor.shape[1:]
    # The shape is no part of an unnamed one's name, because the first dimension may differ.
    rows = torch.empty(0, *row, dtype=tensor.dtype)
    chosen = _named("allgather", name, rows)
    handles = Gathering(content_of(tensor), chosen).exchange()

    def join() -> torch.Tensor:
        parts = [handle.wait() for handle in handles]
        flat = [torch.frombuffer(part, dtype=tensor.dtype) for part in parts if len(part)]
        joined = torch.cat(flat) if flat else torch.empty(0, dtype=tensor.dtype)
        count = -1 if row.numel() else 0
        return joined.view(count, *row).to(tensor.device)

    return _held(name, chosen, Handle(None, join))


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """`allgather` of several tensors."""
    named = [None if name is None else f"{name}.{position}" for position in range(len(tensors))]
    handles = [allgather_async(*one, process_set) for one in zip(tensors, named, strict=True)]
    return [handle.wait() for handle in handles]


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Gives every worker the bits of the tensor of `root_rank`, in a new tensor."""
    return broadcast_async(tensor, root_rank, name, process_set).wait()


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """Like `broadcast`, but returns at once."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Like `broadcast`, but in place."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """Like `broadcast_`, but returns at once. Do not use `tensor` before `synchronize(handle)` has returned."""
    check_process_set(process_set)
    if not 0 <= root_rank < size():
        raise InvalidArgumentError(f"root_rank={root_rank} in a job of {size()} workers")
    chosen = _named("broadcast", name, tensor)
    return _held(name, chosen, _tensors.submit_bits(tensor, chosen, root_rank))


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces `tensor`, and returns this worker's part along the first dimension; the first ranks have one row more.

    The whole sum comes to every worker.
    """
    reduced = allreduce(tensor, None, name, compression, op, prescale_factor, postscale_factor, process_set)
    return reduced.tensor_split(size())[rank()].clone()


def poll(handle: Handle[Any]) -> bool:
    """Whether the operation has ended; `synchronize` then returns at once."""
    return gl.poll(handle)


def synchronize(handle: Handle[T]) -> T:
    """Waits for an operation and returns its result."""
    return gl.synchronize(handle)


def _checked(op: Any, process_set: object) -> ReduceOp | None:
    check_process_set(process_set)
    if op is Adasum:
        raise UnsupportedError("op=Adasum does not exist here; use Average or Sum")
    if op is not None and not isinstance(op, ReduceOp):
        raise InvalidArgumentError(f"op={op!r} is no reduction; use Average, Sum, Min or Max")
    return op


def _held(name: str | None, chosen: str, handle: Handle[T]) -> Handle[T]:
    return handle if name else hold(chosen, handle)


def _named(call: str, name: str | None, tensor: torch.Tensor) -> str:
    """A tensor's name, which is another one for each kind of call, as in Horovod."""
    return f"{call}.{name}" if name else free_name(tensor, f"{call}.noname")


def _group_name(name: str | None, tensors: Sequence[torch.Tensor]) -> str:
    if not tensors:
        raise InvalidArgumentError("a group of no tensors")
    return _named(f"grouped_allreduce{len(tensors)}", name, tensors[0])


def _scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1.0 else tensor * factor


def _scale_in_place(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1.0 else tensor.mul_(factor)
