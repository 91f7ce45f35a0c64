"""Small trainings whose distributed and single-process results can be compared."""

from __future__ import annotations

import hashlib

import gradlane.torch as gl
import torch
import torch.nn.functional as F
from torch import nn

TOLERANCE = 1e-6
"""Absolute, on weights of about 1 in float32: a few roundings, as the sum over workers is taken in another order."""

BATCH = 16


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))


def made(model, seed=7):
    """A model whose weights follow from `seed`."""
    torch.manual_seed(seed)
    return model()


def batches(steps, seed=3, different=2):
    """`different` batches of 8x8 inputs in turn, with labels that can be learned; the same on all workers."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(different, BATCH, 1, 8, 8, generator=generator)
    rule = torch.randn(64, 10, generator=generator)
    for number in range(steps):
        batch = inputs[number % different]
        yield batch, (batch.flatten(1) @ rule).argmax(1)


def mine(batch):
    """This worker's share of a batch; all shares are of one size, so the mean of means is the mean."""
    return tuple(tensor[gl.rank() :: gl.size()] for tensor in batch)


def step(model, optimizer, batch):
    inputs, labels = batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def trained_alone(model, optimizer, steps, seed=7, different=2):
    """What a single process makes of the whole batches."""
    reference = made(model, seed)
    stepping = optimizer(reference.parameters())
    losses = [step(reference, stepping, batch) for batch in batches(steps, different=different)]
    return reference, losses


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3)


def by_wrapper(model, optimizer):
    wrapped = gl.DistributedDataParallel(model)
    return wrapped, optimizer(wrapped.parameters())


def by_optimizer(model, optimizer):
    gl.broadcast_parameters(model.state_dict())
    return model, gl.DistributedOptimizer(optimizer(model.parameters()), model.named_parameters())


def by_cross_barrier(model, optimizer):
    gl.broadcast_parameters(model.state_dict())
    return model, gl.CrossBarrier(model, optimizer(model.parameters()))


def assert_equal_everywhere(model, name):
    """The model is bit for bit the same on all workers."""
    state = hashlib.sha256()
    for tensor in model.state_dict().values():
        state.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    digests = gl.allgather_object(state.hexdigest(), f"digest {name}")
    assert len(set(digests)) == 1, digests


def assert_close(model, reference, tolerance=TOLERANCE):
    """The parameters of the two models agree to within `tolerance`."""
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    distance = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
    assert distance <= tolerance, distance
