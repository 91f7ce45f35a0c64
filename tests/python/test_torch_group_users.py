"""What PyTorch builds on a process group: hooks for communication, sharded optimizers, sharded tensors, checkpoints."""

import inspect
from itertools import islice

import gradlane.compat.byteps.torch as bps
import gradlane.compat.horovod.torch as hvd
import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from process_group import HOOKS, NEEDS_SHARDING_ON_CPU, by_comm_hook, by_sharding
from process_group import group as group  # a fixture of each test here
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint
from training import (
    TOLERANCE,
    adamw,
    assert_close,
    assert_equal_everywhere,
    batches,
    by_optimizer,
    by_wrapper,
    made,
    mine,
    mlp,
    sgd,
    step,
    trained_alone,
)

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(2)]

STEPS = 6


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_ddp_train(hook):
    model = nn.parallel.DistributedDataParallel(made(mlp))
    made_hook, tolerance = HOOKS[hook]
    model.register_comm_hook(*made_hook())
    optimizer = sgd(model.parameters())
    losses = [step(model, optimizer, mine(batch)) for batch in batches(STEPS)]
    assert_trained(model.module, sgd, losses, tolerance)
    assert_equal_everywhere(model, f"hook {hook}")


def test_an_optimizer_whose_state_is_sharded_trains_as_one_process():
    model = nn.parallel.DistributedDataParallel(made(mlp))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-3)
    losses = [step(model, optimizer, mine(batch)) for batch in batches(STEPS)]
    assert_trained(model.module, adamw, losses)


