"""Clipping by the norm of all gradients of a round, wherever their servers are."""

import gradlane
import numpy as np
import pytest
import torch
from gradlane import InvalidArgumentError, MismatchError, modes, parameters, rules

pytestmark = [
    pytest.mark.workers(1, 2, servers=3, settings={"partition_bytes": "64KiB"}),
    pytest.mark.over("local", "shm", "quic"),
]

STEPS = 100
SHAPES = [(7, 13), (3,), (50_000,)]
"""The last one has several parts, on all servers."""

PAIRS = [
    (
        lambda clip: rules.SGD(lr=0.05, momentum=0.9, weight_decay=0.01, clip_norm=clip),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    ),
    (
        lambda clip: rules.AdamW(lr=0.01, weight_decay=0.1, clip_norm=clip),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ),
    (
        lambda clip: rules.RMSprop(lr=0.01, momentum=0.5, clip_norm=clip),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    ),
]


def gradients(step, rank):
    """Those of a worker in a step, from float32's numbers. Their norm is now above the bound and now below."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    size = 0.1 if step % 3 == 0 else 1.0
    return [size * torch.randn(shape, generator=generator).double() for shape in SHAPES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("rule", "peer"), PAIRS, ids=["sgd", "adamw", "rmsprop"])
def test_a_hundred_steps_are_those_of_pytorch_with_clip_grad_norm(rule, peer, dtype):
    """Float32 is compared with a run in float64, so no error of the peer is in it."""
    rank, size, clip = gradlane.rank(), gradlane.size(), 60.0
    clock = parameters.Clock(f"clips {rule(clip)} {dtype}", modes.Sync())
    names = [f"clipped {rule(clip)} {dtype} {number}" for number in range(len(SHAPES))]
    first = gradients(1000, 0)
    values = [each.to(dtype) for each in first]
    for name, value in zip(names, values, strict=True):
        parameters.init(name, value, rule=rule(clip), mode=clock)
    ours = [torch.nn.Parameter(each.float().double()) for each in first]
    if dtype == torch.float64:
        ours = [torch.nn.Parameter(each.clone()) for each in first]
    optimizer, clipped = peer(ours), 0
    for step in range(STEPS):
        own = [each.to(dtype) for each in gradients(step, rank)]
        for name, gradient in zip(names, own, strict=True):
            parameters.push(name, gradient, update="step")
        all_workers = [[each.to(dtype).double() for each in gradients(step, other)] for other in range(size)]
        for parameter, *each in zip(ours, *all_workers, strict=True):
            parameter.grad = sum(each) / size
        clipped += torch.nn.utils.clip_grad_norm_(ours, clip) > clip
        optimizer.step()
        clock.tick()
    assert 30 < clipped < 70, "some steps are clipped, and some are not"
    for name, value, expected in zip(names, values, ours, strict=True):
        assert parameters.pull(name, value) == 1 + STEPS
        error = 1e-12 if dtype == torch.float64 else 2e-6
        torch.testing.assert_close(value.double(), expected.detach(), rtol=error, atol=error)


def test_a_parameter_whose_rule_clips_nothing_is_left_alone():
    clock = parameters.Clock("some", modes.Sync(merge="sum"))
    parameters.init("some clipped", np.zeros(4), rule=rules.SGD(lr=1.0, clip_norm=1.0), mode=clock)
    parameters.init("some free", np.zeros(4), rule=rules.SGD(lr=1.0), mode=clock)
    for name in ("some clipped", "some free"):
        parameters.push(name, np.full(4, 8.0 / gradlane.size()), update="step")
    clock.tick()
    value = np.zeros(4)
    assert parameters.pull("some free", value) == 2
    assert value.tolist() == [-8.0] * 4
    parameters.pull("some clipped", value)
    assert value.tolist() == pytest.approx([-0.5] * 4, abs=1e-6), "the norm was 16"


def test_a_value_and_a_norm_are_bounded_in_this_order():
    clock = parameters.Clock("both", modes.Sync())
    rule = rules.SGD(lr=1.0, clip_norm=5.0, clip_value=3.5)
    parameters.init("both", np.zeros(2), rule=rule, mode=clock)
    parameters.push("both", np.array([6.0, 8.0]), update="step")
    clock.tick()
    value = np.zeros(2)
    parameters.pull("both", value)
    assert value.tolist() == pytest.approx([-3.0, -3.5], abs=1e-6)


def test_a_norm_needs_rounds_and_all_parameters_of_a_clock_name_the_same():
    for mode in (None, modes.Async(), parameters.Clock("no rounds", modes.SSP(1))):
        with pytest.raises(InvalidArgumentError, match="has no rounds: clip_norm"):
            parameters.init("never", np.zeros(2), rule=rules.SGD(clip_norm=1.0), mode=mode)
    with pytest.raises(InvalidArgumentError, match="clip_norm is -1"):
        parameters.init("never", np.zeros(2), rule=rules.SGD(clip_norm=-1.0))
    clock = parameters.Clock("two norms", modes.Sync())
    parameters.init("norm of 1", np.zeros(2), rule=rules.SGD(clip_norm=1.0), mode=clock)
    gradlane.barrier("one norm is known")
    with pytest.raises(MismatchError, match=r"1 \(parameter norm of 1\).*2 \(parameter norm of 2\)"):
        parameters.init("norm of 2", np.zeros(2), rule=rules.SGD(clip_norm=2.0), mode=clock)
    parameters.push("norm of 1", np.ones(2), update="step")
    clock.tick()
    gradlane.barrier("the clock is not harmed")
