"""Horovod scripts for PyTorch, as far as Gradlane has what they call."""

import importlib
import inspect

import gradlane.compat.horovod  # so that `import horovod` works
import pytest
import torch
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError, UnsupportedError
from processes import over, run_as_it_is

hvd = importlib.import_module("horovod.torch")

MISSING_MODULES = ("tensorflow", "keras", "mxnet", "spark", "ray", "runner", "elastic")

OVER_ALL = pytest.mark.over("local", "shm", "quic")

PARAMETERS = {
    "allreduce": "tensor average name compression op prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce": "tensors average name compression op prescale_factor postscale_factor process_set",
    "grouped_allreduce_": "tensors average name op prescale_factor postscale_factor process_set",
    "allgather": "tensor name process_set",
    "grouped_allgather": "tensors name process_set",
    "grouped_allgather_async": "tensors name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
    "reducescatter_async": "tensor name op process_set prescale_factor postscale_factor",
    "grouped_reducescatter": "tensors name compression op process_set prescale_factor postscale_factor",
    "grouped_reducescatter_async": "tensors name op process_set prescale_factor postscale_factor",
    "barrier": "process_set",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "ProcessSet": "ranks_or_comm",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_parameters": "params root_rank process_set",
    "broadcast_optimizer_state": "optimizer root_rank model",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name process_set",
    "init": "comm process_sets",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op"
    " gradient_predivide_factor num_groups groups sparse_as_dense process_set",
}

SCRIPT = """
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((4, 3), 1.0 + hvd.rank())).square().sum().backward()
    optimizer.step()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
assert torch.equal(hvd.allreduce(weights, name="weights"), weights), "all have the same"
print(f"rank {hvd.rank()} of {hvd.size()} ended well", flush=True)
"""


@pytest.mark.parametrize("name", PARAMETERS)
def test_arguments_are_those_of_horovod(name):
    assert list(inspect.signature(getattr(hvd, name)).parameters) == PARAMETERS[name].split()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Product", "what allgather returns"),
        ("SyncBatchNorm", "torch.nn.SyncBatchNorm"),
    ],
)
def test_names_that_only_horovod_has_are_refused_with_what_to_use_instead(name, instead):
    for module in (hvd, importlib.import_module("horovod.torch.mpi_ops")):
        with pytest.raises(UnsupportedError, match=rf"horovod\.torch\.{name} does not exist here; .*{instead}"):
            getattr(module, name)


@pytest.mark.parametrize("name", MISSING_MODULES)
def test_modules_that_only_horovod_has_are_no_import_and_say_what_to_use_instead(name):
    with pytest.raises(ModuleNotFoundError, match=rf"horovod\.{name} does not exist here; (use|start) "):
        importlib.import_module(f"horovod.{name}")


def test_names_that_horovod_lacks_too_are_just_not_there():
    assert not hasattr(hvd, "no_such_name")
    with pytest.raises(ModuleNotFoundError, match="No module named 'horovod.no_such_module'"):
        importlib.import_module("horovod.no_such_module")


def test_operations_have_a_second_path():
    operations = importlib.import_module("horovod.torch.mpi_ops")
    assert all(getattr(operations, name) is getattr(hvd, name) for name in hvd.__all__)


def test_what_is_built_in_and_which_numbers_are_powers_of_two():
    assert not any(getattr(hvd, f"{name}_built")() for name in ("mpi", "gloo", "nccl", "cuda", "rocm", "ccl", "ddl"))
    assert [number for number in range(9) if hvd.num_rank_is_power_2(number)] == [1, 2, 4, 8]


@pytest.mark.over("local", "quic")
def test_a_script_runs_as_it_is(tmp_path, transport):
    ended = run_as_it_is("horovod", SCRIPT, tmp_path, env=over(transport))
    assert ended.code == 0, ended.output
    for rank in range(2):
        assert f"rank {rank} of 2 ended well" in ended.output


