"""Details of Horovod's calls on which scripts rely: factors, names that change, calls that return at once, warnings."""

import contextlib
import importlib
import itertools
import warnings

import gradlane.compat.horovod  # so that `import horovod` works
import pytest
import torch
from gradlane.compat import _unnamed
from gradlane.compat.horovod import common
from gradlane.errors import InvalidArgumentError, MismatchError, UnsupportedError

hvd = importlib.import_module("horovod.torch")

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(2)]

INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)

FORMS = {
    "allreduce": lambda tensor, **factors: hvd.allreduce(tensor, op=hvd.Sum, **factors),
    "allreduce_": lambda tensor, **factors: hvd.allreduce_(tensor, op=hvd.Sum, **factors),
    "allreduce_async": lambda tensor, **factors: hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Sum, **factors)),
    "grouped": lambda tensor, **factors: hvd.grouped_allreduce([tensor], op=hvd.Sum, **factors)[0],
    "grouped_": lambda tensor, **factors: hvd.grouped_allreduce_([tensor], op=hvd.Sum, **factors)[0],
    "reducescatter": lambda tensor, **factors: hvd.reducescatter(torch.cat([tensor] * 2), op=hvd.Sum, **factors),
    "grouped_reducescatter": lambda tensor, **factors: hvd.grouped_reducescatter(
        [torch.cat([tensor] * 2)], op=hvd.Sum, **factors
    )[0],
}
"""Ways to the sum of [3, 5, 8] of two workers."""


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_factors_keep_the_element_type(form, dtype):
    tensor = torch.tensor([3, 5, 8], dtype=dtype)
    before, after = FORMS[form](tensor.clone(), prescale_factor=0.5), FORMS[form](tensor.clone(), postscale_factor=0.75)
    assert before.dtype == after.dtype == dtype
    whole = dtype in INTEGERS
    assert before.tolist() == ([2, 4, 8] if whole else [3.0, 5.0, 8.0])  # integers are cut off before the sum
    assert after.tolist() == ([4, 7, 12] if whole else [4.5, 7.5, 12.0])


def test_the_gradient_has_the_factors_too():
    tensor = torch.ones(2, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0).sum().backward()
    assert tensor.grad.tolist() == [3.0, 3.0]


NAMED = {
    "allreduce": lambda tensor, name: hvd.allreduce(tensor, name=name),
    "allreduce_": lambda tensor, name: hvd.allreduce_(tensor, name=name),
    "grouped": lambda tensor, name: hvd.grouped_allreduce([tensor, tensor], name=name)[1],
    "allgather": lambda tensor, name: hvd.allgather(tensor, name=name)[: len(tensor)],
    "broadcast": lambda tensor, name: hvd.broadcast(tensor, 0, name=name),
    "alltoall": lambda tensor, name: hvd.alltoall(tensor, name=name),
    "reducescatter": lambda tensor, name: torch.cat([hvd.reducescatter(tensor, name=name)] * 2),
}


@pytest.mark.parametrize("call", NAMED)
def test_a_name_may_come_again_with_another_shape_and_element_type(call):
    for length, dtype in itertools.product((2, 6, 4, 2, 6), (torch.float32, torch.int64)):
        result = NAMED[call](torch.ones(length, 2, dtype=dtype), f"again.{call}")
        assert result.shape == (length, 2) and result.dtype == dtype and (result == 1).all()


def test_workers_that_use_a_name_for_different_shapes_are_told():
    with pytest.raises(hvd.HorovodInternalError, match=r"worker 1 .*shape \[3\]") as caught:
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="differs")
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("name", [None, "kinds"])
def test_rows_that_differ_between_workers_are_not_joined(name):
    own = torch.ones(2, dtype=torch.float32 if hvd.rank() else torch.int32)
    with pytest.raises(MismatchError, match="rows of worker . are .*, and those of worker . are not"):
        hvd.allgather(own, name=name)
    with pytest.raises(MismatchError, match=r"rows of worker . are float32 \[[12]\]"):
        hvd.allgather(torch.ones(2, 1 + hvd.rank()), name=name)


