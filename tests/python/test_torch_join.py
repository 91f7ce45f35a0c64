"""Workers that run out of data at different times: `join` of the wrapper, of the optimizer, and of Horovod's module."""

import contextlib
import functools
import importlib
import threading

import gradlane.compat.horovod as _  # noqa: F401  so that `import horovod` works
import gradlane.torch as gl
import pytest
import torch
from gradlane import _window
from gradlane.errors import FailedPreconditionError, InvalidArgumentError

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(3)]

BATCHES = (10, 12, 15)
"""The batches of each rank."""


def model_of(seed, norm=False):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8) if norm else torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(5, 4, generator=generator)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.05)


def train(model, optimizer, batches):
    for inputs in batches:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def in_one_process(batches_of, divisor=None):
    """The weights of one process that has the batches of all workers: in each step the mean of those that have one."""
    model = model_of(0)
    optimizer = adam(model)
    for step in range(max(batches_of)):
        present = [rank for rank, count in enumerate(batches_of) if step < count]
        optimizer.zero_grad()
        for rank in present:
            (model(batch(rank, step)).square().mean() / (divisor or len(present))).backward()
        optimizer.step()
    return weights(model)


def assert_equal_everywhere(tensors, prefix="compared."):
    roots = {str(position): tensor.clone() for position, tensor in enumerate(tensors)}
    gl.broadcast_parameters(roots, 0, prefix)
    assert all(map(torch.equal, roots.values(), tensors))


@pytest.mark.parametrize("batches_of", [BATCHES, (3, 0, 1)], ids=["10-12-15", "one without data"])
def test_an_average_is_that_of_the_workers_with_data(batches_of):
    model = gl.DistributedDataParallel(model_of(gl.rank()))
    optimizer = adam(model)
    with model.join(optimizer):
        train(model, optimizer, [batch(gl.rank(), step) for step in range(batches_of[gl.rank()])])
    for own, expected in zip(weights(model), in_one_process(batches_of), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)
    # And all go on as one.
    train(model, optimizer, [batch(gl.rank(), 20)])
    assert_equal_everywhere(weights(model))


def test_nobody_has_data():
    model = gl.DistributedDataParallel(model_of(gl.rank()))
    before = weights(model)
    for _ in range(2):
        with model.join():
            pass
    assert all(map(torch.equal, weights(model), before))
    train(model, adam(model), [batch(gl.rank(), 0)])
    assert_equal_everywhere(weights(model))


def test_buffers_follow_a_worker_that_has_data():
    model = gl.DistributedDataParallel(model_of(gl.rank(), norm=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        train(model, optimizer, [batch(gl.rank(), step) for step in range((1, 4, 2)[gl.rank()])])
    buffers = dict(model.module.named_buffers())
    assert buffers["1.num_batches_tracked"].item() == 4, "those of rank 1, which had most"
    assert_equal_everywhere(list(buffers.values()), "buffers.")


@pytest.mark.parametrize("policy", ["allgather", "dense"])
def test_sparse_gradients_of_those_with_data(policy):
    torch.manual_seed(0)
    rows = torch.nn.Embedding(6, 2, sparse=True)
    start = rows.weight.detach().clone()
    model = gl.DistributedDataParallel(rows, sparse=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    used = ([1], [1, 2, 2], [1])[gl.rank()]
    with model.join(optimizer):
        for row in used:
            optimizer.zero_grad()
            model(torch.tensor([row])).sum().backward()
            optimizer.step()
    expected = start.clone()
    expected[1] -= 1.0  # all
    expected[2] -= 2.0  # rank 1 alone, twice, divided by one worker
    torch.testing.assert_close(model.module.weight.detach(), expected)


def test_parameters_that_only_some_use():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2)])
    wrapped = gl.DistributedDataParallel(_OneOf(model), find_unused_parameters=True)
    with wrapped.join():
        for step in range(3 if gl.rank() == 1 else 1):
            wrapped.zero_grad()
            wrapped(torch.ones(1, 2), step % 2).sum().backward()
    if gl.rank() == 1:
        assert all(parameter.grad is None for parameter in model[1].parameters())
        assert all(torch.equal(parameter.grad, torch.ones_like(parameter)) for parameter in model[0].parameters())


class _OneOf(torch.nn.Module):
    def __init__(self, modules):
        super().__init__()
        self.branches = modules

    def forward(self, inputs, branch):
        return self.branches[branch](inputs)


def test_a_parameter_that_must_be_used_is_missed_on_every_rank():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2)])
    wrapped = gl.DistributedDataParallel(_OneOf(model))
    with pytest.raises(gl.UnusedParametersError, match="branches.1.weight on rank 1"):
        with wrapped.join():
            if gl.rank() == 1:
                wrapped(torch.ones(1, 2), 0).sum().backward()


def test_join_inside_of_join_is_refused():
    model = gl.DistributedDataParallel(torch.nn.Linear(2, 2))
    with model.join():
        with pytest.raises(FailedPreconditionError, match="leave the first one"):
            with model.join():
                pass