@OVER_ALL
@pytest.mark.workers(2)
def test_reductions():
    mine = torch.full((3,), 1.0 + hvd.rank())
    assert hvd.allreduce(mine).tolist() == [1.5] * 3
    assert hvd.allreduce(mine, False, "a").tolist() == [3.0] * 3
    assert hvd.allreduce(mine, name="b", op=hvd.Max, prescale_factor=2.0, postscale_factor=10.0).tolist() == [40.0] * 3
    assert hvd.allreduce_(mine.clone(), op=hvd.Sum, postscale_factor=0.5).tolist() == [1.5] * 3
    handles = [hvd.allreduce_async(mine, op=hvd.Sum), hvd.allreduce_async_(mine.clone(), op=hvd.Min)]
    assert [hvd.synchronize(handle).tolist() for handle in handles] == [[3.0] * 3, [1.0] * 3]
    assert all(hvd.poll(handle) for handle in handles)
    group = [mine, torch.full((2, 2), 1.0 + hvd.rank())]
    assert [tensor.sum().item() for tensor in hvd.grouped_allreduce(group, op=hvd.Sum)] == [9.0, 12.0]
    in_place = hvd.grouped_allreduce_([tensor.clone() for tensor in group])
    assert [tensor.sum().item() for tensor in in_place] == [4.5, 6.0]
    assert mine.tolist() == [1.0 + hvd.rank()] * 3


@OVER_ALL
@pytest.mark.workers(2)
def test_a_reduction_is_differentiable():
    x = torch.full((2,), 1.0 + hvd.rank(), requires_grad=True)
    hvd.allreduce(x, name="x", op=hvd.Sum, postscale_factor=3.0).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]


@OVER_ALL
@pytest.mark.workers(2)
def test_gathers_and_broadcasts():
    for step in range(3):
        own = torch.full((1 + step * hvd.rank(), 2), hvd.rank(), dtype=torch.int16)
        gathered = hvd.allgather(own)
        assert gathered.dtype == torch.int16 and gathered[:, 1].tolist() == [0] + [1] * (1 + step)
    empty = hvd.allgather(torch.empty(3 * hvd.rank(), 2), name="some")
    assert empty.shape == (3, 2)
    group = [torch.ones(1), torch.full((2,), hvd.rank())]
    for first, second in (hvd.grouped_allgather(group), hvd.synchronize(hvd.grouped_allgather_async(group, "group"))):
        assert (first.tolist(), second.tolist()) == ([1.0, 1.0], [0, 0, 1, 1])
    own = torch.full((2,), float(hvd.rank()))
    assert hvd.broadcast(own, 1).tolist() == [1.0, 1.0] and own.tolist() == [float(hvd.rank())] * 2
    assert hvd.broadcast_(own, 0, "b").tolist() == [0.0, 0.0]
    assert hvd.broadcast_object({"of": hvd.rank()}, 1) == {"of": 1}
    assert hvd.allgather_object(hvd.rank()) == [0, 1]
    hvd.barrier()


@OVER_ALL
@pytest.mark.workers(2)
def test_what_does_not_exist_is_refused_by_name():
    ones = torch.ones(2)
    for call, named in (
        (lambda: hvd.allreduce(ones, op=hvd.Adasum), "op=Adasum"),
        (lambda: hvd.DistributedOptimizer(None, op=hvd.Adasum), "op=Adasum"),
        (lambda: hvd.join(), "join with 0 distributed optimizers"),
        (lambda: hvd.ProcessSet(object()), "a process set of object; communicators of MPI"),
    ):
        with pytest.raises(UnsupportedError, match=named):
            call()
    for wrong, named in (
        (lambda: hvd.alltoall(torch.tensor(1.0)), "alltoall of a tensor without dimensions"),
        (lambda: hvd.alltoall(torch.ones(3)), "3 rows among 2 workers"),
        (lambda: hvd.alltoall(ones, [1, 2]), r"2 rows with splits=\[1, 2\] among 2 workers"),
        (lambda: hvd.alltoall(ones, [1]), r"splits=\[1\] among 2 workers"),
        (lambda: hvd.alltoall(ones, torch.tensor([2, -1])), r"splits=\[2, -1\]"),
        (lambda: hvd.reducescatter(torch.tensor(1.0)), "reducescatter of a tensor without dimensions"),
        (lambda: hvd.allreduce(ones, process_set=[0, 1]), r"process_set=\[0, 1\] is none"),
        (lambda: hvd.init(process_sets="all"), "process_sets='all'"),
        (lambda: hvd.allreduce(ones, op="sum"), "op='sum' is no reduction"),
        (lambda: hvd.allgather(torch.tensor(1.0)), "without dimensions"),
        (lambda: hvd.broadcast(ones, 2), "root_rank=2 is not in the job"),
        (lambda: hvd.grouped_allreduce([]), "a group of no tensors"),
    ):
        with pytest.raises(InvalidArgumentError, match=named):
            wrong()
    assert not any((hvd.mpi_enabled(), hvd.gloo_enabled(), hvd.mpi_threads_supported()))
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.local_rank(), hvd.local_size()) == (0, 1, hvd.rank(), 2)


SET = pytest.mark.workers(3)
"""Jobs of three workers, of which the first and the last make a set."""


