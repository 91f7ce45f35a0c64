"""Tensors whose memory is freed, moved or not their own: the engine never uses memory that nobody keeps."""

import time

import gradlane
import gradlane.torch as gl
import pytest
import torch
from gradlane import InvalidArgumentError, Sum
from gradlane.errors import FailedPreconditionError

pytestmark = pytest.mark.over("local", "shm", "quic")

LENGTH = 1 << 14

IN_PLACE = {
    "push_pull_": lambda tensor, name: gl.push_pull_async_(tensor, name, op=Sum),
    "grouped_push_pull_": lambda tensor, name: gl.grouped_push_pull_async_([tensor, torch.ones(3)], name, op=Sum),
}

WITHDRAWN = {
    "set_": lambda tensor: tensor.set_(torch.full((LENGTH,), 9.0)),
    "data": lambda tensor: setattr(tensor, "data", torch.full((LENGTH,), 9.0)),
}
"""Gives a tensor another storage."""

MOVED = {
    "resize_": lambda tensor: tensor.resize_(4 * LENGTH),
    "storage": lambda tensor: tensor.untyped_storage().resize_(0),
    "share_memory_": lambda tensor: tensor.share_memory_(),
}
"""Moves or frees the memory of a storage."""


@pytest.mark.parametrize("call", IN_PLACE)
@pytest.mark.parametrize("how", WITHDRAWN)
@pytest.mark.workers(2)
def test_a_tensor_that_gets_another_storage_leaves_the_old_one_to_the_engine(how, call):
    tensor, name = torch.full((LENGTH,), 1.0 + gradlane.rank()), f"{call} {how}"
    if gradlane.rank() == 1:
        gradlane.barrier(name)  # so the operation of rank 0 cannot have ended before
        IN_PLACE[call](tensor, name).wait()
        assert (tensor == 3.0).all()
        return
    handle = IN_PLACE[call](tensor, name)
    WITHDRAWN[how](tensor)
    unrelated = [torch.full((LENGTH,), 5.0) for _ in range(50)]
    gradlane.barrier(name)
    with pytest.raises(FailedPreconditionError, match="freed or replaced while it was reduced"):
        handle.wait()
    assert all((other == 5.0).all() for other in [*unrelated, tensor - 4.0]), "unrelated memory was written"


@pytest.mark.parametrize("call", IN_PLACE)
@pytest.mark.parametrize("how", MOVED)
@pytest.mark.workers(2)
def test_memory_that_moved_before_the_wait_is_an_error(how, call):
    tensor = torch.ones(LENGTH)
    handle = IN_PLACE[call](tensor, f"{call} {how}")
    deadline = time.monotonic() + 10.0
    while not handle.poll():  # earlier the engine would still write to the memory that is freed here
        assert time.monotonic() < deadline
    MOVED[how](tensor)
    with pytest.raises(FailedPreconditionError, match="wait for the handle before resize_"):
        handle.wait()


def shrunk() -> torch.Tensor:
    tensor = torch.ones(LENGTH)
    tensor.untyped_storage().resize_(4)
    return tensor


def freed() -> torch.Tensor:
    tensor = torch.ones(LENGTH)
    tensor.untyped_storage().resize_(0)
    return tensor


class Stands(torch.Tensor):
    """A tensor that stands for others."""

    @staticmethod
    def __new__(cls) -> torch.Tensor:
        return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return Stands() if function is torch.ops.aten.detach.default else NotImplemented


@pytest.mark.parametrize("call", IN_PLACE)
@pytest.mark.parametrize("make", [shrunk, freed, Stands])
@pytest.mark.workers(2)
def test_a_tensor_without_memory_of_its_own_is_refused(make, call):
    with pytest.raises(InvalidArgumentError, match="has no memory for that shape"):
        IN_PLACE[call](make(), "refused")


@pytest.mark.workers(2)
def test_a_tensor_inside_of_a_transformation_is_refused():
    with pytest.raises(InvalidArgumentError, match="has no memory for that shape"):
        torch.func.vmap(lambda row: gl.push_pull_(row, "refused"))(torch.ones(3, 2))


@pytest.mark.parametrize("call", IN_PLACE)
@pytest.mark.workers(2)
def test_a_tensor_whose_elements_share_memory_is_refused_before_anything_is_sent(call):
    with pytest.raises(InvalidArgumentError, match=r"share memory, as after expand\(\)"):
        IN_PLACE[call](torch.ones(1).expand(4), "refused")


@pytest.mark.workers(2)
def test_scalars_views_and_memory_of_numpy_are_reduced_where_they_lie():
    import numpy as np

    rank, array = gradlane.rank(), np.full(4, 1.0 + gradlane.rank())
    whole = torch.zeros(3, 4)
    whole[1] = 1.0 + rank
    assert gl.push_pull(torch.tensor(1.0 + rank), "scalar", op=Sum) == 3.0
    gl.push_pull_(torch.from_numpy(array), "of NumPy", op=Sum)
    gl.push_pull_(whole[1], "view", op=Sum)
    gl.push_pull_(torch.nn.Parameter(whole).data[1], "data", op=Sum)
    assert (array == 3.0).all() and (whole[1] == 6.0).all() and (whole[::2] == 0.0).all()
