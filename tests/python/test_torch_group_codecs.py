"""Process groups whose sums travel with a codec: which calls do, by the bytes that each worker pushes."""

from __future__ import annotations

import inspect

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
from gradlane.errors import InvalidArgumentError, MismatchError, UnsupportedError
from process_group import group as group  # a fixture of each test here
from torch.distributed.device_mesh import init_device_mesh

pytestmark = [pytest.mark.over("shm", "quic"), pytest.mark.workers(3, servers=2)]

COUNT = 1 << 14
"""Elements of a tensor that is large enough."""

PLAIN, ENCODED = 4 * COUNT, COUNT + COUNT // 256 * 4
"""Its bytes as float32, and in int8 with a scale for each block of 256."""


@pytest.fixture(scope="module")
def encoded(group):
    """The group of all workers, with int8."""
    return dist.new_group(pg_options=gl.ProcessGroupOptions(gl.Compression.int8)) if gl.is_initialized() else None


def pushed(call, tensor):
    before = gl.metrics()["push_bytes"]
    call(tensor)
    return gl.metrics()["push_bytes"] - before


def values(dtype=torch.float32, count=COUNT):
    """Of every block, the largest magnitude is 127, so that int8 encodes each contribution exactly."""
    return torch.arange(count).remainder(255).sub(127).to(dtype)


def test_sums_and_means_of_floating_point_travel_with_the_codec(encoded):
    for op, factor in ((dist.ReduceOp.SUM, 3.0), (dist.ReduceOp.AVG, 1.0), (dist._make_nccl_premul_sum(0.5), 1.5)):
        tensor = values()
        assert pushed(lambda one: dist.all_reduce(one, op, group=encoded), tensor) == ENCODED
        torch.testing.assert_close(tensor, factor * values(), rtol=1e-6, atol=0.0)
    tensor = values().view(128, 128).t()
    assert pushed(lambda one: dist.all_reduce(one, group=encoded), tensor) == ENCODED, "of any shape and order"
    # PyTorch gives complex numbers to some calls as pairs of real ones.
    for call in (dist.all_reduce, lambda one, group: group.allreduce([one]).wait()):
        assert pushed(lambda one, call=call: call(one, group=encoded), values().to(torch.complex64)) == 2 * ENCODED


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_coalesced_sums_do_so_too(encoded):
    tensors = [values(), values(), values(count=3), values(torch.int32)]
    before = gl.metrics()["push_bytes"]
    dist.all_reduce_coalesced(tensors[:3], group=encoded)
    assert gl.metrics()["push_bytes"] - before == 2 * ENCODED + 3 * 4
    assert all(torch.allclose(one, 3 * values(count=len(one)), rtol=1e-6, atol=0.0) for one in tensors[:3])