@pytest.fixture(scope="module")
def ends():
    """The set of the first and the last worker."""
    return hvd.add_process_set([2, 0]) if gradlane.is_initialized() and hvd.size() == 3 else None


@OVER_ALL
@SET
def test_a_process_set_knows_its_workers(ends):
    assert (ends.ranks, ends.size(), ends.included()) == ([0, 2], 2, hvd.rank() != 1)
    if ends.included():
        assert ends.rank() == hvd.rank() // 2
    else:
        with pytest.raises(InvalidArgumentError, match=r"rank 1 is not in ProcessSet\(\[0, 2\]\)"):
            ends.rank()
    whole = hvd.global_process_set
    assert (whole.process_set_id, whole.ranks, whole.size(), whole.rank()) == (0, [0, 1, 2], 3, hvd.rank())
    assert len(set(hvd.allgather_object(ends.process_set_id))) == 1 and ends.process_set_id > 0


@OVER_ALL
@SET
def test_hosts_with_different_numbers_of_workers_are_not_homogeneous(monkeypatch):
    assert hvd.is_homogeneous(), "all are on one host"
    common = importlib.import_module("horovod.common")
    monkeypatch.setattr(common, "cross_size", lambda: 2)
    assert hvd.is_homogeneous(), "both have as many"
    monkeypatch.setattr(common, "local_size", lambda: 1 if hvd.rank() == 2 else 2)
    assert not hvd.is_homogeneous()


@OVER_ALL
@SET
def test_reductions_in_a_process_set(ends):
    mine = torch.full((3,), 1.0 + hvd.rank())
    everybody = hvd.allreduce_async(mine, op=hvd.Sum)  # of the same shape and unnamed, beside those of the set
    if ends.included():
        assert hvd.allreduce(mine, process_set=ends).tolist() == [2.0] * 3
        assert hvd.allreduce(mine, False, "a", process_set=ends).tolist() == [4.0] * 3
        assert hvd.allreduce_(mine.clone(), op=hvd.Max, prescale_factor=2.0, process_set=ends).tolist() == [6.0] * 3
        handles = [hvd.allreduce_async(mine, op=hvd.Min, process_set=ends), hvd.allreduce_async(mine, process_set=ends)]
        assert [hvd.synchronize(handle).tolist() for handle in handles] == [[1.0] * 3, [2.0] * 3]
        group = [mine, torch.full((2, 2), 1.0 + hvd.rank()), torch.arange(6.0).view(2, 3).t()]
        sums = hvd.grouped_allreduce(group, op=hvd.Sum, process_set=ends)
        assert [tensor.sum().item() for tensor in sums] == [12.0, 16.0, 30.0]
        means = hvd.grouped_allreduce_([tensor.clone() for tensor in group], process_set=ends)
        assert [tensor.sum().item() for tensor in means] == [6.0, 8.0, 15.0]
        x = mine.clone().requires_grad_()
        hvd.allreduce(x, name="x", op=hvd.Sum, process_set=ends).sum().backward()
        assert x.grad.tolist() == [2.0] * 3
    assert hvd.synchronize(everybody).tolist() == [6.0] * 3


@OVER_ALL
@SET
def test_copies_in_a_process_set(ends):
    if ends.included():
        own = torch.full((1 + hvd.rank(), 2), hvd.rank(), dtype=torch.int16)
        assert hvd.allgather(own, process_set=ends)[:, 0].tolist() == [0, 2, 2, 2]
        columns, lines = hvd.grouped_allgather([own[:1, 0], own[:1]], "g", ends)
        assert (columns.tolist(), lines.tolist()) == ([0, 2], [[0, 0], [2, 2]])
        assert hvd.broadcast(own[0], 2, process_set=ends).tolist() == [2, 2], "a root is a rank in the job"
        assert hvd.broadcast_(own[0], 0, "b", ends).tolist() == [0, 0]
        weights = {"w": torch.full((3,), float(hvd.rank())), "flags": torch.tensor([hvd.rank() == 2])}
        hvd.broadcast_parameters(weights, 2, ends)
        assert weights["w"].tolist() == [2.0] * 3 and weights["flags"].item()
        assert hvd.broadcast_object({"of": hvd.rank()}, 2, process_set=ends) == {"of": 2}
        assert hvd.allgather_object("x" * hvd.rank(), process_set=ends) == ["", "xx"]
        hvd.barrier(ends)
        with pytest.raises(InvalidArgumentError, match="root_rank=1 is not one of the workers that take part"):
            hvd.broadcast(own, 1, process_set=ends)
    hvd.barrier()


