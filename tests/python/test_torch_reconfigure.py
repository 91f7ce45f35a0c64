"""Process groups that get other members, by the functions of PyTorch for that."""

from __future__ import annotations

import itertools
import sys
from datetime import timedelta

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError, UnsupportedError
from processes import SAY, over, run_all

if not hasattr(dist, "_reconfigure"):
    pytest.skip("this PyTorch cannot reconfigure process groups", allow_module_level=True)

WORKERS = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(3)]


def on_workers(test):
    for mark in WORKERS:
        test = mark(test)
    return test


uuids = itertools.count(1)


@pytest.fixture(scope="module")
def whole():
    """The group of PyTorch, whose members are not known when it is made."""
    if not gl.is_initialized():  # outside of workers only the outcomes are read
        yield None
        return
    options = {"store": dist.HashStore(), "rank": gl.rank(), "world_size": gl.size()}
    dist.init_process_group("gradlane", enable_reconfigure=True, **options)
    assert dist._supports_reconfigure()
    for call in (lambda: dist.all_reduce(torch.ones(1)), dist.barrier, lambda: dist.broadcast(torch.ones(1), 0)):
        with pytest.raises(FailedPreconditionError, match="has no members yet"):
            call()
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def handles(whole):
    """Those of all workers, by their ranks in the job."""
    return gl.allgather_object(dist._get_reconfigure_handle()) if whole is not None else None


def own():
    return torch.tensor([10.0 ** gl.rank()])


@on_workers
def test_a_list_gives_ranks_by_position(handles):
    for order in ([2, 0, 1], [1, 2, 0], [0, 1, 2]):
        dist._reconfigure(next(uuids), [handles[rank] for rank in order]).wait()
        place = order.index(gl.rank())
        assert (dist.get_rank(), dist.get_world_size()) == (place, 3)
        tensor = own()
        dist.all_reduce(tensor)
        assert tensor.item() == 111.0
        tensor = own()
        dist.broadcast(tensor, 0)
        assert tensor.item() == 10.0 ** order[0]
        tensor = own()
        dist.reduce(tensor, 1)
        assert tensor.item() == (111.0 if place == 1 else 10.0**gl.rank())
        parts = [torch.empty(1) for _ in order]
        dist.all_gather(parts, own())
        assert [part.item() for part in parts] == [10.0**rank for rank in order]
        received = torch.empty(3)
        dist.all_to_all_single(received, torch.arange(3.0) + 10 * place)
        assert received.tolist() == [10.0 * sender + place for sender in range(3)]
        mine = torch.empty(1)
        dist.reduce_scatter_tensor(mine, torch.arange(3.0))
        assert mine.item() == 3.0 * place
        if place == 0:
            dist.send(torch.tensor([7.0]), 2)
        if place == 2:
            dist.recv(mine, 0)
            assert mine.item() == 7.0
        dist.barrier()


@on_workers
def test_a_set_gives_ranks_in_the_order_of_the_job(handles):
    dist._reconfigure(next(uuids), set(handles)).wait()
    assert (dist.get_rank(), dist.get_world_size()) == (gl.rank(), 3)


@on_workers
def test_some_of_the_workers_make_a_group_and_groups_of_it(handles):
    number, second = next(uuids), next(uuids)
    if gl.rank() != 1:
        dist._reconfigure(number, [handles[2], handles[0]]).wait()
        tensor = own()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert (tensor.item(), dist.get_world_size()) == (101.0 / 2, 2)
        both, alone = dist.new_group([0, 1]), dist.new_group([1])
        tensor = own()
        dist.broadcast(tensor, 1, group=both)
        assert tensor.item() == 1.0, "the second one is rank 0 of the job"
        if gl.rank() == 0:
            dist.all_reduce(tensor, group=alone)
        # What PyTorch counts in C++, too.
        model = torch.nn.Linear(1, 1, bias=False)
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        ddp(own().view(1, 1)).sum().backward()
        assert model.weight.grad.item() == 101.0 / 2
    gl.barrier("all are back")
    dist._reconfigure(second, handles, timeout=timedelta(seconds=30)).wait()
    tensor = own()
    dist.all_reduce(tensor)
    assert tensor.item() == 111.0


@on_workers
def test_what_cannot_be_is_refused_and_changes_nothing(handles):
    number, other = next(uuids), next(uuids)
    dist._reconfigure(number, handles).wait()
    here = handles[gl.rank()]
    kind, job, formed, rank = here.split(":")
    refused = [
        (InvalidArgumentError, f"uuid={number} was that of this group", number, handles),
        (InvalidArgumentError, "that of each worker once", other, [*handles, here]),
        (InvalidArgumentError, "only members", other, [handle for handle in handles if handle != here]),
        (InvalidArgumentError, "only members", other, []),
        (InvalidArgumentError, "no handle of the backend", other, [here, "gloo:1:-1:1:"]),
        (InvalidArgumentError, "no handle of the backend", other, [here, f"{kind}:{job}:{formed}:-1"]),
        (InvalidArgumentError, "another job", other, [here, f"{kind}:{'0' * 16}:{formed}:0"]),
        (FailedPreconditionError, "before the elastic job formed again", other, [here, f"{kind}:{job}:7:0"]),
        (FailedPreconditionError, "name worker 5, which the job has no more", other, [here, f"{kind}:{job}:{formed}:5"]),
    ]
    for kind, text, uuid, given in refused:
        with pytest.raises(kind, match=text):
            dist._reconfigure(uuid, given)
    with pytest.raises(UnsupportedError, match="hints="):
        dist._reconfigure(other, handles, hints={"a": "b"})
    tensor = own()
    dist.all_reduce(tensor)
    assert tensor.item() == 111.0


