"""Forked children of a process that trains: wrappers, futures and works of the parent are refused there, and nothing hangs."""

import multiprocessing
import threading

import gradlane
import gradlane.torch as gl
import pytest
import torch
from children import SOON, fork, refused
from gradlane import Sum
from gradlane.torch._futures import Completions
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.over("local", "shm", "quic")

LENGTH = 1 << 14
STEPS = 6


def trained(seed: int = 0) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    gl.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, torch.full((4, 8), 1.0 + gradlane.rank())


def fingerprint(model: torch.nn.Module) -> float:
    return float(sum(parameter.detach().double().sum() for parameter in model.parameters()))


def check_equal(model: torch.nn.Module, name: str) -> None:
    assert len(set(gradlane.allgather(fingerprint(model), name))) == 1, "the replicas differ"


def evaluate(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.zeros(1, 8))


@pytest.mark.workers(2)
def test_a_child_that_evaluates_a_model_of_cross_barrier_gets_an_error_and_does_not_hang():
    model, inputs = trained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = gl.CrossBarrier(model, optimizer, model.named_parameters())
    for _ in range(STEPS):
        model(inputs).sum().backward()
        optimizer.step()
        if gradlane.rank() == 0:
            # Updates are due, whose averages only the parent gets.
            fork(lambda: refused(lambda: evaluate(model)))
            fork(lambda: refused(optimizer.synchronize))
            fork(lambda: refused(model.state_dict))
        optimizer.zero_grad()
    optimizer.synchronize()
    check_equal(model, "of cross barrier")
    optimizer.remove()


def _evaluate_in(model: torch.nn.Module, results: multiprocessing.Queue) -> None:
    try:
        results.put(evaluate(model).shape)
    except gradlane.errors.ForkedProcessError as error:
        results.put(type(error).__name__)


@pytest.mark.workers(2)
def test_multiprocessing_by_fork_evaluates_a_model_or_is_refused():
    model, inputs = trained()
    optimizer = gl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    model(inputs).sum().backward()
    if gradlane.rank() == 0:
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=_evaluate_in, args=(model, results))
        child.start()
        assert results.get(timeout=SOON) == (1, 4), "the optimizer has no part in a forward pass"
        child.join(SOON)
        assert child.exitcode == 0
    optimizer.step()
    check_equal(model, "of the optimizer")


@pytest.mark.workers(2)
def test_training_in_a_child_is_refused():
    model, inputs = trained()
    wrapped = gl.DistributedDataParallel(model)
    wrapped(inputs).sum().backward()
    before = fingerprint(model)
    if gradlane.rank() == 0:
        fork(lambda: refused(lambda: wrapped(inputs).sum().backward()))
        fork(lambda: refused(lambda: gl.push_pull_(torch.ones(3), "child")))
        fork(lambda: refused(gl.synchronize))
    wrapped(inputs).sum().backward()
    assert fingerprint(model) == before
    check_equal(model, "wrapped")


@pytest.mark.workers(2)
def test_futures_complete_with_an_error_in_a_child():
    completions, cpu = Completions.of_this_job(), torch.device("cpu")
    tensor = torch.full((LENGTH,), gradlane.rank() + 1.0)
    if gradlane.rank() == 1:
        gradlane.barrier("futures in a child")
    future = completions.of(gl.push_pull_async_(tensor, "future", op=Sum), cpu)
    if gradlane.rank() == 0:
        fork(lambda: refused(future.wait))
        gradlane.barrier("futures in a child")
    told = threading.Event()
    future.add_done_callback(lambda _: told.set())
    assert told.wait(SOON) and (future.value() == 3.0).all()


@pytest.mark.workers(2)
def test_a_data_loader_forks_beside_live_handles():
    data = TensorDataset(torch.arange(32.0))
    for step in range(3):
        tensor = torch.full((LENGTH,), gradlane.rank() + 1.0)
        if gradlane.rank() == 1:
            gradlane.barrier("loaded")
        handle = gl.push_pull_async_(tensor, "beside a loader", op=Sum)
        loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork", timeout=SOON)
        assert sum(float(batch.sum()) for (batch,) in loader) == 496.0, step
        if gradlane.rank() == 0:
            gradlane.barrier("loaded")
        handle.wait()
        assert (tensor == 3.0).all()


@pytest.mark.workers(2)
def test_works_of_a_process_group_are_refused_in_a_child():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gradlane", store=store, rank=gradlane.rank(), world_size=2)
    try:
        tensor = torch.full((LENGTH,), gradlane.rank() + 1.0)
        if gradlane.rank() == 1:
            gradlane.barrier("works in a child")
        work = torch.distributed.all_reduce(tensor, async_op=True)
        if gradlane.rank() == 0:
            for use in (work.wait, work.is_completed, work.get_future, lambda: torch.distributed.all_reduce(tensor)):
                fork(lambda use=use: refused(use))
            gradlane.barrier("works in a child")
        work.wait()
        assert (tensor == 3.0).all()
    finally:
        torch.distributed.destroy_process_group()
