"""`torch.distributed` over Gradlane: each collective, and what people build on them."""

import weakref
from datetime import timedelta
from types import SimpleNamespace

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
from gradlane.errors import InvalidArgumentError, UnsupportedError
from process_group import NEEDS_SHARDING_ON_CPU
from process_group import group as group  # a fixture of each test here
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import TOLERANCE, batches, made, mine, mlp, step, trained_alone

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(2)]

SOON = {"step_timeout": "4s", "stall_warn": "1s", "heartbeat_interval": "100ms"}
"""What a worker did last is told `stall_warn` after the first contribution."""

# PyTorch 2.13 renamed two functions, and warns of the names that earlier versions know.
quietly = pytest.mark.filterwarnings("ignore::FutureWarning")


def vector(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def test_it_is_the_default_group():
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (gl.rank(), 2, "gradlane")


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (dist.ReduceOp.SUM, [1, 20]),
        (dist.ReduceOp.AVG, [0.5, 10]),
        (dist.ReduceOp.MIN, [0, 10]),
        (dist.ReduceOp.MAX, [1, 10]),
    ],
)
def test_all_reduce(op, expected):
    tensor = vector(float(gl.rank()), 10.0)
    dist.all_reduce(tensor, op)
    assert tensor.tolist() == expected


def test_tensors_of_any_strides_and_rounds_of_one_kind_in_flight():
    tensors = [torch.arange(12.0).view(3, 4).t() + 100 * position for position in range(4)]
    expected = [2 * tensor for tensor in tensors]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed() and work.is_success()
    assert all(torch.equal(*pair) for pair in zip(tensors, expected, strict=True))


def test_futures_of_what_has_ended_and_of_what_has_not():
    ended = dist.all_reduce(torch.ones(3), async_op=True)
    ended.wait()
    flying = dist.all_reduce(torch.ones(100_000), async_op=True)
    assert flying.get_future().wait()[0].sum().item() == 200_000
    assert ended.get_future().wait()[0].tolist() == [2.0] * 3


def test_works_are_forgotten_when_they_were_waited_for_or_are_too_many():
    waited_for = dist.all_reduce(torch.ones(3), async_op=True)
    reference = weakref.ref(waited_for)
    waited_for.wait()
    del waited_for
    assert reference() is None
    references = [weakref.ref(dist.all_reduce(torch.ones(3), async_op=True)) for _ in range(1100)]
    assert references[0]() is None and references[-1]() is not None, "C++ code may wait for the newest ones"


def test_broadcast_keeps_every_bit():
    for root in range(2):
        tensor = vector(float("nan"), -0.0, 1.0) if gl.rank() == root else torch.zeros(3)
        dist.broadcast(tensor, root)
        assert tensor.view(torch.int32).tolist() == vector(float("nan"), -0.0, 1.0).view(torch.int32).tolist()
        of_six = torch.full((2, 3), float(gl.rank()))
        for same_length in (of_six.clone(), of_six.t().clone(), of_six.clone().t(), of_six.flatten()):
            dist.broadcast(same_length, root)
            assert same_length.tolist() == torch.full_like(same_length, float(root)).tolist()
        flags = torch.tensor([gl.rank() == root, True])
        dist.broadcast(flags, root)
        assert flags.tolist() == [True, True]


@quietly
def test_all_gather():
    own = vector(gl.rank(), 7, dtype=torch.int64)
    gathered = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(gathered, own)
    assert [tensor.tolist() for tensor in gathered] == [[0, 7], [1, 7]]
    flat = torch.empty(4, dtype=torch.int64)
    dist.all_gather_into_tensor(flat, own)
    assert flat.tolist() == [0, 7, 1, 7]


def test_all_gather_of_different_lengths():
    gathered = [torch.empty(3), torch.empty(5)]
    dist.all_gather(gathered, torch.full((3 + 2 * gl.rank(),), float(gl.rank())))
    assert [tensor.tolist() for tensor in gathered] == [[0.0] * 3, [1.0] * 5]


@quietly
def test_reduce_scatter():
    own = torch.zeros(2)
    dist.reduce_scatter_tensor(own, torch.arange(4.0) + gl.rank())
    assert own.tolist() == [[1.0, 3.0], [5.0, 7.0]][gl.rank()]
    dist.reduce_scatter(own, [torch.full((2,), 1.0), torch.full((2,), 2.0)])
    assert own.tolist() == [2.0 + 2 * gl.rank()] * 2


