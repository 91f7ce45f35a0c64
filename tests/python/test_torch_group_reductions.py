"""Every reduction of `torch.distributed`, of every element type and view, on groups of all and of some workers."""

from datetime import timedelta

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
from gradlane.errors import InvalidArgumentError, TimeoutError, UnsupportedError
from process_group import NEEDS_SHARDING_ON_CPU
from process_group import group as group  # a fixture of each test here
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import batches, made, mine, mlp, step

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(3)]

quietly = pytest.mark.filterwarnings("ignore::FutureWarning")

OP = dist.ReduceOp
PREMUL = dist._make_nccl_premul_sum(0.5)

OF_TWO = {
    (torch.float32, "SUM"): ([1.5, -2.0], [2.0, 4.0], [3.5, 2.0]),
    (torch.float32, "PREMUL_SUM"): ([1.0, -2.0], [2.0, 4.0], [1.5, 1.0]),
    (torch.bfloat16, "PREMUL_SUM"): ([1.0, -2.0], [2.0, 4.0], [1.5, 1.0]),
    (torch.float32, "PRODUCT"): ([1.5, -2.0], [2.0, 4.0], [3.0, -8.0]),
    (torch.int16, "PRODUCT"): ([3, -2], [2, 4], [6, -8]),
    (torch.int64, "BAND"): ([6, 1], [3, 2], [2, 0]),
    (torch.int32, "BOR"): ([6, 1], [3, 2], [7, 3]),
    (torch.uint8, "BXOR"): ([6, 1], [3, 2], [5, 3]),
    (torch.complex64, "SUM"): ([1 + 2j, 3j], [1 - 1j, 1], [2 + 1j, 1 + 3j]),
    (torch.complex128, "AVG"): ([1 + 2j, 3j], [1 - 1j, 1], [1 + 0.5j, 0.5 + 1.5j]),
    (torch.complex64, "PREMUL_SUM"): ([2, 2j], [2, 0], [2, 1j]),
    (torch.bool, "SUM"): ([True, False], [True, False], [True, False]),
    (torch.bool, "MAX"): ([True, False], [False, False], [True, False]),
    (torch.bool, "MIN"): ([True, False], [False, False], [False, False]),
    (torch.bool, "PRODUCT"): ([True, True], [False, True], [False, True]),
    (torch.bool, "BOR"): ([True, False], [False, False], [True, False]),
    (torch.bool, "BAND"): ([True, True], [False, True], [False, True]),
}
"""By element type and operation: the tensors of two workers, and the result."""

CASES = [pytest.param(dtype, op, *row, id=f"{op} of {dtype}") for (dtype, op), row in OF_TWO.items()]


@pytest.fixture(scope="module")
def pair(group):
    """A group of the first two workers, in which the third one takes no part."""
    return dist.new_group([0, 1]) if gl.is_initialized() else None


def operation(name):
    return PREMUL if name == "PREMUL_SUM" else getattr(OP, name)


def whole(values, dtype):
    return torch.tensor(values, dtype=dtype)


def strided(values, dtype):
    """A vector with gaps between its elements."""
    room = torch.zeros(2 * len(values), dtype=dtype)
    room[::2] = torch.tensor(values, dtype=dtype)
    return room[::2]


@pytest.mark.parametrize("view", [whole, strided])
@pytest.mark.parametrize(("dtype", "op", "first", "second", "expected"), CASES)
def test_reductions_among_two(pair, dtype, op, first, second, expected, view):
    if gl.rank() == 2:
        return
    own, wanted = [first, second][gl.rank()], torch.tensor(expected, dtype=dtype)
    tensor = view(own, dtype)
    dist.all_reduce(tensor, operation(op), group=pair)
    assert torch.equal(tensor, wanted)
    for root in range(2):
        tensor = view(own, dtype)
        dist.reduce(tensor, root, operation(op), group=pair)
        assert torch.equal(tensor, wanted if gl.rank() == root else torch.tensor(own, dtype=dtype))
    given, place = view(own, dtype), view([0], dtype)
    dist.reduce_scatter(place, list(given.split(1)), operation(op), group=pair)
    assert torch.equal(place, wanted[gl.rank() :][:1])
    assert torch.equal(given, torch.tensor(own, dtype=dtype)), "the input is the caller's"


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX", "PRODUCT", "PREMUL_SUM"])
def test_reductions_among_all(op):
    tensor = torch.tensor([1.0, 2.0, 3.0]) + gl.rank()
    dist.all_reduce(tensor, operation(op))
    sums = {"SUM": [6, 9, 12], "AVG": [2, 3, 4], "MAX": [3, 4, 5], "PRODUCT": [6, 24, 60], "PREMUL_SUM": [3, 4.5, 6]}
    assert tensor.tolist() == sums[op]


def test_a_factor_may_be_a_tensor():
    tensor = torch.ones(2)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(torch.tensor([0.25])))
    assert tensor.tolist() == [0.75] * 2


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("complex64", "MIN"),
        ("complex64", "MAX"),
        ("bool", "AVG"),
        ("bool", "BXOR"),
        ("float32", "BAND"),
        ("int32", "PREMUL_SUM"),
    ],
)
def test_an_operation_that_a_type_lacks_is_named(dtype, op):
    tensor = torch.ones(2, dtype=getattr(torch, dtype))
    with pytest.raises(InvalidArgumentError, match=f"the reduction {op} of .*{dtype}"):
        dist.reduce(tensor, 0, operation(op))