def test_everything_else_travels_as_it_is(encoded):
    plain = {
        "max": lambda one: dist.all_reduce(one, dist.ReduceOp.MAX, group=encoded),
        "broadcast": lambda one: dist.broadcast(one, gl.rank(), group=encoded),
        "no option": dist.all_reduce,
    }
    for name, call in plain.items():
        if name == "broadcast":
            for root in range(3):
                sent = pushed(lambda one, root=root: dist.broadcast(one, root, group=encoded), values())
                assert sent == (PLAIN if root == gl.rank() else 0)
            continue
        assert pushed(call, values()) == PLAIN, name
    assert pushed(lambda one: dist.all_reduce(one, group=encoded), values(torch.int32)) == PLAIN
    inexact = torch.full((COUNT,), 1.0 / 3) + values() / 127
    first = inexact.clone()
    dist.reduce(first, 0, group=encoded)
    assert gl.rank() > 0 or torch.allclose(first, 3 * inexact, rtol=1e-6)
    part = torch.empty(COUNT // 4)
    whole = inexact.repeat(3)[: 3 * len(part)]
    dist.reduce_scatter_tensor(part, whole, group=encoded)
    assert torch.allclose(part, 3 * whole.tensor_split(3)[gl.rank()], rtol=1e-6)
    gathered = torch.empty(3 * COUNT)
    dist.all_gather_into_tensor(gathered, inexact, group=encoded)
    assert torch.equal(gathered, inexact.repeat(3))


def test_the_number_of_bytes_alone_decides(group):
    small, at_limit = values(count=1000), values(count=2048)
    by_setting = dist.new_group(pg_options=gl.ProcessGroupOptions(gl.Compression.int8))
    assert pushed(lambda one: dist.all_reduce(one, group=by_setting), small) == 4 * 1000
    assert pushed(lambda one: dist.all_reduce(one, group=by_setting), at_limit) == 2048 + 8 * 4
    for options in (
        gl.ProcessGroupOptions(gl.Compression.int8, min_compress_bytes=0),
        gl.ProcessGroupOptions(gl.Compression.int8(compress_all=True)),
    ):
        assert pushed(lambda one, members=dist.new_group(pg_options=options): dist.all_reduce(one, group=members), small) == 1000 + 4 * 4
    casts = dist.new_group(pg_options=gl.ProcessGroupOptions(gl.Compression.bf16))
    assert pushed(lambda one: dist.all_reduce(one, group=casts), small) == 4 * 1000, "also of casts"
    assert pushed(lambda one: dist.all_reduce(one, group=casts), at_limit) == 2 * 2048


def test_a_group_of_some_workers(group):
    ends = dist.new_group([0, 2], pg_options=gl.ProcessGroupOptions(gl.Compression.int8))
    if gl.rank() != 1:
        tensor = values()
        assert pushed(lambda one: dist.all_reduce(one, group=ends), tensor) == ENCODED
        torch.testing.assert_close(tensor, 2 * values(), rtol=1e-6, atol=0.0)


@pytest.mark.skipif("backend_override" not in inspect.signature(init_device_mesh).parameters, reason="an older PyTorch")
def test_the_groups_of_a_mesh(group):
    options = gl.ProcessGroupOptions(gl.Compression.int8)
    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("data",), backend_override={"data": ("gradlane", options)})
    assert pushed(lambda one: dist.all_reduce(one, group=mesh.get_group("data")), values()) == ENCODED


def test_elements_that_the_codec_does_not_encode_are_an_error(encoded):
    with pytest.raises(InvalidArgumentError, match="bfloat16, which codec int8 does not encode"):
        dist.all_reduce(values(torch.bfloat16, 2 * COUNT), group=encoded)
    dist.all_reduce(values(torch.bfloat16, 8), group=encoded)  # it is small


@pytest.mark.parametrize("other", [gl.Compression.int8(block=128), gl.Compression.none], ids=["block", "none"])
def test_other_options_on_a_worker_are_an_error_on_all(group, other):
    options = gl.ProcessGroupOptions(other if gl.rank() == 2 else gl.Compression.int8)
    members = dist.new_group(pg_options=options)
    with pytest.raises(MismatchError, match="int8") as raised:
        dist.all_reduce(values(), group=members)
    assert raised.value.field == "codec"
    dist.all_reduce(values())  # the job goes on


def test_a_later_group_of_the_same_name_may_have_another_codec(group):
    dist.destroy_process_group()
    store = {"rank": gl.rank(), "world_size": gl.size()}
    codecs = [gl.Compression.int8, gl.Compression.bf16, gl.Compression.int8, gl.Compression.none]
    for compression, expected in zip(codecs, (ENCODED, PLAIN // 2, ENCODED, PLAIN), strict=True):
        dist.init_process_group(
            "gradlane", store=dist.HashStore(), pg_options=gl.ProcessGroupOptions(compression), **store
        )
        assert pushed(dist.all_reduce, values()) == expected
        dist.destroy_process_group()
    dist.init_process_group("gradlane", store=dist.HashStore(), **store)  # for the other tests


def test_what_a_group_cannot_do_is_refused():
    for codec in (gl.Compression.int8(feedback=True), gl.Compression.onebit(feedback=True, momentum=0.9)):
        with pytest.raises(UnsupportedError, match="tells tensors apart by their lengths"):
            gl.ProcessGroupOptions(codec)
    with pytest.raises(InvalidArgumentError, match="auto chooses for the parameters of a model"):
        gl.ProcessGroupOptions(gl.Compression.auto)
    with pytest.raises(InvalidArgumentError, match="sets no parameter"):
        gl.ProcessGroupOptions(gl.Compression.int8(blok=3))
    with pytest.raises(InvalidArgumentError, match="use Compression.int8"):
        gl.ProcessGroupOptions("int8")
    for least in (-1, 1.5, True):
        with pytest.raises(InvalidArgumentError, match="min_compress_bytes="):
            gl.ProcessGroupOptions(gl.Compression.int8, least)
    options = gl.ProcessGroupOptions(gl.Compression.int8(feedback=False))
    assert "feedback=0" in options.compression.codec
