"""The process group that tests of `torch.distributed` share."""

from __future__ import annotations

from collections.abc import Generator

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist

NEEDS_SHARDING_ON_CPU = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of this release of PyTorch runs on GPUs alone"
)
"""For tests that train with `fully_shard`, which PyTorch 2.6 cannot do on the CPU."""


@pytest.fixture(autouse=True, scope="module")
def group() -> Generator[None, None, None]:
    """The group of all workers, which PyTorch has one of in a process."""
    if not gl.is_initialized():  # outside of workers only the outcomes are read
        yield
        return
    dist.init_process_group("gradlane", store=dist.HashStore(), rank=gl.rank(), world_size=gl.size())
    yield
    dist.destroy_process_group()
