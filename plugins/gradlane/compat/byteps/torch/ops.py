"""`byteps.torch.ops`: reductions of tensors with BytePS's positional arguments."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

import gradlane.torch as gl
from gradlane import Handle
from gradlane._reduction import Reduction, reduction_of
from gradlane.compat._unnamed import begin_unnamed
from gradlane.compat.byteps._compressors import compressor_of
from gradlane.compat.byteps.common import (
    init,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from gradlane.errors import InvalidArgumentError
from gradlane.torch import _tensors
from gradlane.torch.compression import Compression, Compressor
from gradlane.torch.ops import begin_copy, begin_in_place, is_differentiable, join_graph

__all__ = [
    "byteps_torch_set_num_grads",
    "declare",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]

T = TypeVar("T")


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Compressor = Compression.none,
) -> torch.Tensor:
    """Averages (or sums) `tensor` over all workers into a new tensor. Differentiable.

    Args:
        tensor: see `gradlane.torch.push_pull`, also for errors.
        average: whether the sum is divided by the number of workers.
        name: equal on all workers. Without one, tensors are told apart by dtype, shape and the order of the calls. BytePS
            gives one name to all of them, so two with different shapes overwrite each other's memory.
        version: has no effect; the engine counts rounds itself.
        priority: higher goes first; only the order matters.
        compression: the element type on the wire.
    """
    del version
    return _begin(True, tensor, name, reduction_of(average=average, priority=priority, compression=compression_of(name, compression))).wait()


def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Handle[torch.Tensor]:
    """Like `push_pull`, but returns at once; `synchronize(handle)` yields the new tensor."""
    del version
    return _begin(False, tensor, name, reduction_of(average=average, priority=priority, compression=compression_of(name)))


def push_pull_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> torch.Tensor:
    """Like `push_pull`, but the result replaces `tensor`."""
    del version
    return _begin_in_place(True, tensor, name, reduction_of(average=average, priority=priority, compression=compression_of(name))).wait()


def push_pull_async_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Handle[torch.Tensor]:
    """Like `push_pull_inplace`, but returns at once. Do not use `tensor` before `synchronize(handle)` has returned."""
    del version
    return _begin_in_place(False, tensor, name, reduction_of(average=average, priority=priority, compression=compression_of(name)))


def _begin(waits: bool, tensor: torch.Tensor, name: str | None, reduction: Reduction) -> Handle[torch.Tensor]:
    """Begins with a copy. The result is part of the graph of `tensor`."""
    if name:
        return begin_copy(waits, tensor, name, reduction)
    _tensors.check_place(tensor)
    differentiable, plain = is_differentiable([tensor], reduction), tensor.detach()
    handle = begin_unnamed([tensor], lambda chosen: begin_copy(waits, plain, chosen, reduction), waits=waits)
    if not differentiable:
        return handle

    def again(_: list[int], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_begin(True, gradient, None, reduction).wait() for gradient in gradients]

    return handle.then(lambda reduced: join_graph([reduced], [tensor], again)[0])


def _begin_in_place(
    waits: bool, tensor: torch.Tensor, name: str | None, reduction: Reduction
) -> Handle[torch.Tensor]:
    def submit(chosen: str) -> Handle[torch.Tensor]:
        return begin_in_place(waits, tensor, chosen, reduction)

    if name:
        return submit(name)
    _tensors.check_place(tensor)
    return begin_unnamed([tensor], submit, waits=waits)


def byteps_torch_set_num_grads(num_grads: int) -> None:
    """Says how many gradients `push_pull_group_sync_inplace` counts before it begins anew."""
    _group.begin(num_grads)


def push_pull_group_sync_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> tuple[Handle[torch.Tensor], int]:
    """Like `push_pull_async_inplace`; also returns how many gradients of this pass have been submitted."""
    handle = push_pull_async_inplace(tensor, average, name, version, priority)
    return handle, _group.count()


def poll(handle: Handle[Any]) -> bool:
    """Whether the operation has ended; `synchronize` then returns at once."""
    return gl.poll(handle)


def synchronize(handle: Handle[T]) -> T:
    """Waits for an operation and returns its result."""
    return gl.synchronize(handle)


def declare(name: str, **compression: object) -> None:
    """Says how the tensor of this name is compressed; the rest is declared at its first use, by what is known then.

    Args:
        name: of a tensor, equal on all workers. `Gradient.` and the name of a parameter stand for that of an optimizer that
            is made distributed later.
        compression: BytePS's `byteps_compressor_type` (onebit, topk, randomk, dithering) and what belongs to it:
            `byteps_compressor_k`, `byteps_compressor_onebit_scaling`, `byteps_dithering_partition`,
            `byteps_dithering_normalize`, `byteps_ef_type`, `byteps_momentum_type`, `byteps_momentum_mu`, `byteps_seed`.
    Raises:
        InvalidArgumentError: another keyword, or a value without meaning.
        UnsupportedError: a compressor, or a form of one, that does not exist here.
    """
    compressor = compressor_of(name, compression)
    if compressor is not None:
        _compressors[name] = compressor
    gl.declare(name)


def compression_of(name: str | None, given: Compressor = Compression.none) -> Compressor:
    """The compressor of a tensor: that of its call, or that of `declare`."""
    return given if name is None or given.codec != "none" else _compressors.get(name, given)


_compressors: dict[str, Compressor] = {}
"""Those of `declare`, by the name of a tensor."""


class _Group:
    """Counts the gradients of a backward pass."""

    def __init__(self) -> None:
        self._size = 0
        self._count = 0

    def begin(self, size: int) -> None:
        """Makes groups of `size` from now on."""
        if size < 1:
            raise InvalidArgumentError(f"byteps_torch_set_num_grads({size}); give at least 1")
        self._size, self._count = size, 0

    def count(self) -> int:
        """The position in its group of the next gradient, from 1."""
        if self._size == 0:
            raise InvalidArgumentError("push_pull_group_sync_inplace before byteps_torch_set_num_grads(n)")
        self._count = self._count % self._size + 1
        return self._count


_group = _Group()
