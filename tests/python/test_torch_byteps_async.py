"""BytePS's asynchronous training: `BYTEPS_ENABLE_ASYNC=1` and a script that knows nothing else of it."""

import copy
import importlib

import gradlane
import gradlane.compat.byteps as _  # noqa: F401  so that `import byteps` works
import pytest
import torch
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from torch import nn

bps = importlib.import_module("byteps.torch")

pytestmark = [
    pytest.mark.workers(2, servers=2, env={"BYTEPS_ENABLE_ASYNC": "1"}),
    pytest.mark.over("shm", "quic"),
]


def made(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 2))


def loss_of(model, seed):
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    return (model(inputs) - inputs[:, :2].sin()).square().mean()


def wrapped(model, optimizer, prefix="Parameter."):
    """As a script of BytePS does it: the optimizer first, and then the broadcasts."""
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), 0, prefix)
    bps.broadcast_optimizer_state(optimizer, 0, prefix)
    return optimizer


def weights_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_turns_of_the_workers_equal_a_replay_of_their_changes_to_the_bit():
    model, turns = made(bps.rank()), 8
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    # The replay: the weights on the servers, and an optimizer of each worker with momenta of its own.
    shared = weights_of(made(0))
    peers = [made(0) for _ in range(bps.size())]
    plain = [torch.optim.SGD(peer.parameters(), lr=0.1, momentum=0.9) for peer in peers]
    for turn in range(turns):
        acting = turn % bps.size()
        if bps.rank() == acting:
            optimizer.zero_grad()
            loss_of(model, turn).backward()
            optimizer.step()
        gradlane.barrier(f"turn {turn}")
        before = weights_of(peers[acting])
        plain[acting].zero_grad()
        loss_of(peers[acting], turn).backward()
        plain[acting].step()
        shared = shared + (weights_of(peers[acting]) - before)
        nn.utils.vector_to_parameters(shared.clone(), peers[acting].parameters())
        if bps.rank() == acting:
            assert torch.equal(weights_of(model), shared)
    gradlane.barrier("all have read the replay")


def test_changes_of_all_workers_count_once_each_and_nobody_waits():
    """Gradients are whole numbers that do not depend on the weights, so that sums are exact in any order."""
    model = nn.Linear(500, 3, bias=False)
    nn.init.constant_(model.weight, 1.0)
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=1.0))
    if bps.rank() == 0:
        for _ in range(10):  # the others have not begun
            optimizer.zero_grad()
            (model.weight * 2.0).sum().backward()
            optimizer.step()
        assert model.weight.unique().tolist() == [-19.0]
    gradlane.barrier("worker 0 has trained")
    for _ in range(20):
        optimizer.zero_grad()
        (model.weight * (1.0 + bps.rank())).sum().backward()
        optimizer.step()
    gradlane.barrier("all have trained")
    optimizer.zero_grad()
    optimizer.step()  # without gradients it reads
    assert model.weight.unique().tolist() == [-19.0 - 20 * sum(1.0 + rank for rank in range(bps.size()))]


def test_a_broadcast_between_steps_is_no_progress():
    model = nn.Linear(2, 2, bias=False)
    nn.init.constant_(model.weight, 5.0)
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=1.0), "Small.")
    for epoch in range(3):
        optimizer.zero_grad()
        model.weight.sum().backward()
        optimizer.step()
        gradlane.barrier(f"epoch {epoch} is over")
        bps.broadcast_parameters(model.state_dict(), 0, "Small.")
    gradlane.barrier("all epochs are over")
    optimizer.zero_grad()
    optimizer.step()
    assert model.weight.unique().tolist() == [5.0 - 3 * bps.size()]


def test_two_models_with_the_same_names_and_other_layouts_are_apart():
    models = [nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last) for _ in range(2)]
    optimizers = []
    for number, model in enumerate(models):
        [nn.init.constant_(parameter, float(number)) for parameter in model.parameters()]
        optimizers.append(wrapped(model, torch.optim.SGD(model.parameters(), lr=1.0), f"Model {number}."))
        optimizers[-1].step()
    assert [weights_of(model).unique().tolist() for model in models] == [[0.0], [1.0]]
    gradlane.barrier("all have read")
    if bps.rank() == 0:
        models[0].weight.grad = torch.ones_like(models[0].weight)
        optimizers[0].step()
        assert models[0].weight.unique().tolist() == [-1.0] and models[0].bias.unique().tolist() == [0.0]


def test_what_byteps_refuses_is_refused_and_what_has_no_effect_is_taken():
    model = made(1)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), bps.Compression.fp16, 2
    )
    optimizer.set_backward_passes_per_step(3)
    optimizer.synchronize()
    with pytest.raises(UnsupportedError, match="skip_synchronize.*BYTEPS_ENABLE_ASYNC=1"), optimizer.skip_synchronize():
        pass
    for wrong, kind, why in [
        (lambda: bps.DistributedOptimizer(optimizer), InvalidArgumentError, "wrap it once"),
        (lambda: bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)), InvalidArgumentError, "wrap a model once"),
        (lambda: optimizer.set_backward_passes_per_step(0), InvalidArgumentError, "backward_passes_per_step=0"),
        (lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}), FailedPreconditionError, "fixed"),
    ]:
        with pytest.raises(kind, match=why):
            wrong()
    copied = copy.deepcopy(optimizer)
    copied.param_groups[0]["params"][0].grad = torch.zeros_like(model[0].weight)
    with pytest.raises(FailedPreconditionError, match="copy"):
        copied.step()


def test_doors_that_are_synchronous_say_so():
    model = made(2)
    with pytest.raises(UnsupportedError, match="BYTEPS_ENABLE_ASYNC=1 with DistributedDataParallel"):
        importlib.import_module("byteps.torch.parallel").DistributedDataParallel(model)
    with pytest.raises(UnsupportedError, match="BYTEPS_ENABLE_ASYNC=1 with CrossBarrier"):
        cross_barrier = importlib.import_module("byteps.torch.cross_barrier").CrossBarrier
        cross_barrier(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_switch_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "yes")
    with pytest.raises(InvalidArgumentError, match="BYTEPS_ENABLE_ASYNC=yes"):
        bps.DistributedOptimizer(torch.optim.SGD(made(0).parameters(), lr=0.1))
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "0")
    model = nn.Linear(2, 1)
    assert hasattr(bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)), "register_post_average_hook")
