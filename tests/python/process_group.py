"""The process group that tests of `torch.distributed` share, and ways into Gradlane over it."""

from __future__ import annotations

from collections.abc import Generator

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from workers import NO_SHARDING, shards_on_cpu

NEEDS_SHARDING_ON_CPU = pytest.mark.skipif(not shards_on_cpu(), reason=NO_SHARDING)
"""For tests that train with `fully_shard`."""



def power_sgd():
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=8, start_powerSGD_iter=2, min_compression_rate=1
    )
    return state, powerSGD_hook.powerSGD_hook


HOOKS = {
    "fp16": (lambda: (None, default_hooks.fp16_compress_hook), 2e-3),
    "bf16": (lambda: (None, default_hooks.bf16_compress_hook), 2e-2),
    "PowerSGD": (power_sgd, 0.2),
}
"""Each hook of PyTorch's DDP, and how far the weights of a small training may be from those of exact sums."""


@pytest.fixture(autouse=True, scope="module")
def group() -> Generator[None, None, None]:
    """The group of all workers, which PyTorch has one of in a process."""
    if not gl.is_initialized():  # outside of workers only the outcomes are read
        yield
        return
    dist.init_process_group("gradlane", store=dist.HashStore(), rank=gl.rank(), world_size=gl.size())
    yield
    dist.destroy_process_group()


def by_comm_hook(model, optimizer):
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(gl.State(model), gl.ddp_comm_hook)
    return wrapped, optimizer(wrapped.parameters())


def by_sharding(model, optimizer):
    gl.broadcast_parameters(model.state_dict())
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, optimizer(model.parameters())
