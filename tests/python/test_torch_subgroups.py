"""`torch.distributed` groups of some workers."""

from datetime import timedelta

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
from gradlane.errors import InvalidArgumentError
from process_group import group as group  # a fixture of each test here
from torch.distributed.device_mesh import init_device_mesh

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(4)]

# PyTorch 2.13 renamed two functions, and warns of the names that earlier versions know.
quietly = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(scope="module")
def mine(group):
    """The group of this worker, of those with odd or of those with even ranks."""
    if not gl.is_initialized():  # outside of workers only the outcomes are read
        return None
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return groups[gl.rank() % 2]


def parity():
    return gl.rank() % 2


def test_all_reduce(mine):
    tensor = torch.full((70_001,), float(gl.rank()))
    dist.all_reduce(tensor, group=mine)
    assert (tensor == (4.0 if parity() else 2.0)).all()
    assert (dist.get_rank(mine), dist.get_world_size(mine)) == (gl.rank() // 2, 2)


def test_calls_with_a_root(mine):
    for root in (parity(), parity() + 2):
        tensor = torch.full((2,), float(gl.rank()))
        dist.broadcast(tensor, root, group=mine)
        assert tensor.tolist() == [float(root)] * 2
        tensor = torch.full((2,), float(gl.rank()))
        dist.reduce(tensor, root, group=mine)
        assert tensor.tolist() == [2.0 + 2 * parity() if gl.rank() == root else gl.rank()] * 2
        gathered = [torch.empty(1) for _ in range(2)] if gl.rank() == root else None
        dist.gather(torch.tensor([float(gl.rank())]), gathered, root, group=mine)
        assert gathered is None or [part.item() for part in gathered] == [parity(), parity() + 2]
        own = torch.empty(1)
        parts = [torch.tensor([5.0]), torch.tensor([6.0])] if gl.rank() == root else None
        dist.scatter(own, parts, root, group=mine)
        assert own.item() == 5.0 + gl.rank() // 2


@quietly
def test_gathers_and_scatters(mine):
    gathered = torch.empty(2)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(gl.rank())]), group=mine)
    assert gathered.tolist() == [parity(), parity() + 2]
    own = torch.empty(1)
    dist.reduce_scatter_tensor(own, torch.tensor([1.0, 10.0]) * (1 + gl.rank()), group=mine)
    assert own.item() == (4.0 + 2 * parity()) * (1 if gl.rank() < 2 else 10)
    into = torch.empty(2)
    dist.all_to_all_single(into, torch.tensor([0.0, 1.0]) + 10 * gl.rank(), group=mine)
    assert into.tolist() == [10.0 * parity() + gl.rank() // 2, 10.0 * (parity() + 2) + gl.rank() // 2]


def test_objects_and_barriers(mine):
    gathered = [None, None]
    dist.all_gather_object(gathered, {"rank": gl.rank()}, group=mine)
    assert [found["rank"] for found in gathered] == [parity(), parity() + 2]
    for _ in range(3):
        dist.barrier(group=mine)
    dist.barrier()


def test_a_mesh_of_two_dimensions():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    tensor = torch.full((3,), float(gl.rank()))
    dist.all_reduce(tensor, group=mesh.get_group("shard"))
    assert tensor.tolist() == [1.0 if gl.rank() < 2 else 5.0] * 3
    dist.all_reduce(tensor, group=mesh.get_group("replicate"))
    assert tensor.tolist() == [6.0] * 3


def test_a_message_to_oneself_is_refused(mine):
    with pytest.raises((InvalidArgumentError, ValueError)):
        mine.send([torch.ones(1)], gl.rank() // 2, 0)


@pytest.mark.over("quic")
@pytest.mark.workers(4, alone=True, settings={"step_timeout": "2s"})
def test_a_monitored_barrier_of_a_subgroup_names_the_member_that_does_not_come(mine):
    mine.monitored_barrier(timedelta(seconds=60))
    if gl.rank() < 2:
        with pytest.raises(gl.StallError) as caught:
            mine.monitored_barrier()
        assert caught.value.missing_ranks == [gl.rank() + 2]
    gl.barrier("two went on", timeout=60)


def test_a_monitored_barrier_of_a_subgroup_names_who_is_missing_when_a_short_time_limit_is_over(group):
    members = dist.new_group([0, 1, 2])
    if gl.rank() == 0:
        with pytest.raises(gl.TimeoutError, match="monitored_barrier.*waiting for ranks 1, 2: not done") as caught:
            members.monitored_barrier(timedelta(seconds=0.5))
        assert caught.value.missing_ranks == [1, 2] and not isinstance(caught.value, gl.StallError)
    gl.barrier("one went on")
    others = dist.new_group([1, 2, 3])
    if gl.rank() in (1, 2):
        with pytest.raises(gl.TimeoutError, match="monitored_barrier.*waiting for rank 3: not done") as caught:
            others.monitored_barrier(timedelta(seconds=0.5))
        assert caught.value.missing_ranks == [3], "the other one has come"
    gl.barrier("two went on")
    for members in (dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])):
        if dist.get_rank(members) >= 0:
            members.monitored_barrier(timedelta(seconds=60))


@pytest.mark.over("quic")
@pytest.mark.workers(4, alone=True, settings={"step_timeout": "2s"})
@pytest.mark.parametrize("differ", ["ranks", "lengths"])
def test_members_that_disagree_are_told_whom_they_wait_for(differ):
    group = dist.new_group([0, 1, 2] if differ == "ranks" and gl.rank() == 1 else [0, 1])
    if gl.rank() < 2:
        length = 4 if differ == "lengths" and gl.rank() == 1 else 3
        with pytest.raises(gl.StallError, match="^tensor set .*: no contribution from rank") as caught:
            dist.all_reduce(torch.ones(length), group=group)
        others = [rank for rank in dist.get_process_group_ranks(group) if rank != gl.rank()]
        assert caught.value.missing_ranks == others