@pytest.mark.parametrize(
    "call",
    [
        lambda: hvd.allgather_async(torch.ones(2 + hvd.rank())),
        lambda: hvd.grouped_allgather_async([torch.ones(2 + hvd.rank()), torch.ones(1)]),
        lambda: hvd.alltoall_async(torch.ones(4)),
        lambda: hvd.alltoall_async(torch.ones(3), [1, 2]),
        lambda: hvd.reducescatter_async(torch.ones(4)),
        lambda: hvd.allreduce_async(torch.ones(4)),
        lambda: hvd.broadcast_async(torch.ones(4), 1),
    ],
    ids=["allgather", "grouped_allgather", "alltoall", "alltoall with splits", "reducescatter", "allreduce", "broadcast"],
)
def test_async_calls_do_not_wait_for_other_workers(call):
    """Rank 1 calls only when rank 0 has said that its call returned."""
    if hvd.rank() == 0:
        handle = call()
        assert not hvd.poll(handle)
        hvd.broadcast_object("returned", 0, "first")
    else:
        hvd.broadcast_object(None, 0, "first")
        handle = call()
    assert hvd.synchronize(handle) is not None and hvd.poll(handle)


@pytest.mark.parametrize("splits", [[1.0, 1.0], torch.tensor([1.0, 1.0]), ["1", "1"]], ids=str)
def test_splits_that_are_no_integers_are_refused(splits):
    with pytest.raises(InvalidArgumentError, match="give integers"):
        hvd.alltoall(torch.ones(2), splits)


@pytest.mark.parametrize("kind", ["none", "fp16", "bf16"])
def test_compressors_compress_tensors_that_a_script_hands_them(kind):
    compressor = getattr(hvd.Compression, kind)
    narrow = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[kind]
    for dtype in (torch.float32, torch.int32):
        tensor = torch.tensor([1, 2], dtype=dtype)
        compressed, context = compressor.compress(tensor)
        assert compressed.dtype == (narrow if dtype.is_floating_point else dtype)
        back = compressor.decompress(compressed, context)
        assert back.dtype == dtype and back.tolist() == [1, 2]
    assert hvd.allreduce(torch.ones(3), compression=compressor).tolist() == [1.0] * 3


@pytest.mark.parametrize(("skips", "count"), [(False, 1), (True, 0)])
def test_a_step_after_synchronize_warns_unless_it_skips(skips, count):
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for synchronizes in (True, False, True):
        model(torch.ones(1, 2)).sum().backward()
        if synchronizes:
            optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with optimizer.skip_synchronize() if skips and synchronizes else contextlib.nullcontext():
                optimizer.step()
        told = [str(warning.message) for warning in caught if "skip_synchronize" in str(warning.message)]
        assert len(told) == (count if synchronizes else 0)
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "needs op=Average"),
        ({"groups": -1}, "give a number of groups"),
        ({"num_groups": 1.5}, "give a number of groups"),
        ({"groups": [["x"]]}, "must consist of torch.Tensor"),
        ({"groups": [[t := torch.ones(1)], [t]]}, "only appear once"),
    ],
    ids=str,
)
def test_options_of_the_optimizer_that_horovod_refuses_are_refused(options, problem):
    model = torch.nn.Linear(2, 2)
    with pytest.raises(InvalidArgumentError, match=problem):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_a_communicator_is_refused():
    with pytest.raises(UnsupportedError, match=r"init\(comm=\[0\]\).*process_sets"):
        hvd.init(comm=[0])


def test_variables_without_effect_are_named_once(monkeypatch):
    for name, value in (("CYCLE_TIME", "5"), ("AUTOTUNE", "0"), ("TIMELINE", "DYNAMIC"), ("LOG_LEVEL", "info")):
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    with pytest.warns(UserWarning, match="^HOROVOD_CYCLE_TIME, HOROVOD_LOG_LEVEL have no effect"):
        common._read_environment()


def test_a_timeline_begins_that_the_environment_asks_for(monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "timeline.json"))
    common._read_environment()
    hvd.stop_timeline()
    assert list(tmp_path.iterdir())