@OVER_ALL
@SET
def test_workers_outside_of_a_process_set_are_refused(ends):
    ones = torch.ones(2)
    calls = (
        lambda: hvd.allreduce(ones, process_set=ends),
        lambda: hvd.grouped_allreduce_([ones], prescale_factor=2.0, process_set=ends),
        lambda: hvd.allgather(ones, process_set=ends),
        lambda: hvd.alltoall(ones, process_set=ends),
        lambda: hvd.reducescatter(ones, process_set=ends),
        lambda: hvd.broadcast_(ones, 0, process_set=ends),
        lambda: hvd.broadcast_parameters({"w": ones}, 0, ends),
        lambda: hvd.broadcast_object(1, 0, process_set=ends),
        lambda: hvd.allgather_object(1, process_set=ends),
        lambda: hvd.barrier(ends),
    )
    if not ends.included():
        for call in calls:
            with pytest.raises(InvalidArgumentError, match="only members may make this call"):
                call()
    assert ones.tolist() == [1.0, 1.0]


@OVER_ALL
@SET
def test_process_sets_are_added_and_removed(ends):
    late = hvd.ProcessSet([1, 2])
    assert (late.process_set_id, late.size(), late.rank()) == (None, None, None)
    with pytest.raises(FailedPreconditionError, match=r"the ranks \[1, 2\] was not added"):
        hvd.allreduce(torch.ones(2), process_set=late)
    hvd.init(process_sets=[late, ends])
    assert late.size() == 2 and late.process_set_id != ends.process_set_id
    if late.included():
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=late).tolist() == [2.0, 2.0]
    for again in ([0, 2], [0, 1, 2]):
        with pytest.raises(InvalidArgumentError, match="there is a process set of the ranks"):
            hvd.add_process_set(again)
    assert hvd.remove_process_set(late) and not hvd.remove_process_set(late)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(FailedPreconditionError, match="was removed"):
        hvd.allreduce(torch.ones(2), process_set=late)
    assert hvd.add_process_set(late) is late and hvd.remove_process_set(late)
    with pytest.raises(InvalidArgumentError, match=r"\[0, 3\] in a job of 3 workers"):
        hvd.add_process_set([0, 3])
    with pytest.raises(MismatchError, match=r"gave the ranks \[0, [12]\], worker \d \[0, [12]\]"):
        hvd.add_process_set([0, 1 if hvd.rank() == 1 else 2])


def rows(ranks, sender, lengths):
    """What `sender` sends to these ranks, so many rows to each. A row is the sender's rank and the receiver's."""
    parts = zip(ranks, lengths, strict=True)
    return torch.cat([torch.tensor([[sender, to]] * count, dtype=torch.int64).view(count, 2) for to, count in parts])


@OVER_ALL
@SET
def test_alltoall(ends):
    me, ranks = hvd.rank(), [0, 1, 2]
    even = hvd.alltoall(rows(ranks, me, [2, 2, 2]))
    assert even.tolist() == [[sender, me] for sender in ranks for _ in range(2)]
    for step in range(3):  # names stay the same while lengths change
        lengths = {sender: [(sender + to + step) % 3 for to in ranks] for sender in ranks}
        received, counts = hvd.alltoall(rows(ranks, me, lengths[me]), torch.tensor(lengths[me]), name="uneven")
        came = [lengths[sender][me] for sender in ranks]
        assert received.tolist() == [[sender, me] for sender in ranks for _ in range(came[sender])]
        assert counts.tolist() == came and counts.dtype == torch.int64
    long = torch.full((70_001 * 3,), me, dtype=torch.bfloat16)
    received, counts = hvd.synchronize(hvd.alltoall_async(long, [70_000, 1, 0]))
    assert counts.tolist() == [[70_000] * 3, [1] * 3, [0] * 3][me] and counts.dtype == torch.int32
    assert received.tolist() == [float(sender) for sender in ranks for _ in range(counts[0])]
    flags, _ = hvd.alltoall(torch.tensor([True, False, me == 1]), [1, 1, 1])
    assert flags.tolist() == [[True] * 3, [False] * 3, [False, True, False]][me]
    if ends.included():
        assert hvd.alltoall(rows([0, 2], me, [1, 1]), process_set=ends).tolist() == [[0, me], [2, me]]
    with pytest.raises(MismatchError, match="send rows of one shape and element type"):
        hvd.alltoall(torch.ones(3, 1 + (me == 1)), name="mixed")


