"""The doors into the engine, `gradlane.torch`, `byteps.torch` and `horovod.torch`: before `init`, and side by side."""

import importlib

import gradlane.compat.byteps as _byteps  # noqa: F401  so that `import byteps` works
import gradlane.compat.horovod as _horovod  # noqa: F401  so that `import horovod` works
import gradlane.torch as gl
import pytest
import torch
from gradlane import _session
from gradlane.errors import InvalidArgumentError

bps = importlib.import_module("byteps.torch")
parallel = importlib.import_module("byteps.torch.parallel")
hvd = importlib.import_module("horovod.torch")


def ones():
    return torch.ones(2)


def linear():
    return torch.nn.Linear(2, 2)


def sgd(model=None):
    return torch.optim.SGD((model or linear()).parameters(), lr=1.0)


def cross_barrier():
    model = linear()
    gl.CrossBarrier(model, sgd(model))


BEFORE_INIT = {
    "gl.rank": gl.rank,
    "gl.barrier": gl.barrier,
    "gl.metrics": gl.metrics,
    "gl.layout": gl.layout,
    "gl.start_timeline": lambda: gl.start_timeline("never written"),
    "gl.declare": lambda: gl.declare("x"),
    "gl.undeclare": lambda: gl.undeclare("x"),
    "gl.push_pull": lambda: gl.push_pull(ones(), "x"),
    "gl.push_pull_": lambda: gl.push_pull_(ones(), "x"),
    "gl.grouped_push_pull": lambda: gl.grouped_push_pull([ones()], ["x"]),
    "gl.broadcast_": lambda: gl.broadcast_(ones(), 0, "x"),
    "gl.broadcast_object": lambda: gl.broadcast_object(1),
    "gl.broadcast_parameters": lambda: gl.broadcast_parameters(linear().state_dict()),
    "gl.broadcast_optimizer_state": lambda: gl.broadcast_optimizer_state(sgd()),
    "gl.allgather_object": lambda: gl.allgather_object(1),
    "gl.DistributedDataParallel": lambda: gl.DistributedDataParallel(linear()),
    "gl.DistributedOptimizer": lambda: gl.DistributedOptimizer(sgd()),
    "gl.CrossBarrier": cross_barrier,
    "gl.fsdp.attach": lambda: gl.fsdp.attach(linear()),
    "torch.ops": lambda: torch.ops.gradlane.push_pull(ones(), "x", True),
    "bps.declare": lambda: bps.declare("x"),
    "bps.push_pull": lambda: bps.push_pull(ones(), name="x"),
    "bps.push_pull_async_inplace": lambda: bps.push_pull_async_inplace(ones()),
    "bps.push_pull_group_sync_inplace": lambda: bps.push_pull_group_sync_inplace(ones(), name="x"),
    "bps.broadcast_parameters": lambda: bps.broadcast_parameters(linear().state_dict(), 0),
    "bps.broadcast_optimizer_state": lambda: bps.broadcast_optimizer_state(sgd(), 0),
    "bps.broadcast_object": lambda: bps.broadcast_object(1),
    "bps.DistributedOptimizer": lambda: bps.DistributedOptimizer(sgd()),
    "bps.DistributedDataParallel": lambda: parallel.DistributedDataParallel(linear()),
    "hvd.rank": hvd.rank,
    "hvd.barrier": hvd.barrier,
    "hvd.join": hvd.join,
    "hvd.allreduce": lambda: hvd.allreduce(ones()),
    "hvd.grouped_allreduce": lambda: hvd.grouped_allreduce([ones()]),
    "hvd.allgather": lambda: hvd.allgather(ones()),
    "hvd.broadcast": lambda: hvd.broadcast(ones(), 0),
    "hvd.alltoall": lambda: hvd.alltoall(ones()),
    "hvd.reducescatter": lambda: hvd.reducescatter(ones()),
    "hvd.broadcast_parameters": lambda: hvd.broadcast_parameters(linear().state_dict(), 0),
    "hvd.broadcast_optimizer_state": lambda: hvd.broadcast_optimizer_state(sgd(), 0),
    "hvd.broadcast_object": lambda: hvd.broadcast_object(1),
    "hvd.allgather_object": lambda: hvd.allgather_object(1),
    "hvd.add_process_set": lambda: hvd.add_process_set([0]),
    "hvd.DistributedOptimizer": lambda: hvd.DistributedOptimizer(sgd()),
}


@pytest.mark.parametrize("call", BEFORE_INIT.values(), ids=BEFORE_INIT)
def test_before_init_every_call_of_every_door_says_to_call_init(call):
    assert not gl.is_initialized()
    with pytest.raises(gl.NotInitializedError, match=r"call gradlane.init\(\) first"):
        call()


@pytest.mark.over("local", "shm", "quic")
@pytest.mark.workers(2)
def test_doors_side_by_side_share_one_session():
    session = _session.session()
    bps.init()
    hvd.init()
    assert _session.session() is session
    assert gl.rank() == bps.rank() == hvd.rank()
    assert gl.size() == bps.size() == hvd.size() == 2

    # All in flight at once.
    own = 1.0 + gl.rank()
    handles = [
        gl.push_pull_async(torch.full((3,), own), "gl", op=gl.Sum),
        bps.push_pull_async(torch.full((70_000,), own), average=True, name="bps"),
        hvd.allreduce_async(torch.full((5,), 10 * own), name="hvd", op=hvd.Sum),
    ]
    landed = [gl.synchronize(handles[0]), bps.synchronize(handles[1]), hvd.synchronize(handles[2])]
    assert (landed[0] == 3.0).all() and (landed[1] == 1.5).all() and (landed[2] == 30.0).all()

    # A model of each door, trained in turn. The gradient of the sum of the outputs is the input, so its average is that of the inputs.
    models = [torch.nn.Linear(2, 1, bias=False) for _ in range(3)]
    wrapped = gl.DistributedDataParallel(models[0])
    optimizers = [bps.DistributedOptimizer(sgd(models[1])), hvd.DistributedOptimizer(sgd(models[2]))]
    for model in (wrapped, models[1], models[2]):
        model(torch.full((1, 2), own)).sum().backward()
    for optimizer in optimizers:
        optimizer.synchronize()
    assert [model.weight.grad.tolist() for model in models] == [[[1.5, 1.5]]] * 3


@pytest.mark.over("local")
@pytest.mark.workers(2)
@pytest.mark.parametrize("params", [[torch.ones(2)], [torch.nn.Parameter(torch.ones(2))], ["w"], [("w", 1, 2)]], ids=str)
def test_parameters_without_names_are_refused(params):
    with pytest.raises(InvalidArgumentError, match=r"without a name; give model\.state_dict\(\)"):
        gl.broadcast_parameters(params)
