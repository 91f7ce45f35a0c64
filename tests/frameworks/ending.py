"""What each script of this folder says at its end."""

import os

import torch
import torch.distributed as dist


def tell(model):
    """Prints whether all ranks have the same weights, which came from different ones."""
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    theirs = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, weights)
    equal = all(torch.equal(weights, other) for other in theirs)
    line = f"rank {dist.get_rank()} of {dist.get_world_size()} over {dist.get_backend()}: weights are equal: {equal}\n"
    os.write(1, line.encode())


def data():
    """32 rows of 8 numbers with a label each."""
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(inputs, torch.arange(32) % 2)