@on_workers
def test_different_orders_are_an_error_on_all(handles):
    work = dist._reconfigure(next(uuids), handles if gl.rank() else handles[::-1])
    with pytest.raises(MismatchError, match="in different orders"):
        work.wait()
    dist._reconfigure(next(uuids), handles).wait()
    dist.barrier()


BEGIN = (
    SAY
    + """
import itertools, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist
import gradlane.torch as gl

folder = Path(sys.argv[1])
stop, died = folder / "stop", folder / "died"
gl.init()
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
dist.init_process_group("gradlane", store=gl.Store(), rank=gl.rank(), world_size=gl.size(), enable_reconfigure=True)

def reconfigure():
    handles = gl.allgather_object(dist._get_reconfigure_handle(), "handles")
    dist._reconfigure(gl.elastic.report().steps, handles).wait()
    return gl.elastic.world()

def digest():
    return [parameter.sum().item() for parameter in model.parameters()]

def train_one(wrapped):
    optimizer.zero_grad()
    inputs = torch.arange(3.0) + gl.rank()
    wrapped(inputs).square().sum().backward()
    optimizer.step()

optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
"""
)

LOSES = (
    BEGIN
    + """
wrapped, trained, told = None, None, []
gl.elastic.on_change(lambda before, after: told.append(after.ranks))
for step in gl.elastic.steps(None, itertools.takewhile(lambda step: step < 6 or not told, itertools.count())):
    if trained != gl.elastic.world():
        trained = reconfigure()
    wrapped = wrapped or torch.nn.parallel.DistributedDataParallel(model)
    if (gl.rank(), step) == (0, 3):
        os.kill(os.getpid(), signal.SIGKILL)
    train_one(wrapped)
numbers = torch.tensor([10.0 ** dist.get_rank()])
dist.all_reduce(numbers)
assert len(set(map(str, gl.allgather_object(digest(), "digest")))) == 1
say(f"end {gl.rank()}: {dist.get_rank()} of {dist.get_world_size()} {numbers.item()}")
"""
)


@pytest.mark.over("shm", "quic")
def test_a_group_goes_on_with_those_that_are_left(transport, tmp_path):
    command = [sys.executable, "-m", "gradlane", "run", "-n", "3", "-s", "1", "-o", "on_worker_loss=continue", "--"]
    script = [sys.executable, "-c", LOSES, str(tmp_path)]
    [ended] = run_all([([*command, *script], over(transport) | {"OMP_NUM_THREADS": "1"})], timeout=60)
    lines = sorted(line for line in ended.output.splitlines() if line.startswith("end "))
    assert ended.code == 0 and lines == ["end 1: 0 of 2 11.0", "end 2: 1 of 2 11.0"], ended.output


COMES = (
    BEGIN
    + """
state = gl.elastic.State(model=model, optimizer=optimizer)
has_come, trained, own, ends = gl.elastic._session.is_newcomer(), None, 0, 10**9

def until_stopped():
    while not stopped:
        yield state.step

stopped = False
for step in gl.elastic.steps(state, until_stopped()):
    if trained != gl.elastic.world():
        before = trained
        if before is not None and len(before.ranks) < len(gl.elastic.world().ranks):
            for call in (lambda: dist.all_reduce(torch.ones(1)), lambda: dist._reconfigure(10**9, [handle])):
                try:
                    call()
                except gl.Error as error:
                    assert "formed again" in str(error), error
                else:
                    raise AssertionError("not refused")
        trained = reconfigure()
        handle = dist._get_reconfigure_handle()
        # A worker that has come has to make one, and so all make one.
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        if died.exists() and trained.size == 3:
            ends = step + 4
    if (gl.rank(), step) == (1, 3) and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    train_one(wrapped)
    stopping = torch.tensor([float(step >= ends)])
    dist.all_reduce(stopping, dist.ReduceOp.MAX)
    stopped = bool(stopping.item())
numbers = torch.tensor([10.0 ** dist.get_rank()])
dist.all_reduce(numbers)
assert len(set(map(str, gl.allgather_object((digest(), step), "digest")))) == 1
say(f"end {has_come} {dist.get_rank()} of {dist.get_world_size()} {numbers.item()}")
"""
)


@pytest.mark.over("shm", "quic")
def test_a_group_takes_in_a_worker_that_comes(transport, tmp_path):
    command = [sys.executable, "-m", "gradlane", "run", "-n", "3", "-s", "1", "--elastic", "2:3", "--restarts", "1", "--"]
    script = [sys.executable, "-c", COMES, str(tmp_path)]
    [ended] = run_all([([*command, *script], over(transport) | {"OMP_NUM_THREADS": "1"})], timeout=90)
    lines = sorted(line for line in ended.output.splitlines() if line.startswith("end "))
    expected = [f"end False {rank} of 3 111.0" for rank in (0, 1)] + ["end True 2 of 3 111.0"]
    assert ended.code == 0 and lines == expected, ended.output
