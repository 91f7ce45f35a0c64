"""`byteps.torch`: the names, positional arguments and defaults of BytePS, over `gradlane.torch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch

import gradlane.torch as gl
from gradlane.compat.byteps.common import (
    get_pushpull_speed,
    init,
    is_asynchronous,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from gradlane.compat.byteps.torch import _asynchronous
from gradlane.compat.byteps.torch.compression import Compression
from gradlane.compat.byteps.torch.ops import (
    byteps_torch_set_num_grads,
    compression_of,
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_group_sync_inplace,
    push_pull_inplace,
    synchronize,
)
from gradlane.torch.compression import Compressor

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "byteps_torch_set_num_grads",
    "declare",
    "get_pushpull_speed",
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

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

byteps_push_pull = push_pull_async_inplace


def DistributedOptimizer(
    optimizer: Kind,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
) -> Kind:
    """Makes `optimizer` average its gradients over all workers; see `gradlane.torch.DistributedOptimizer`.

    It has BytePS's `synchronize()`, `skip_synchronize()` and `set_backward_passes_per_step(n)`. Without `compression`, each
    gradient has the compressor that `declare` gave to `Gradient.` and the name of its parameter.

    With `BYTEPS_ENABLE_ASYNC=1` in the environment it averages nothing. Each worker steps by its own gradients, its change of
    the weights is added to those on the servers, and the sum takes their place, also with the changes of others. Nobody waits,
    and nothing is compressed. The job needs a server, unless the worker is alone; broadcast the parameters before the first step.
    """
    if is_asynchronous():
        return _asynchronous.make_asynchronous(optimizer, named_parameters, backward_passes_per_step)

    def declared(name: str, shape: tuple[int, ...]) -> Compressor:
        del shape
        return compression_of(f"Gradient.{name}")

    chosen = declared if compression.codec == "none" else compression
    return gl.DistributedOptimizer(optimizer, named_parameters, chosen, backward_passes_per_step)


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[torch.Tensor | tuple[str | None, torch.Tensor]],
    root_rank: int,
    prefix: str = "Parameter.",
) -> None:
    """Gives every worker the tensors of `root_rank`, in place, bit for bit.

    Args:
        params: `model.state_dict()`, `model.named_parameters()`, or a list of tensors, which get names by position.
        root_rank: the rank whose tensors all workers get.
        prefix: put before each name.
    """
    pairs = params.items() if isinstance(params, Mapping) else map(_pair, params)
    named = [(str(position) if name is None else name, tensor) for position, (name, tensor) in enumerate(pairs)]
    gl.broadcast_parameters(named, root_rank, prefix)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter.") -> None:
    """Gives every worker the optimizer state of `root_rank`; see `gradlane.torch.broadcast_optimizer_state`."""
    gl.broadcast_optimizer_state(optimizer, root_rank, prefix)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Gives every worker the object of `root_rank`, and returns it; see `gradlane.broadcast_object`."""
    return gl.broadcast_object(obj, root_rank) if name is None else gl.broadcast_object(obj, root_rank, name)


def _pair(item: torch.Tensor | tuple[str | None, torch.Tensor]) -> tuple[str | None, torch.Tensor]:
    return item if isinstance(item, tuple) else (None, item)