def test_calls_with_a_root():
    for root in range(2):
        tensor = torch.full((2,), 1.0 + gl.rank())
        dist.reduce(tensor, root)
        assert tensor.tolist() == ([3.0] * 2 if gl.rank() == root else [1.0 + gl.rank()] * 2)
        gathered = [torch.empty(2) for _ in range(2)] if gl.rank() == root else None
        dist.gather(torch.full((2,), float(gl.rank())), gathered, root)
        assert gathered is None or [part.tolist() for part in gathered] == [[0.0] * 2, [1.0] * 2]
        own = torch.empty(2)
        dist.scatter(own, [torch.full((2,), 5.0), torch.full((2,), 6.0)] if gl.rank() == root else None, root)
        assert own.tolist() == [5.0 + gl.rank()] * 2


def test_objects():
    gathered = [None, None]
    dist.all_gather_object(gathered, {"rank": gl.rank(), "text": "x" * (1 + 50 * gl.rank())})
    assert [found["rank"] for found in gathered] == [0, 1] and len(gathered[1]["text"]) == 51
    objects = [gl.rank(), "of root 1"] if gl.rank() == 1 else [None, None]
    dist.broadcast_object_list(objects, 1)
    assert objects == [1, "of root 1"]
    dist.barrier()


def test_objects_of_one_worker_for_another():
    own, others = {"from": gl.rank()}, [None, None]
    if gl.rank() == 0:
        dist.send_object_list([own, "x" * 300], 1)
        dist.recv_object_list(others, 1)
    else:
        dist.recv_object_list(others, 0)
        dist.send_object_list([own, "x" * 300], 0)
    assert others == [{"from": 1 - gl.rank()}, "x" * 300]
    for root in range(2):
        received = [None]
        dist.scatter_object_list(received, ["first", {"second": root}] if gl.rank() == root else None, root)
        assert received == [["first", {"second": root}][gl.rank()]]
        gathered = [None, None] if gl.rank() == root else None
        dist.gather_object(own, gathered, root)
        assert gathered == ([{"from": 0}, {"from": 1}] if gl.rank() == root else None)


def test_another_group_of_all_workers():
    other = dist.new_group()
    tensor = torch.ones(2)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    dist.all_reduce(tensor, group=other)
    work.wait()
    assert tensor.tolist() == [2.0, 2.0]


def test_messages():
    for dtype in (torch.float32, torch.bool, torch.bfloat16):
        tensor = torch.full((3,), gl.rank()).to(dtype)
        if gl.rank() == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            received = torch.ones(3, dtype=dtype)
            dist.recv(received, 0)
            assert not received.any()
            dist.send(tensor, 0)
        assert tensor.all()


def test_messages_both_ways_at_once():
    own, others = torch.full((1000,), float(gl.rank())), torch.empty(1000)
    operations = [dist.P2POp(dist.isend, own, 1 - gl.rank()), dist.P2POp(dist.irecv, others, 1 - gl.rank())]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (others == 1 - gl.rank()).all()


@quietly
def test_all_to_all():
    rank = gl.rank()
    into = torch.empty(4)
    dist.all_to_all_single(into, torch.arange(4.0) + 10 * rank)
    assert into.tolist() == [2 * rank + 0.0, 2 * rank + 1.0, 2 * rank + 10.0, 2 * rank + 11.0]
    sizes = [1, 3] if rank == 0 else [2, 1]  # to each worker
    rows = torch.empty(3 if rank == 0 else 4, 2)
    dist.all_to_all_single(rows, torch.full((sum(sizes), 2), float(rank)), [1, 2] if rank == 0 else [3, 1], sizes)
    assert rows[:, 0].tolist() == ([0.0, 1.0, 1.0] if rank == 0 else [0.0, 0.0, 0.0, 1.0])
    outputs = [torch.empty(1 + rank + other) for other in range(2)]
    dist.all_to_all(outputs, [torch.full((1 + rank + other,), float(rank)) for other in range(2)])
    assert [output.tolist() for output in outputs] == [[float(other)] * (1 + rank + other) for other in range(2)]


def test_a_group_of_one_worker():
    alone = [dist.new_group([rank]) for rank in range(2)][gl.rank()]
    tensor = torch.full((2,), float(gl.rank()))
    dist.all_reduce(tensor, group=alone)
    assert tensor.tolist() == [float(gl.rank())] * 2


def test_what_it_does_not_do_says_what_does():
    with pytest.raises(UnsupportedError, match=r'does not exist on the backend "gradlane".*backend="gloo"'):
        dist.recv(torch.ones(1))