def test_more_shapes_without_a_name_than_names_are_kept(monkeypatch):
    monkeypatch.setattr(_unnamed, "NAMES_MAX", 8)
    monkeypatch.setattr(_unnamed, "_recent", type(_unnamed._recent)(lambda: _unnamed.RecentNames(8)))
    for length in [*range(2, 42, 2), 2, 4, 40]:
        tensor = torch.ones(length, requires_grad=True)
        hvd.allreduce(tensor, op=hvd.Sum).sum().backward()
        assert tensor.grad.tolist() == [2.0] * length
        assert hvd.grouped_allreduce([torch.ones(length)] * 2)[1].tolist() == [1.0] * length
        assert hvd.reducescatter(torch.ones(length)).tolist() == [1.0] * (length // 2)
        assert hvd.broadcast(torch.ones(length), 0).tolist() == [1.0] * length
    assert len(_unnamed._recent[None]._names) <= 8


@pytest.mark.parametrize("waits", [False, True])
def test_exchanges_of_one_name_end_in_the_order_of_their_calls(waits):
    count = 8
    sent = [torch.full((2 * hvd.size(),), float(100 * number + hvd.rank())) for number in range(count)]
    handles = [hvd.alltoall_async(tensor, name="same") for tensor in sent[:-1]]
    last = hvd.alltoall(sent[-1], name="same") if waits else hvd.synchronize(hvd.alltoall_async(sent[-1], name="same"))[0]
    received = [hvd.synchronize(handle)[0] for handle in handles] + [last]
    for number, rows in enumerate(received):
        assert rows.tolist() == [float(100 * number + rank) for rank in range(hvd.size()) for _ in range(2)]


def test_a_sparse_tensor_is_reduced_and_several_at_once():
    rows = torch.tensor([[hvd.rank(), 2]])
    tensors = [torch.sparse_coo_tensor(rows, torch.ones(2, 3) * factor, (4, 3)) for factor in (1.0, 2.0)]
    completing = [hvd.sparse_allreduce_async(tensor, name=f"sparse {i}", op=hvd.Average) for i, tensor in enumerate(tensors)]
    for factor, complete in zip((1.0, 2.0), completing, strict=True):
        assert complete().to_dense().sum(1).tolist() == [1.5 * factor, 1.5 * factor, 3.0 * factor, 0.0]
    total = hvd.sparse_allreduce_async(tensors[0], "sparse 0", hvd.Sum)().to_dense()
    assert total.sum(1).tolist() == [3.0, 3.0, 6.0, 0.0], "a name may be used again"
    with pytest.raises(InvalidArgumentError, match="use allreduce"):
        hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum)


@pytest.mark.parametrize(
    ("field", "rows", "values", "shape"),
    [
        ("dtype", [[0]], torch.ones(1, 2).double(), (4, 2)),
        ("shape", [[3]], torch.ones(1, 4), (4, 4)),
        ("shape", [[9]], torch.ones(1, 2), (10, 2)),
        ("shape", [[0], [1]], torch.ones(1), (4, 2)),
    ],
    ids=["element type", "rows", "number of rows", "sparse dimensions"],
)
def test_sparse_tensors_of_other_kinds_are_an_error_on_all_workers(field, rows, values, shape):
    mine = torch.sparse_coo_tensor([[0]], torch.ones(1, 2), (4, 2))
    theirs = torch.sparse_coo_tensor(rows, values, shape)
    complete = hvd.sparse_allreduce_async(theirs if hvd.rank() else mine, "of two kinds", hvd.Sum)
    with pytest.raises(MismatchError, match=f"{field} is .* on rank 0 and .* on rank 1") as raised:
        complete()
    assert (raised.value.field, raised.value.ranks) == (field, (0, 1))
    assert hvd.sparse_allreduce_async(mine, "of two kinds", hvd.Sum)().to_dense()[0, 0] == 2.0, "the job goes on"


def test_an_optimizer_says_how_its_parameters_are_called():
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    unnamed = hvd.DistributedOptimizer(torch.optim.SGD([{"params": layer.parameters()} for layer in layers], lr=0.1))
    names = unnamed._parameter_names
    assert names[layers[1].bias] == "allreduce.noname.1.1" and len(set(names.values())) == 4
