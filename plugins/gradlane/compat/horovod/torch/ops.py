"""The operations of `horovod.torch` whose results all workers get, with Horovod's positional arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

import gradlane.torch as gl
from gradlane import Average, Handle, _sets
from gradlane import ProcessSet as Workers
from gradlane._handle import joined
from gradlane._objects import Gathering
from gradlane._operations import check_root
from gradlane.compat.horovod.common import ProcessSet, global_process_set, members_of
from gradlane.compat.horovod.torch._calls import checked_op, held, named, scale, scale_in_place
from gradlane.errors import InvalidArgumentError
from gradlane.torch import _tensors
from gradlane.torch._sparse import content_of
from gradlane.torch.compression import Compression, Compressor
from gradlane.torch.ops import is_differentiable, join_graph

T = TypeVar("T")


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
    """Reduces `tensor` over the workers into a new tensor. Differentiable.

    Args:
        tensor: see `gradlane.torch.push_pull`, also for errors.
        average: Horovod's old form of `op`: True for Average, False for Sum.
        name: equal on all workers. Without one, tensors are told apart by dtype, shape and the order of the calls.
        compression: the element type on the wire.
        op: `Average` (default), `Sum`, `Min` or `Max`.
        prescale_factor: the tensor is multiplied by it before.
        postscale_factor: the result is multiplied by it.
        process_set: the workers that take part, of which this one is a member.
    Raises:
        UnsupportedError: `Adasum`.
        InvalidArgumentError: this worker is not in the process set.
        FailedPreconditionError: the process set was not added, or was removed.
    """
    members, op = members_of(process_set), checked_op(op)
    chosen = named("allreduce", name, tensor, members, compression)
    scaled = scale(tensor, prescale_factor)
    reduced = gl.push_pull(scaled, chosen, op=op, average=average, compression=compression, process_set=members)
    return scale(reduced, postscale_factor)


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
    members, op = members_of(process_set), checked_op(op)
    chosen = named("allreduce", name, tensor, members)
    handle = gl.push_pull_async(scale(tensor, prescale_factor), chosen, op=op, average=average, process_set=members)
    return held(name, chosen, members, handle.then(lambda reduced: scale(reduced, postscale_factor)))


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
    members, op = members_of(process_set), checked_op(op)
    chosen = named("allreduce", name, tensor, members)
    scale_in_place(tensor, prescale_factor)
    handle = gl.push_pull_async_inplace(tensor, chosen, op=op, average=average, process_set=members)
    return held(name, chosen, members, handle.then(lambda reduced: scale_in_place(reduced, postscale_factor)))


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
    members, op = members_of(process_set), checked_op(op)
    chosen = _group_name(name, tensors, members, compression)
    scaled = [scale(tensor, prescale_factor) for tensor in tensors]
    reduced = gl.grouped_push_pull(scaled, chosen, op=op, average=average, compression=compression, process_set=members)
    return [scale(tensor, postscale_factor) for tensor in reduced]


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
    members, op = members_of(process_set), checked_op(op)
    chosen = _group_name(name, tensors, members)
    scaled = [scale(tensor, prescale_factor) for tensor in tensors]
    handle = gl.grouped_push_pull_async(scaled, chosen, op=op, average=average, process_set=members)
    scaled_back = handle.then(lambda reduced: [scale(tensor, postscale_factor) for tensor in reduced])
    return held(name, chosen, members, scaled_back)


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
    members, op = members_of(process_set), checked_op(op)
    chosen = _group_name(name, tensors, members)
    for tensor in tensors:
        scale_in_place(tensor, prescale_factor)
    handle = gl.grouped_push_pull_async_(tensors, chosen, op=op, average=average, process_set=members)
    scaled_back = handle.then(lambda reduced: [scale_in_place(tensor, postscale_factor) for tensor in reduced])
    return held(name, chosen, members, scaled_back)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Joins the tensors of the workers along their first dimension, in rank order; only that may differ.

    Differentiable if the tensors of all workers are. As in Horovod, the gradient is the mean of those of the workers.
    """
    return allgather_async(tensor, name, process_set).wait()


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """Like `allgather`; waits for the lengths of all workers, and returns while the contents are on their way."""
    members, is_in_graph = members_of(process_set), is_differentiable([tensor], {})
    if tensor.dim() == 0:
        raise InvalidArgumentError("allgather of a tensor without dimensions; give tensor.reshape(1)")
    _tensors.check_place(tensor)
    row = tensor.shape[1:]
    # The shape is no part of an unnamed one's name, because the first dimension may differ.
    rows = torch.empty(0, *row, dtype=tensor.dtype)
    chosen = named("allgather", name, rows, members)
    handles = Gathering(content_of(tensor), chosen, process_set=members).exchange()

    def join(parts: list[memoryview]) -> torch.Tensor:
        flat = [torch.frombuffer(part, dtype=tensor.dtype) for part in parts if len(part)]
        joined = torch.cat(flat) if flat else torch.empty(0, dtype=tensor.dtype)
        count = -1 if row.numel() else 0
        rows = joined.view(count, *row).to(tensor.device)
        if not is_in_graph:
            return rows
        before = sum(len(part) for part in parts[: _sets.members_of(members).index(gl.rank())])
        first = before // (row.numel() * tensor.element_size()) if row.numel() else 0
        return _with_mean_gradient(rows, tensor, process_set, lambda mean: mean[first : first + len(tensor)])

    return held(name, chosen, members, joined(handles).then(join))


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """`allgather` of several tensors."""
    return grouped_allgather_async(tensors, name, process_set).wait()


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[list[torch.Tensor]]:
    """Like `grouped_allgather`; waits for the lengths of all workers, and returns while the contents are on their way."""
    named = [None if name is None else f"{name}.{position}" for position in range(len(tensors))]
    return joined([allgather_async(*one, process_set) for one in zip(tensors, named, strict=True)])


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Gives every worker the bits of the tensor of `root_rank`, in a new tensor.

    `root_rank` is a rank in the job, also with a process set, of which the root must be a member. Differentiable if the
    tensors of all workers are. As in Horovod, the gradient at the root is the mean of those of the workers; it is 0 at
    the others.
    """
    return broadcast_async(tensor, root_rank, name, process_set).wait()


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """Like `broadcast`, but returns at once."""
    handle = broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)
    if not is_differentiable([tensor], {}):
        return handle

    def own(mean: torch.Tensor) -> torch.Tensor:
        return mean if root_rank == gl.rank() else torch.zeros_like(mean)

    return handle.then(lambda copy: _with_mean_gradient(copy, tensor, process_set, own))


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Like `broadcast`, but in place."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """Like `broadcast_`, but returns at once. Do not use `tensor` before `synchronize(handle)` has returned."""
    members = members_of(process_set)
    root = check_root(root_rank, members)
    chosen = named("broadcast", name, tensor, members)
    return held(name, chosen, members, _tensors.submit_bits(tensor, chosen, root, process_set=members))


def poll(handle: Handle[Any]) -> bool:
    """Whether the operation has ended; `synchronize` then returns at once."""
    return gl.poll(handle)


def synchronize(handle: Handle[T]) -> T:
    """Waits for an operation and returns its result."""
    return gl.synchronize(handle)


def _with_mean_gradient(
    result: torch.Tensor,
    tensor: torch.Tensor,
    process_set: ProcessSet,
    own: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Makes `result` part of the graph of `tensor`, whose gradient is `own` of the mean of the workers' gradients.

    The mean has no name of its own, because the shape of one may change.
    """

    def again(_: list[int], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        return [own(allreduce(gradients[0], op=Average, process_set=process_set))]

    return join_graph([result], [tensor], again)[0]


def _group_name(
    name: str | None,
    tensors: Sequence[torch.Tensor],
    members: Workers | None,
    compression: Compressor = Compression.none,
) -> str:
    if not tensors:
        raise InvalidArgumentError("a group of no tensors")
    return named(f"grouped_allreduce{len(tensors)}", name, tensors[0], members, compression)
