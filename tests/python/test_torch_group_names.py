"""Lengths that a process group meets do not use up the names of a job."""

import os
import random

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
from gradlane import _recent
from gradlane.errors import InvalidArgumentError
from gradlane.torch import process_group
from process_group import group as group  # a fixture of each test here

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(2)]

LENGTHS = int(os.environ.get("GROUP_NAMES_LENGTHS", "60"))
"""How many lengths each test tries. 70,000, which is more than a job has names, takes minutes."""

MOST = 8
"""How many names a small group keeps."""

quietly = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def small(monkeypatch):
    """A group of all workers that keeps few names."""
    if not gl.is_initialized():  # outside of workers only the outcomes are read
        return None
    for limit in ("NAMES_MAX", "_GROUP_NAMES_MIN"):
        monkeypatch.setattr(process_group, limit, MOST)
    monkeypatch.setattr(process_group, "pair_names", lambda workers: MOST)
    return dist.new_group()


@pytest.fixture
def ended(monkeypatch):
    """The names that this worker has undeclared, in order."""
    names, undeclare = [], _recent._undeclare

    def noted(leaving):
        late = undeclare(leaving)
        names.extend(tensor for name in leaving if name not in late for tensor in name.in_job)
        return late

    monkeypatch.setattr(_recent, "_undeclare", noted)
    return names


def all_reduce(length, group):
    tensor = torch.full((length,), 1.0 + gl.rank())
    dist.all_reduce(tensor, group=group)
    assert (tensor == 3.0).all()


def reduce_scatter(length, group):
    own = torch.empty(length)
    dist.reduce_scatter_tensor(own, torch.ones(2 * length), group=group)
    assert (own == 2.0).all()


def all_gather(length, group):
    into = torch.empty(2 * length)
    dist.all_gather_into_tensor(into, torch.full((length,), float(gl.rank())), group=group)
    assert into.tolist() == [0.0] * length + [1.0] * length


def all_to_all(length, group):
    """Of uneven parts."""
    sizes = [[length, 2 * length + 1], [length + 3, 1]]
    sent, came = sizes[gl.rank()], [row[gl.rank()] for row in sizes]
    into = torch.empty(sum(came))
    dist.all_to_all_single(into, torch.full((sum(sent),), float(gl.rank())), came, sent, group=group)
    assert into.tolist() == [0.0] * came[0] + [1.0] * came[1]


def product(length, group):
    tensor = torch.full((length,), 2.0 + gl.rank())
    dist.all_reduce(tensor, dist.ReduceOp.PRODUCT, group=group)
    assert (tensor == 6.0).all()


def broadcast(length, group):
    tensor = torch.full((length,), float(gl.rank()))
    dist.broadcast(tensor, 1, group=group)
    assert (tensor == 1.0).all()


def message(length, group, tag=0):
    tensor = torch.full((length,), float(gl.rank()))
    if gl.rank() == 0:
        dist.send(tensor, 1, group, tag)
    else:
        dist.recv(tensor, 0, group, tag)
        assert not tensor.any()


@quietly
@pytest.mark.parametrize("call", [all_reduce, reduce_scatter, all_gather, all_to_all, product, broadcast, message])
def test_more_lengths_than_names(call, small, ended):
    for length in range(1, LENGTHS + 1):
        call(length, small)
    assert len(ended) >= LENGTHS - MOST - 1, "the names for lengths of long ago have ended"
    gl.barrier("all lengths were tried")
    for length in (1, 2, 3, LENGTHS, 1):
        call(length, small)


def test_lengths_that_come_again_keep_their_names(small, ended):
    for _ in range(20):
        for length in range(1, MOST + 1):
            all_reduce(length, small)
    assert ended == []


def test_lengths_in_any_order_with_many_operations_in_flight(small):
    order = random.Random(5)
    for _ in range(LENGTHS // 10):
        tensors = [torch.ones(order.randrange(1, 3 * MOST)) for _ in range(5 * MOST)]
        works = [dist.all_reduce(tensor, group=small, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        assert all((tensor == 2.0).all() for tensor in tensors)


def test_tags_that_come_once_leave_no_names(small, ended):
    for step in range(LENGTHS):
        message(3, small, tag=1000 + step)
    gl.barrier("all tags were used")
    assert len(ended) >= LENGTHS - 1


def test_messages_of_one_large_tag_both_ways_before_the_first_arrives(small):
    other = 1 - gl.rank()
    sent, received = [torch.full((3,), 1.0 * i) for i in range(5)], [torch.empty(3) for _ in range(5)]
    works = [dist.isend(tensor, other, small, 100) for tensor in sent]
    works += [dist.irecv(tensor, other, small, 100) for tensor in received]
    for work in works:
        work.wait()
    assert [tensor[0].item() for tensor in received] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_messages_with_tags_in_another_order_on_the_receiver(small):
    tags = [3, 5, 70, 900, 4]
    tensors = {tag: torch.full((2,), float(tag) if gl.rank() == 0 else 0.0) for tag in tags}
    for _ in range(3):
        if gl.rank() == 0:
            works = [dist.isend(tensors[tag], 1, small, tag) for tag in tags]
        else:
            works = [dist.irecv(tensors[tag], 0, small, tag) for tag in reversed(tags)]
        for work in works:
            work.wait()
        assert all((tensors[tag] == tag).all() for tag in tags)


def test_a_group_of_some_workers_ends_its_names_too(monkeypatch, ended):
    monkeypatch.setattr(process_group, "NAMES_MAX", MOST)
    monkeypatch.setattr(process_group, "_GROUP_NAMES_MIN", MOST)
    alone = [dist.new_group([rank]) for rank in range(2)][gl.rank()]
    for length in range(1, LENGTHS + 1):
        tensor = torch.ones(length)
        dist.all_reduce(tensor, group=alone)
    assert len(ended) >= LENGTHS - MOST - 1


def test_a_call_that_is_refused_leaves_the_names_of_others_alone(small):
    for length in range(1, LENGTHS + 1):
        with pytest.raises(InvalidArgumentError):
            dist.all_reduce(torch.ones(length, dtype=torch.int16), group=small)
        all_reduce(length, small)
