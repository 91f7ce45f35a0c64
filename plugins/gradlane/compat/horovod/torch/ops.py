"""The operations of `horovod.torch` whose results all workers get, with Horovod's positional arguments."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

import gradlane.torch as gl
from gradlane import Average, Handle, _sets
from gradlane._handle import begin_all, joined
from gradlane._objects import Gathering
from gradlane._operations import check_root
from gradlane._reduction import Reduction, broadcast_of
from gradlane.compat._background import in_turn
from gradlane.compat.horovod.common import ProcessSet, global_process_set, members_of, root_of
from gradlane.compat.horovod.torch._calls import Scaled, begin, scale, scale_in_place, scaled
from gradlane.errors import InvalidArgumentError, MismatchError
from gradlane.torch import _tensors, groups
from gradlane.torch._sparse import content_of
from gradlane.torch.compression import Compression, Compressor
from gradlane.torch.ops import begin_copy, begin_in_place, check_in_place, is_differentiable, join_graph

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
    how = scaled(average, op, (prescale_factor, postscale_factor), process_set, compression)
    return _allreduce(True, tensor, name, how).wait()


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
    return _allreduce(False, tensor, name, scaled(average, op, (prescale_factor, postscale_factor), process_set))


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
    how = scaled(average, op, (prescale_factor, postscale_factor), process_set)
    return _allreduce_in_place(True, tensor, name, how).wait()


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
    how = scaled(average, op, (prescale_factor, postscale_factor), process_set)
    return _allreduce_in_place(False, tensor, name, how)


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
    how = scaled(average, op, (prescale_factor, postscale_factor), process_set, compression)
    return _grouped(True, tensors, name, how).wait()


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
    return _grouped(False, tensors, name, scaled(average, op, (prescale_factor, postscale_factor), process_set))


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
    how = scaled(average, op, (prescale_factor, postscale_factor), process_set)
    return _grouped_in_place(True, tensors, name, how).wait()


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
    how = scaled(average, op, (prescale_factor, postscale_factor), process_set)
    return _grouped_in_place(False, tensors, name, how)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Joins the tensors of the workers along their first dimension, in rank order; only that may differ.

    Differentiable if the tensors of all workers are. As in Horovod, the gradient is the mean of those of the workers.
    """
    return _allgather(True, tensor, name, process_set).wait()


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """Like `allgather`, but returns at once; `synchronize(handle)` yields the new tensor."""
    return _allgather(False, tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """`allgather` of several tensors."""
    return grouped_allgather_async(tensors, name, process_set).wait()


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[list[torch.Tensor]]:
    """Like `grouped_allgather`, but returns at once."""
    named = [None if name is None else f"{name}.{position}" for position in range(len(tensors))]
    starts = [partial(allgather_async, *one, process_set) for one in zip(tensors, named, strict=True)]
    return joined(begin_all(starts))


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
    root = root_of(root_rank)
    handle = broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)
    if not is_differentiable([tensor]):
        return handle

    def own(mean: torch.Tensor) -> torch.Tensor:
        return mean if root == gl.rank() else torch.zeros_like(mean)

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
    reduction = broadcast_of(check_root(root_of(root_rank), members), process_set=members)
    _tensors.check_place(tensor)

    def submit(chosen: str) -> Handle[torch.Tensor]:
        return _tensors.submit_bits(tensor, chosen, reduction)

    return begin("broadcast", name, [tensor], reduction, submit)


def poll(handle: Handle[Any]) -> bool:
    """Whether the operation has ended; `synchronize` then returns at once."""
    return gl.poll(handle)


def synchronize(handle: Handle[T]) -> T:
    """Waits for an operation and returns its result."""
    return gl.synchronize(handle)


def _allreduce(waits: bool, tensor: torch.Tensor, name: str | None, how: Scaled) -> Handle[torch.Tensor]:
    _tensors.check_place(tensor)
    differentiable = is_differentiable([tensor], how.reduction)
    given = scale(tensor.detach(), how.before)

    def submit(chosen: str) -> Handle[torch.Tensor]:
        return begin_copy(waits, given, chosen, how.reduction)

    handle = begin("allreduce", name, [tensor], how.reduction, submit, waits=waits).then(
        lambda reduced: scale(reduced, how.after)
    )
    if not differentiable:
        return handle

    def again(_: list[int], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_allreduce(True, gradients[0], f"{name}.backward" if name else None, how).wait()]

    return handle.then(lambda reduced: join_graph([reduced], [tensor], again)[0])


