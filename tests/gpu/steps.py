"""The step time of a real model, by every way in, and without any exchange; synthetic data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import gradlane.torch as gl
import torch
import torch.nn.functional as F
from groups import gloo, nccl
from places import IS_SHORT, put, put_module, settle
from resnet import resnet
from telling import figure, passed
from torch import nn

BATCH, PIXELS = (2, 32) if IS_SHORT else (64, 224)
STEPS = 2 if IS_SHORT else 20
PARAMETERS = 25_557_032
"""Of ResNet-50."""


def step_servers() -> None:
    """Through a server of this machine."""
    measure_ours()


def measure_ours() -> float:
    """Without an exchange, and both ways in; the first of these times."""
    ways = {"no exchange": lambda model: model, "DistributedDataParallel": by_wrapper, "PyTorch's hook": by_hook}
    return measure(ways)


def step_nccl() -> None:
    """Among the ranks of this machine; then PyTorch's own wrapper over its own NCCL."""
    alone = measure_ours()
    group = nccl()
    if group is not None:
        theirs = partial(nn.parallel.DistributedDataParallel, process_group=group)
        measure({"PyTorch's own over NCCL": theirs}, alone)


def measure(ways: dict[str, Callable[[nn.Module], nn.Module]], alone: float = 0.0) -> float:
    """Trains a new model each way and compares the workers' weights; the time of a step without an exchange."""
    for name, way_in in ways.items():
        torch.manual_seed(7)
        model = put_module(resnet((1, 1, 1, 1), 8, 10) if IS_SHORT else resnet())
        assert IS_SHORT or sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS
        seconds = step_seconds(way_in(model))
        figure(f"{name}: a step", seconds * 1e3, "ms")
        figure(f"{name}: images a second, each worker", BATCH / seconds)
        if name == "no exchange":
            alone = seconds
        else:
            figure(f"{name}: a step, of that without an exchange", seconds / alone)
            weights = gl.allgather_object([p.double().sum().item() for p in model.parameters()], f"weights {name}")
            assert all(other == weights[0] for other in weights), f"{name}: the workers' weights differ"
            passed(f"{name}: the weights are the same on all workers")
    return alone


def step_seconds(model: nn.Module) -> float:
    """The median step on data of this worker's own."""
    generator = torch.Generator().manual_seed(gl.rank())
    images = put(torch.randn(BATCH, 3, PIXELS, PIXELS, generator=generator))
    labels = put(torch.randint(0, 10, (BATCH,), generator=generator))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    times = []
    for _ in range(STEPS + 3):
        settle()
        gl.barrier("step")
        begun = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        settle()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[3:])


def by_wrapper(model: nn.Module) -> nn.Module:
    """By the wrapper of Gradlane."""
    return gl.DistributedDataParallel(model)


def by_hook(model: nn.Module) -> nn.Module:
    """By PyTorch's wrapper with the hook of Gradlane."""
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=gloo())
    wrapped.register_comm_hook(gl.State(model), gl.ddp_comm_hook)
    return wrapped