def test_the_optimizer_divides_by_all_workers():
    model = model_of(0)
    optimizer = gl.DistributedOptimizer(adam(model), model.named_parameters())
    train(model, optimizer, [batch(gl.rank(), step) for step in range(BATCHES[gl.rank()])])
    last = optimizer.join()
    assert last == 2
    gl.broadcast_parameters(model.state_dict(), last)
    for own, expected in zip(weights(model), in_one_process(BATCHES, divisor=3), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)
    gl.broadcast_optimizer_state(optimizer, last)
    train(model, optimizer, [batch(gl.rank(), 20)])
    assert_equal_everywhere(weights(model))


def test_bad_joins_of_an_optimizer():
    model = torch.nn.Linear(2, 2)
    largest = gl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=gl.Max)
    with pytest.raises(InvalidArgumentError, match="join with op=MAX"):
        largest.join()
    del largest
    model = torch.nn.Linear(2, 2)
    optimizer = gl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    model.bias.requires_grad_(False)  # only the weight's gradient is made, and waits for step()
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(FailedPreconditionError, match="on their way"):
        optimizer.join()
    optimizer.step()
    assert optimizer.join() == 0, "all had data"


@pytest.mark.parametrize("late", ["forward", "backward", "backward without its forward hook"])
def test_a_pass_in_another_thread_while_the_worker_waits_is_refused(late, monkeypatch):
    model = gl.DistributedDataParallel(model_of(gl.rank()))
    optimizer = adam(model)
    refused = []
    with contextlib.ExitStack() as waiting, model.join(optimizer):
        train(model, optimizer, [batch(gl.rank(), step) for step in range(BATCHES[gl.rank()])])
        if gl.rank() == 0:
            before = [parameter.grad.clone() for parameter in model.parameters()]
            early = model.module if late == "backward without its forward hook" else model
            call = functools.partial(model, batch(0, 30)) if late == "forward" else early(batch(0, 30)).sum().backward
            waiting.enter_context(meanwhile(call, refused, monkeypatch))
    for own, expected in zip(weights(model), in_one_process(BATCHES), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)
    if gl.rank() == 0:
        assert [type(error) for error in refused] == [FailedPreconditionError]
        assert str(refused[0]).startswith("this worker has left model.join(), and now takes part")
        if late == "backward":
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    # And all go on as one.
    train(model, optimizer, [batch(gl.rank(), 20)])
    assert_equal_everywhere(weights(model))


@pytest.mark.parametrize("door", ["gradlane", "horovod"])
@pytest.mark.parametrize("late", ["backward", "step"])
def test_an_optimizer_whose_worker_waits_takes_no_gradient_from_another_thread(late, door, monkeypatch):
    hvd = importlib.import_module("horovod.torch")
    model = model_of(0)
    make = gl.DistributedOptimizer if door == "gradlane" else hvd.DistributedOptimizer
    optimizer = make(adam(model), named_parameters=model.named_parameters())
    train(model, optimizer, [batch(gl.rank(), step) for step in range(BATCHES[gl.rank()])])
    join, refused = optimizer.join if door == "gradlane" else hvd.join, []
    with contextlib.ExitStack() as waiting:
        if gl.rank() == 0:
            call = optimizer.step if late == "step" else model(batch(0, 30)).sum().backward
            waiting.enter_context(meanwhile(call, refused, monkeypatch))
        last = join()
    assert last == 2
    if gl.rank() == 0:
        assert [type(error) for error in refused] == [FailedPreconditionError]
        assert str(refused[0]).startswith("this worker has called join() of its optimizer, and now takes part")
    gl.broadcast_parameters(model.state_dict(), last)
    gl.broadcast_optimizer_state(optimizer, last)
    for own, expected in zip(weights(model), in_one_process(BATCHES, divisor=3), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)
    train(model, optimizer, [batch(gl.rank(), 20)])
    assert_equal_everywhere(weights(model))


@contextlib.contextmanager
def meanwhile(call, errors, monkeypatch):
    """Inside, runs `call` in another thread when this worker has asked the others whether they have data."""
    asked, called = threading.Event(), threading.Event()
    active = _window.Window.active

    def wait_for_the_others(window):
        asked.set()
        called.wait()
        return active(window)

    def run():
        asked.wait()
        try:
            call()
        except Exception as error:
            errors.append(error.with_traceback(None))  # whose frames would keep the model
        finally:
            called.set()

    with monkeypatch.context() as patched:
        patched.setattr(_window.Window, "active", wait_for_the_others)
        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join()


def test_horovods_join():
    hvd = importlib.import_module("horovod.torch")
    model = model_of(0)
    optimizer = hvd.DistributedOptimizer(adam(model), named_parameters=model.named_parameters())
    train(model, optimizer, [batch(gl.rank(), step) for step in range(BATCHES[gl.rank()])])
    assert hvd.join() == 2
    hvd.broadcast_parameters(model.state_dict(), root_rank=2)
    for own, expected in zip(weights(model), in_one_process(BATCHES, divisor=3), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)
    del optimizer
    with pytest.raises(gl.UnsupportedError, match="0 distributed optimizers"):
        hvd.join()