def _allreduce_in_place(waits: bool, tensor: torch.Tensor, name: str | None, how: Scaled) -> Handle[torch.Tensor]:
    _tensors.check_place(tensor)
    check_in_place(tensor)
    scale_in_place(tensor, how.before)

    def submit(chosen: str) -> Handle[torch.Tensor]:
        return begin_in_place(waits, tensor, chosen, how.reduction)

    return begin("allreduce", name, [tensor], how.reduction, submit, waits=waits).then(
        lambda reduced: scale_in_place(reduced, how.after)
    )


def _grouped(
    waits: bool, tensors: Sequence[torch.Tensor], name: str | None, how: Scaled
) -> Handle[list[torch.Tensor]]:
    tensors = _checked_group(tensors)
    differentiable = is_differentiable(tensors, how.reduction)
    given = [scale(tensor.detach(), how.before) for tensor in tensors]

    def submit(chosen: str) -> Handle[list[torch.Tensor]]:
        return groups.begin_copies(waits, given, chosen, how.reduction)

    handle = _begin_group(waits, name, tensors, how.reduction, submit).then(
        lambda reduced: [scale(tensor, how.after) for tensor in reduced]
    )
    if not differentiable:
        return handle

    def again(_: list[int], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        return _grouped(True, gradients, f"{name}.backward" if name else None, how).wait()

    return handle.then(lambda reduced: join_graph(reduced, tensors, again))


def _grouped_in_place(
    waits: bool, tensors: Sequence[torch.Tensor], name: str | None, how: Scaled
) -> Handle[list[torch.Tensor]]:
    tensors = _checked_group(tensors)
    for tensor in tensors:
        check_in_place(tensor)
    for tensor in tensors:
        scale_in_place(tensor, how.before)

    def submit(chosen: str) -> Handle[list[torch.Tensor]]:
        return groups.begin_in_place(waits, tensors, chosen, how.reduction)

    return _begin_group(waits, name, tensors, how.reduction, submit).then(
        lambda reduced: [scale_in_place(tensor, how.after) for tensor in reduced]
    )


def _begin_group(
    waits: bool,
    name: str | None,
    tensors: Sequence[torch.Tensor],
    reduction: Reduction,
    submit: Callable[[str], Handle[T]],
) -> Handle[T]:
    count = len(tensors)

    def parts(chosen: str) -> list[str]:
        return [f"{chosen}.{position}" for position in range(count)]

    return begin(f"grouped_allreduce{count}", name, tensors, reduction, submit, parts, waits=waits)


def _checked_group(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if not tensors:
        raise InvalidArgumentError("a group of no tensors")
    for tensor in tensors:
        _tensors.check_place(tensor)
    return list(tensors)


def _allgather(
    waits: bool, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
) -> Handle[torch.Tensor]:
    members = members_of(process_set)
    _tensors.check_place(tensor)
    is_in_graph = is_differentiable([tensor])
    if tensor.dim() == 0:
        raise InvalidArgumentError("allgather of a tensor without dimensions; give tensor.reshape(1)")
    row, dtype = tensor.shape[1:], tensor.dtype
    kind = f"{_tensors.dtype_name(dtype)} {list(row)}"
    mark = zlib.crc32(kind.encode()).to_bytes(_MARK_BYTES, "little")

    def submit(chosen: str) -> Handle[dict[int, memoryview]]:
        gathering = Gathering(mark + bytes(content_of(tensor)), chosen, process_set=members)
        return in_turn(_sets.name_in_job(chosen, members), gathering.finish, waits=waits)

    def join(parts: dict[int, memoryview]) -> torch.Tensor:
        for worker, part in parts.items():
            if part[:_MARK_BYTES] != mark:
                raise MismatchError(
                    f"allgather: rows of worker {gl.rank()} are {kind}, and those of worker {worker} are not; give rows "
                    "of one shape and element type on all workers",
                    tensor=name or "allgather",
                    field="shape",
                    first=(gl.rank(), kind),
                    second=(worker, "other rows"),
                )
        contents = [part[_MARK_BYTES:] for part in parts.values()]
        flat = [torch.frombuffer(content, dtype=dtype) for content in contents if len(content)]
        joined = torch.cat(flat) if flat else torch.empty(0, dtype=dtype)
        count = -1 if row.numel() else 0
        rows = joined.view(count, *row).to(tensor.device)
        if not is_in_graph:
            return rows
        before = sum(len(content) for content in contents[: list(parts).index(gl.rank())])
        first = before // (row.numel() * tensor.element_size()) if row.numel() else 0
        return _with_mean_gradient(rows, tensor, process_set, lambda mean: mean[first : first + len(tensor)])

    # Bytes travel, under names that know no shape.
    among = Reduction(process_set=members)
    return begin("allgather", name, [], among, submit, parts=lambda _: [], waits=waits).then(join)


_MARK_BYTES = 16
"""Before the content of a worker stands what kind of rows it is; of this length, which keeps the content aligned."""


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