class Checkpointed(nn.Module):
    """A model whose activations are made again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.inner = made(mlp)

    def forward(self, inputs):
        return checkpoint(self.inner, inputs, use_reentrant=False)


def test_activations_may_be_made_again():
    model = nn.parallel.DistributedDataParallel(Checkpointed())
    optimizer = sgd(model.parameters())
    losses = [step(model, optimizer, mine(batch)) for batch in batches(STEPS)]
    assert_trained(model.module.inner, sgd, losses)


@pytest.mark.parametrize("by_all", [True, False], ids=["divided by all", "by those with data"])
def test_pytorchs_own_join_of_workers_with_uneven_batches(by_all):
    model = nn.parallel.DistributedDataParallel(made(mlp))
    optimizer, counts = sgd(model.parameters()), (2, STEPS)
    with model.join(divide_by_initial_world_size=by_all):
        for batch in islice(batches(STEPS), counts[gl.rank()]):
            step(model, optimizer, mine(batch))
    reference = made(mlp)
    stepping = sgd(reference.parameters())
    for number, batch in enumerate(batches(STEPS)):
        present = [rank for rank, count in enumerate(counts) if number < count]
        stepping.zero_grad()
        for rank in present:
            inputs, labels = (tensor[rank :: gl.size()] for tensor in batch)
            loss = nn.functional.cross_entropy(reference(inputs), labels)
            (loss / (gl.size() if by_all else len(present))).backward()
        stepping.step()
    assert_close(model.module, reference, 4 * TOLERANCE)
    assert_equal_everywhere(model, "joined")


def test_an_infinite_gradient_of_one_worker_skips_the_step_of_all():
    model = nn.parallel.DistributedDataParallel(made(mlp))
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    inputs, labels = mine(next(batches(1)))
    for poison in (float("inf") if gl.rank() == 1 else 1.0, 1.0):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss * poison).backward()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() == 512.0 and before is not None:
            assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
            before = None
    assert before is None and scaler.get_scale() == 512.0
    assert_equal_everywhere(model, "scaled")


def by_optimizer_of(package):
    def way_in(model, optimizer):
        return model, package.DistributedOptimizer(optimizer(model.parameters()), model.named_parameters())

    way_in.__name__ = package.__name__
    return way_in


@pytest.mark.over("quic")
@pytest.mark.parametrize(
    "way_in",
    [
        by_wrapper,
        by_optimizer,
        by_comm_hook,
        pytest.param(by_sharding, marks=NEEDS_SHARDING_ON_CPU),
        by_optimizer_of(bps),
        by_optimizer_of(hvd),
    ],
)
def test_activations_made_again_in_16_bits_under_a_scaler(way_in):
    def train(model, optimizer, shares):
        """Trains on the mean of these shares of each batch."""
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for inputs, labels in batches(STEPS):
            optimizer.zero_grad()
            for share in shares:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(inputs[share::2]), labels[share::2])
                scaler.scale(loss / len(shares)).backward()
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    model, reference = Checkpointed(), Checkpointed()
    assert train(*way_in(model, sgd), [gl.rank()]) == 1024.0 * 2 ** (STEPS // 2)
    train(reference, sgd(reference.parameters()), [0, 1])
    for theirs, ours in zip(reference.parameters(), model.parameters(), strict=True):
        whole = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
        torch.testing.assert_close(whole, theirs, rtol=0, atol=4 * TOLERANCE)


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_a_pipeline_of_two_stages(schedule):
    model, reference = made(mlp), made(mlp)
    part = model[:2] if gl.rank() == 0 else model[2:]
    pipeline = schedule(PipelineStage(part, gl.rank(), 2, torch.device("cpu")), 4, nn.functional.cross_entropy)
    [(inputs, labels)] = batches(1)
    losses = []
    if gl.rank() == 0:
        pipeline.step(inputs)
    else:
        pipeline.step(target=labels, losses=losses)
    # The loss of a part of the batch is a mean, and so is that of the whole.
    loss = nn.functional.cross_entropy(reference(inputs), labels)
    loss.backward()
    if losses:
        assert sum(losses).item() / 4 == pytest.approx(loss.item())
    expected = reference[:2] if gl.rank() == 0 else reference[2:]
    # PyTorch 2.6 leaves it to the script to divide by the number of parts.
    parts = 1 if "scale_grads" in inspect.signature(schedule).parameters else 4
    for theirs, ours in zip(expected.parameters(), part.parameters(), strict=True):
        torch.testing.assert_close(ours.grad / parts, theirs.grad, rtol=0, atol=TOLERANCE)


def test_a_tensor_is_sharded_gathered_and_sharded_otherwise():
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(12.0).view(6, 2)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.to_local(), whole[3 * gl.rank() : 3 * gl.rank() + 3])
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal((sharded + sharded).full_tensor(), 2 * whole)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).to_local(), whole[:, gl.rank() : gl.rank() + 1])


@NEEDS_SHARDING_ON_CPU
def test_a_checkpoint_of_a_sharded_model_is_read_again(tmp_path_factory):
    check_checkpoint(by_sharding, tmp_path_factory)


def test_a_checkpoint_of_a_wrapped_model_is_read_again(tmp_path_factory):
    check_checkpoint(by_wrapper, tmp_path_factory)


def check_checkpoint(way_in, tmp_path_factory):
    # The same folder on both workers.
    folder = [str(tmp_path_factory.mktemp("checkpoint")) if gl.rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    ahead = list(batches(STEPS))
    model, optimizer = way_in(made(mlp), adamw)
    losses = [step(model, optimizer, mine(batch)) for batch in ahead[:3]]
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder[0])

    resumed, its_optimizer = way_in(made(mlp, seed=8), adamw)
    weights, moments = get_state_dict(resumed, its_optimizer)
    read = {"model": weights, "optimizer": moments}
    dcp.load(read, checkpoint_id=folder[0])
    set_state_dict(resumed, its_optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"])
    for batch in ahead[3:]:
        losses.append(step(resumed, its_optimizer, mine(batch)))
    assert_trained(resumed, adamw, losses)


def assert_trained(model, optimizer, losses, tolerance=4 * TOLERANCE):
    """The model is what one process makes of the same batches."""
    reference, _ = trained_alone(mlp, optimizer, STEPS)
    assert losses[-1] < losses[0]
    for theirs, ours in zip(reference.parameters(), model.parameters(), strict=True):
        whole = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
        torch.testing.assert_close(whole, theirs, rtol=0, atol=tolerance)