def views(length):
    """Tensors of `length` elements whose memory is not in the order of their values, by what they are."""
    base = torch.zeros(2 * length)
    return {
        "every second": base[::2],
        "transposed": torch.zeros(2, length // 2).t(),
        "channels last": torch.zeros(1, 2, length // 4, 2).contiguous(memory_format=torch.channels_last),
        "negative": torch.zeros(length, dtype=torch.complex64).conj().imag,
        "part of rows": torch.zeros(length // 2, 3)[:, :2],
    }


VIEWS = list(views(8))


@quietly
@pytest.mark.parametrize("kind", VIEWS)
def test_views_in_and_out(kind, pair):
    """Every call takes views for its inputs and for its outputs, on both groups."""
    for members in (None, pair):
        if members is pair and gl.rank() == 2:
            continue
        rank, size = gl.rank(), dist.get_world_size(members)
        values = torch.arange(8.0)

        def view(values, length=8):
            made = views(length)[kind]
            made.copy_(values.view(made.shape))
            return made

        def flat(tensor):
            return tensor.reshape(-1).tolist()

        tensor = view(values + rank)
        dist.all_reduce(tensor, group=members)
        assert flat(tensor) == [size * v + sum(range(size)) for v in range(8)]
        tensor = view(values + rank)
        dist.reduce(tensor, 1, group=members)
        total = [size * v + sum(range(size)) for v in range(8)]
        assert flat(tensor) == (total if rank == 1 else [v + rank for v in range(8)])
        tensor = view(values + 10 * rank)
        dist.broadcast(tensor, 1, group=members)
        assert flat(tensor) == [v + 10.0 for v in range(8)]
        gathered = view(torch.zeros(8 * size), 8 * size)
        dist.all_gather_into_tensor(gathered, view(values + 10 * rank), group=members)
        assert flat(gathered) == [v + 10.0 * other for other in range(size) for v in range(8)]
        each = [view(torch.zeros(8)) for _ in range(size)]
        dist.all_gather(each, view(values + 10 * rank), group=members)
        assert [flat(one) for one in each] == [[v + 10.0 * other for v in range(8)] for other in range(size)]
        own = view(torch.zeros(8))
        dist.reduce_scatter_tensor(own, view(torch.arange(8.0 * size), 8 * size), group=members)
        assert flat(own) == [size * (8 * rank + v) for v in range(8)]
        if len(own.shape) < 3:  # else the first dimension has one row
            rows = view(torch.zeros(8 * size), 8 * size)
            dist.all_to_all_single(rows, view(torch.arange(8.0 * size) + 100 * rank, 8 * size), group=members)
            assert flat(rows) == [8 * rank + v + 100 * other for other in range(size) for v in range(8)]
        outs = [view(torch.zeros(8)) for _ in range(size)]
        dist.all_to_all(outs, [view(values + 10 * rank + 100 * to) for to in range(size)], group=members)
        assert [flat(one) for one in outs] == [[v + 10.0 * o + 100 * rank for v in range(8)] for o in range(size)]
        places = [view(torch.zeros(8)) for _ in range(size)] if rank == 1 else None
        dist.gather(view(values + 10 * rank), places, 1, group=members)
        assert places is None or [flat(p) for p in places] == [[v + 10.0 * o for v in range(8)] for o in range(size)]
        own = view(torch.zeros(8))
        dist.scatter(own, [view(values + 10 * to) for to in range(size)] if rank == 1 else None, 1, group=members)
        assert flat(own) == [v + 10.0 * rank for v in range(8)]
        if rank < 2:
            own = view(values + 5 if rank == 0 else torch.zeros(8))
            dist.send(own, 1, members) if rank == 0 else dist.recv(own, 0, members)
            assert flat(own) == [v + 5.0 for v in range(8)]


@NEEDS_SHARDING_ON_CPU
def test_fsdp2_with_a_divide_factor():
    """A factor of twice the number of workers gives half of the mean."""

    def trained(factor, lr):
        model = made(mlp)
        fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
        model.set_gradient_divide_factor(factor)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for batch in batches(3):
            step(model, optimizer, mine(batch))
        return [parameter.full_tensor() for parameter in model.parameters()]

    for mean, half in zip(trained(3.0, 0.1), trained(6.0, 0.2), strict=True):
        torch.testing.assert_close(half, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("option", [{"pg_options": object()}, {"pg_options": dist.AllreduceOptions()}])
def test_options_that_nobody_reads_are_refused_by_name(option):
    with pytest.raises(UnsupportedError, match='pg_options=.*no effect on "gradlane"'):
        dist.new_group([gl.rank()], backend="gradlane", use_local_synchronization=True, **option)


@pytest.mark.parametrize("name", ["split_from", "an_option_of_tomorrow"])
def test_every_option_that_pytorch_gives_a_backend_is_read_or_refused(name):
    from types import SimpleNamespace

    from gradlane.torch.process_group import _create

    given = {"store": None, "group_rank": gl.rank(), "group_size": 3, "global_ranks_in_group": [], "group_id": "x"}
    with pytest.raises(UnsupportedError, match=f"{name}=True"):
        _create(SimpleNamespace(**given, **{name: True}))
    assert _create(SimpleNamespace(**given, **{name: None if name == "split_from" else False})).size() == 3


def test_the_timeout_of_a_group_is_the_limit_of_its_calls():
    members = dist.new_group(timeout=timedelta(seconds=0.5))
    if gl.rank() == 0:
        with pytest.raises(TimeoutError, match=r"not done after 0\.5 s"):
            dist.all_reduce(torch.ones(3), group=members)
    gl.barrier("one did not wait")
