"""`torch.ops.gradlane.push_pull`: the reduction as an operator of PyTorch, which compiled functions may call.

    @torch.compile(fullgraph=True)
    def shared_mean(x):
        return torch.ops.gradlane.push_pull(x * 2, "activations", True)
"""

from __future__ import annotations

from typing import Any

import torch

from gradlane.torch import ops


@torch.library.custom_op("gradlane::push_pull", mutates_args=())
def push_pull(x: torch.Tensor, name: str, average: bool = True) -> torch.Tensor:
    """Averages (or sums) `x` over all workers into a new tensor; see `gradlane.torch.push_pull`. Differentiable."""
    return ops.push_pull(x, name, average=average)


@push_pull.register_fake
def _(x: torch.Tensor, name: str, average: bool = True) -> torch.Tensor:
    del name, average
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _remember(ctx: Any, inputs: tuple[torch.Tensor, str, bool], output: torch.Tensor) -> None:
    del output
    _, ctx.name, ctx.average = inputs


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    """The gradient of a mean (or sum) over workers is the mean (or sum) of their gradients."""
    return push_pull(gradient, f"{ctx.name}.backward", ctx.average), None, None


push_pull.register_autograd(_backward, setup_context=_remember)
