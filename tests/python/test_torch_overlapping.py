"""Collectives of `torch.distributed` whose results would land on each other."""

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
from gradlane.errors import InvalidArgumentError  # noqa: E402
from process_group import group  # noqa: E402, F401
from torch import distributed as dist  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("local", "shm")]


def overlapping():
    one = torch.zeros(3)
    return {
        "all_gather": lambda: dist.all_gather([one, one], torch.ones(3)),
        "all_gather of parts": lambda: dist.all_gather([one[:2], one[1:]], torch.ones(2)),
        "all_to_all": lambda: dist.all_to_all([one, one], [torch.ones(3), torch.ones(3)]),
        "gather": lambda: dist.gather(torch.ones(3), [one, one] if gl.rank() == 0 else None, dst=0),
        "coalesced": lambda: dist.all_reduce_coalesced([one, one]),
    }


@pytest.mark.parametrize("call", overlapping())
def test_places_that_overlap_are_refused(group, call):  # noqa: F811
    if call == "gather" and gl.rank() != 0:
        return
    with pytest.raises(InvalidArgumentError, match="tensors 0 and 1 of the 2 in which results land .* overlap"):
        overlapping()[call]()


def test_one_tensor_may_be_sent_in_one_call_and_columns_may_be_places(group):  # noqa: F811
    room = torch.zeros(3, 2)
    dist.all_gather([room[:, 0], room[:, 1]], torch.full((3,), 1.0 + gl.rank()))
    assert room.tolist() == [[1.0, 2.0]] * 3


def written_to():
    return {
        "all_reduce": lambda place: dist.all_reduce(place),
        "broadcast": lambda place: dist.broadcast(place, 1 - gl.rank()),
        "reduce": lambda place: dist.reduce(place, gl.rank()),
        "recv": lambda place: dist.recv(place, 1 - gl.rank()),
        "all_gather_into_tensor": lambda place: dist.all_gather_into_tensor(place, torch.ones(2)),
        "reduce_scatter_tensor": lambda place: dist.reduce_scatter_tensor(place, torch.ones(8)),
        "all_to_all_single": lambda place: dist.all_to_all_single(place, torch.ones(4)),
    }


@pytest.mark.parametrize("call", written_to())
def test_a_place_whose_elements_share_memory_is_refused_before_anything_is_sent(group, call):  # noqa: F811
    with pytest.raises(InvalidArgumentError, match=r"share memory, as after expand\(\)"):
        written_to()[call](torch.ones(1).expand(4))


def test_the_root_of_a_broadcast_and_a_sender_may_have_an_expanded_tensor(group):  # noqa: F811
    tensor = torch.ones(1).expand(3) if gl.rank() == 0 else torch.zeros(3)
    dist.broadcast(tensor, 0)
    assert tensor.tolist() == [1.0] * 3
    if gl.rank() == 0:
        dist.send(tensor * 2, 1)
        dist.reduce(tensor, 1)
    else:
        dist.recv(tensor, 0)
        dist.reduce(tensor, 0 + 1)
        assert tensor.tolist() == [3.0] * 3