@OVER_ALL
@SET
def test_gathers_and_broadcasts_are_differentiable(ends):
    me = hvd.rank()
    for lengths in ([1, 2, 0], [2, 1, 1]):  # they may change from call to call
        x = torch.ones(lengths[me], 2, requires_grad=True)
        gathered = hvd.allgather(x, name="x")
        assert gathered.requires_grad and len(gathered) == sum(lengths)
        rows = torch.arange(float(len(gathered))).view(-1, 1) + me
        (gathered * rows).sum().backward()
        first = sum(lengths[:me])  # the mean over the workers of row + rank
        assert x.grad.tolist() == [[row + 1.0] * 2 for row in range(first, first + lengths[me])]
    x = torch.ones(2, requires_grad=True)
    (hvd.broadcast(x, 1) * torch.tensor([1.0, me])).sum().backward()
    assert x.grad.tolist() == ([1.0, 1.0] if me == 1 else [0.0, 0.0])
    if ends.included():
        x = torch.full((1,), float(me), requires_grad=True)
        (hvd.allgather(x, process_set=ends) * torch.tensor([me, 10.0])).sum().backward()
        assert x.grad.tolist() == [1.0 if me == 0 else 10.0]
    with torch.no_grad():
        assert not hvd.allgather(torch.ones(1, requires_grad=True)).requires_grad


@OVER_ALL
@SET
def test_alltoall_is_differentiable():
    x = torch.arange(4.0).view(4, 1).requires_grad_()
    received, counts = hvd.alltoall(x, [1, 2, 0], name="x")
    assert received.requires_grad and not counts.is_floating_point()
    (received * (1.0 + hvd.rank())).sum().backward()
    assert x.grad.view(-1).tolist() == [1.0, 2.0, 2.0, 0.0], "the last row went to no worker"


@OVER_ALL
@SET
def test_reducescatter(ends):
    me = hvd.rank()
    whole = torch.arange(10.0).view(5, 2) + me
    expected = (3 * torch.arange(10.0).view(5, 2) + 3).tensor_split(3)[me].tolist()
    assert hvd.reducescatter(whole, op=hvd.Sum).tolist() == expected
    assert hvd.reducescatter(whole, op=hvd.Sum, compression=hvd.Compression.fp16).tolist() == expected
    handle = hvd.reducescatter_async(whole, "named", hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
    assert hvd.synchronize(handle).tolist() == expected
    assert whole.tolist() == (torch.arange(10.0).view(5, 2) + me).tolist(), "the contribution stays"
    few = hvd.reducescatter(torch.ones(2, 3))
    assert few.shape == (1 if me < 2 else 0, 3), "the first ranks get one row more, here one and none"
    both = [whole, whole.t()]
    for group in (hvd.grouped_reducescatter(both), hvd.grouped_reducescatter_async(both).wait()):
        assert [part.sum().item() for part in group] == [
            (torch.arange(10.0).view(5, 2) + 1).tensor_split(3)[me].sum().item(),
            (torch.arange(10.0).view(5, 2).t() + 1).tensor_split(3)[me].sum().item(),
        ]
    if ends.included():
        part = hvd.reducescatter(torch.tensor([1, 2, 3]), op=hvd.Max, process_set=ends)
        assert part.tolist() == [[1, 2], [3]][ends.rank()]
    x = torch.ones(4, requires_grad=True)
    (hvd.reducescatter(x, name="x", op=hvd.Sum) * (1.0 + me)).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0, 6.0, 9.0], "Horovod multiplies by the number of workers"


@pytest.mark.over("shm", "quic")
@SET
def test_only_what_is_needed_travels():
    elements = 90_001
    whole = torch.ones(elements)
    mine = len(whole.tensor_split(3)[hvd.rank()])
    before = gradlane.metrics()
    hvd.reducescatter(whole, op=hvd.Sum)
    after = gradlane.metrics()
    moved = tuple(after[f"{way}_bytes"] - before[f"{way}_bytes"] for way in ("push", "pull"))
    assert moved == (4 * elements, 4 * mine)


@OVER_ALL
@SET
def test_an_optimizer_averages_in_its_process_set(ends):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=ends)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.tensor([hvd.rank()])).sum() * (1.0 + hvd.rank())).backward()
        optimizer.step()
    bias = (before[-1] - list(model.parameters())[-1]).item()
    assert bias == pytest.approx(2 * 2.0, abs=1e-6), "the mean of 1 and 3 in the set, and 2 alone"
    changed = (model[0].weight != before[0]).any(1).nonzero().view(-1).tolist()
    assert changed == ([0, 2] if ends.included() else [1])
    weights = [parameter.detach() for parameter in model.parameters()]
    if ends.included():
        assert all(torch.equal(weight, hvd.broadcast(weight, 0, process_set=ends)) for weight in weights)