def test_wrong_arguments_are_named():
    group = dist.group.WORLD
    with pytest.raises(InvalidArgumentError, match="list of 1 tensors in a group of 2"):
        group.allgather([[torch.ones(2)]], [torch.ones(2)])
    with pytest.raises(InvalidArgumentError, match="between 3 elements of torch.float32 and 2 of torch.float32"):
        group._allgather_base(torch.ones(3), torch.ones(2))


def test_ddp_trains_as_one_process():
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    model = nn.parallel.DistributedDataParallel(made(mlp, seed=7 + 5 * gl.rank()))
    assert_trains(model, model.module, sgd)


@NEEDS_SHARDING_ON_CPU
def test_fsdp2_trains_as_one_process():
    def adam(parameters):
        return torch.optim.AdamW(parameters, lr=1e-2)

    model = made(mlp)
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[1], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert_trains(model, model, adam)


def assert_trains(model, inner, optimizer):
    stepping = optimizer(model.parameters())
    losses = [step(model, stepping, mine(batch)) for batch in batches(5)]
    reference, _ = trained_alone(mlp, optimizer, 5)
    assert losses[-1] < losses[0]
    for theirs, ours in zip(reference.parameters(), inner.parameters(), strict=True):
        whole = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
        torch.testing.assert_close(whole, theirs, rtol=0, atol=2 * TOLERANCE)


def test_a_compiled_function_may_reduce():
    from torch.distributed import _functional_collectives as collectives

    @torch.compile(fullgraph=True, backend="aot_eager")
    def total(tensor):
        return collectives.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    assert total(torch.ones(3)).tolist() == [5.0] * 3


def test_functional_collectives_in_a_function_that_is_compiled_whole():
    from torch.distributed import _functional_collectives as collectives

    @torch.compile(fullgraph=True, backend="aot_eager")
    def exchanged(tensor):
        world = dist.group.WORLD
        return (
            collectives.all_gather_tensor(tensor + 1, 0, world) * 2,
            collectives.reduce_scatter_tensor(tensor + 1, "sum", 0, world) * 2,
            collectives.all_to_all_single(tensor + 1, None, None, world) * 2,
            collectives.broadcast(tensor + 1, 1, world) * 2,
        )

    own = torch.arange(2.0) + 10 * gl.rank()
    gathered, scattered, swapped, of_root = exchanged(own)
    assert gathered.tolist() == [2.0, 4.0, 22.0, 24.0]
    assert scattered.tolist() == [[24.0, 28.0][gl.rank()]]
    assert swapped.tolist() == [[2.0, 22.0], [4.0, 24.0]][gl.rank()]
    assert of_root.tolist() == [22.0, 24.0]


def test_ranks_that_disagree_are_named():
    group = gl.ProcessGroupGradlane
    assert isinstance(dist.group.WORLD, group)
    from gradlane.torch.process_group import _create

    def create(rank, size):
        _create(SimpleNamespace(store=None, group_rank=rank, group_size=size, global_ranks_in_group=[]))

    with pytest.raises(InvalidArgumentError, match="has 3 workers or more, and the job 2"):
        create(gl.rank(), 3)
    with pytest.raises(InvalidArgumentError, match=rf"rank {1 - gl.rank()}, and its job calls it rank {gl.rank()}"):
        create(1 - gl.rank(), 2)


@pytest.mark.workers(2, alone=True, settings=SOON)
def test_ranks_in_different_collectives_are_told_whom_they_wait_for_and_what_it_did_last():
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    own, theirs = "0/all_reduce.MAX.float32.3", "0/broadcast.0.float32.3"
    if gl.rank() == 1:
        own, theirs = theirs, own
    with pytest.raises(gl.StallError, match=f"^tensor {own}, .*, last tensor {theirs}, round 0") as caught:
        if gl.rank() == 0:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        else:
            dist.broadcast(tensor, 0)
    assert caught.value.missing_ranks == [1 - gl.rank()]
    gl.barrier("both were told")  # whoever has left before did nothing last


def test_a_monitored_barrier_waits_for_all_and_names_those_that_do_not_come():
    for wait_all_ranks in (False, True):
        dist.group.WORLD.monitored_barrier(wait_all_ranks=wait_all_ranks)
    if gl.rank() == 0:
        with pytest.raises(gl.TimeoutError, match="monitored_barrier.*waiting for rank 1 .*not done after 0.5 s"):
            dist.group.WORLD.monitored_barrier(timedelta(seconds=0.5))
    gl.barrier("one went on")
    dist.group.WORLD.monitored_barrier(timedelta(seconds=60))
