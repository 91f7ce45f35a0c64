"""Horovod scripts for PyTorch, as far as Gradlane has what they call."""

import importlib
import inspect
import sys

import gradlane.compat.horovod as _  # noqa: F401  so that `import horovod` works
import pytest
import torch
from gradlane.errors import InvalidArgumentError, UnsupportedError
from processes import over, run_all

hvd = importlib.import_module("horovod.torch")

OVER_ALL = pytest.mark.over("local", "shm", "quic")

PARAMETERS = {
    "allreduce": "tensor average name compression op prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce": "tensors average name compression op prescale_factor postscale_factor process_set",
    "grouped_allreduce_": "tensors average name op prescale_factor postscale_factor process_set",
    "allgather": "tensor name process_set",
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


@OVER_ALL
def test_a_script_runs_as_it_is(tmp_path, transport):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    as_module = [sys.executable, "-m", "gradlane.compat.horovod", str(script)]
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", *as_module]
    [ended] = run_all([(command, over(transport))], timeout=90)
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
    assert hvd.reducescatter(torch.arange(3.0), op=hvd.Sum).tolist() == [[0.0, 2.0], [4.0]][hvd.rank()]
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
    first, second = hvd.grouped_allgather([torch.ones(1), torch.full((2,), hvd.rank())])
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
    part = hvd.ProcessSet([0])
    for call, named in (
        (lambda: hvd.allreduce(ones, op=hvd.Adasum), "op=Adasum"),
        (lambda: hvd.DistributedOptimizer(None, op=hvd.Adasum), "op=Adasum"),
        (lambda: hvd.alltoall(ones), "alltoall"),
        (lambda: hvd.join(), "join"),
        (lambda: hvd.allreduce(ones, process_set=part), r"a process set of the ranks \[0\]"),
        (lambda: hvd.add_process_set([1]), r"a process set of the ranks \[1\]"),
    ):
        with pytest.raises(UnsupportedError, match=named):
            call()
    assert hvd.add_process_set([1, 0]).ranks == [0, 1]
    for wrong, named in (
        (lambda: hvd.allreduce(ones, op="sum"), "op='sum' is no reduction"),
        (lambda: hvd.allgather(torch.tensor(1.0)), "without dimensions"),
        (lambda: hvd.broadcast(ones, 2), "root_rank=2 in a job of 2 workers"),
        (lambda: hvd.grouped_allreduce([]), "a group of no tensors"),
    ):
        with pytest.raises(InvalidArgumentError, match=named):
            wrong()
    built = (hvd.mpi_built(), hvd.mpi_enabled(), hvd.gloo_built(), hvd.nccl_built(), hvd.mpi_threads_supported())
    assert not any(built)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.local_rank(), hvd.local_size()) == (0, 1, hvd.rank(), 2)
