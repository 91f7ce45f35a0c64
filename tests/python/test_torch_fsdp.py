"""Models that FSDP2 shards inside a node and Gradlane averages across nodes."""

import contextlib
import tempfile

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
from gradlane.errors import InvalidArgumentError, MismatchError, UnsupportedError
from process_group import NEEDS_SHARDING_ON_CPU
from processes import run_python
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from training import TOLERANCE, adamw, batches, made, mine, mlp, sgd, step, trained_alone

OVER_ALL = pytest.mark.over("local", "shm", "quic")
PAIR = pytest.mark.workers(2)
TWO_NODES = pytest.mark.workers(4, machines="aabb")
"""Two nodes of two workers each."""

NEEDS_HOOK = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_all_reduce_hook"), reason="FSDP2 of this release of PyTorch has no hook between nodes"
)

STEPS = 6


@contextlib.contextmanager
def world(backend, rank, size, folder=None):
    """Inside, `torch.distributed` has this group as its first one; without a folder, of workers that need no store."""
    store = dist.HashStore() if folder is None else dist.FileStore(folder, size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield
    finally:
        gl.barrier("the last use of a group")
        dist.destroy_process_group()


def a_file():
    """The name of a file that all workers know, for the store of a group."""
    return gl.broadcast_object(f"{tempfile.mkdtemp()}/store" if gl.rank() == 0 else None, 0)


@contextlib.contextmanager
def two_nodes():
    """Inside, each of two workers is a node; yields the mesh of the workers of its node."""
    with world("gloo", gl.rank(), 2, a_file()):
        yield init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))["shard"]


def sharded(mesh, seed=7):
    model = made(mlp, seed)
    for layer in (model[1], model[3]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def assert_trains(model, optimizer, tolerance=TOLERANCE):
    """The model becomes what one process makes of the same batches."""
    stepping = optimizer(model.parameters())
    losses = [step(model, stepping, mine(batch)) for batch in batches(STEPS)]
    reference, _ = trained_alone(mlp, optimizer, STEPS)
    assert losses[-1] < losses[0]
    for theirs, ours in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs, rtol=0, atol=tolerance)


@OVER_ALL
@PAIR
@pytest.mark.parametrize("optimizer", [sgd, adamw])
@NEEDS_HOOK
def test_two_nodes_of_one_worker_train_as_one_process(optimizer):
    with two_nodes() as mesh:
        model = sharded(mesh, seed=7 + 5 * gl.rank())
        gl.fsdp.attach(model)
        assert_trains(model, optimizer)


@OVER_ALL
@TWO_NODES
@pytest.mark.parametrize("worlds", ["of all", "of each node"])
@NEEDS_HOOK
def test_two_nodes_of_two_workers_train_as_one_process(worlds):
    node, place, file = gl.rank() // 2, gl.rank() % 2, a_file()
    ranks = (gl.rank(), 4, file) if worlds == "of all" else (place, 2, f"{file}{node}")
    with world("gloo", *ranks):
        if worlds == "of all":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))["shard"]
        else:
            mesh = init_device_mesh("cpu", (2,))
        model = sharded(mesh, seed=7 + 5 * node)
        gl.fsdp.attach(model)
        assert_trains(model, sgd)


@pytest.mark.over("shm", "quic")
@TWO_NODES
@NEEDS_HOOK
def test_a_worker_sends_its_shard_alone():
    with world("gloo", gl.rank() % 2, 2, f"{a_file()}{gl.rank() // 2}"):
        model = sharded(init_device_mesh("cpu", (2,)))
        gl.fsdp.attach(model)
        before = gl.metrics()
        model(torch.ones(4, 1, 8, 8)).sum().backward()
        after = gl.metrics()
        moved = [after[f"{way}_bytes"] - before[f"{way}_bytes"] for way in ("push", "pull")]
        assert moved == [4 * sum(parameter.to_local().numel() for parameter in model.parameters())] * 2
        assert moved[0] == 4 * sum(parameter.numel() for parameter in model.parameters()) // 2


@pytest.mark.over("quic")
@pytest.mark.workers(2, alone=True)
@NEEDS_HOOK
def test_shards_travel_with_a_codec():
    images, labels = next(iter(batches(1)))
    moved = {}
    for codec in (gl.Compression.none, gl.Compression.bf16, gl.Compression.int8):
        with two_nodes() as mesh:
            model = sharded(mesh)
            gl.fsdp.attach(model, compression=codec)
            before = gl.metrics()["push_bytes"]
            nn.functional.cross_entropy(model(images), labels).backward()
            moved[codec.codec] = gl.metrics()["push_bytes"] - before
            gradients = torch.cat([parameter.grad.full_tensor().flatten() for parameter in model.parameters()])
            exact = gradients if codec is gl.Compression.none else exact
            torch.testing.assert_close(gradients, exact, rtol=0, atol=exact.abs().max().item() / 100)
    assert moved["bf16"] == moved["none"] // 2
    assert 0.25 * moved["none"] < moved["int8"] < 0.26 * moved["none"]


@OVER_ALL
@TWO_NODES
@NEEDS_SHARDING_ON_CPU
def test_a_mesh_of_nodes_and_workers_on_the_backend_itself_trains_as_one_process():
    with world("gradlane", gl.rank(), 4):
        model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
        assert_trains(model, sgd)


@OVER_ALL
@PAIR
@NEEDS_HOOK
def test_passes_accumulate_and_buffers_and_weights_are_those_of_the_first_node():
    with two_nodes() as mesh:
        model = made(lambda: nn.Linear(4, 3), seed=gl.rank())
        model.register_buffer("node", torch.tensor(gl.rank()))
        model.frozen = nn.Parameter(torch.full((2,), float(gl.rank())), requires_grad=False)
        gl.fsdp.attach(fully_shard(model, mesh=mesh, ignored_params={model.frozen}))
        assert model.node.item() == 0 and model.frozen.tolist() == [0.0, 0.0]
        reference = made(lambda: nn.Linear(4, 3), seed=0)
        assert torch.equal(model.weight.full_tensor(), reference.weight)
        inputs = torch.arange(24.0).view(6, 4).square() / 100
        for rows in (slice(0, 2), slice(2, 6)):
            model.set_requires_gradient_sync(rows.stop == 6)
            model(inputs[rows] * (1 + gl.rank())).square().sum().backward()
        for node in range(2):
            reference(inputs * (1 + node)).square().sum().div(2).backward()
        torch.testing.assert_close(model.weight.grad.full_tensor(), reference.weight.grad)


@OVER_ALL
@PAIR
@NEEDS_HOOK
def test_what_cannot_be_averaged_is_refused_by_name(monkeypatch):
    with two_nodes() as mesh:
        layer_only = made(mlp)
        fully_shard(layer_only[1], mesh=mesh)
        with torch.device("meta"):
            on_meta = fully_shard(mlp(), mesh=mesh)
        attached = sharded(mesh)
        gl.fsdp.attach(attached)
        over_all = fully_shard(made(mlp), mesh=init_device_mesh("cpu", (2,)))
        for model, complaint in (
            (torch.ones(2), "Tensor is no module"),
            (made(mlp), "no module of Sequential is sharded"),
            (layer_only, "parameter 3.weight is not sharded"),
            (on_meta, "parameter 1.weight is on the device meta"),
            (attached, "the gradient of parameter .* is averaged already"),
            (over_all, "the whole model: each of the 2 workers holds a shard of its own"),
        ):
            with pytest.raises(InvalidArgumentError, match=complaint):
                gl.fsdp.attach(model)
        with pytest.raises(InvalidArgumentError, match="op='sum' is no reduction"):
            gl.fsdp.attach(sharded(mesh), op="sum")
        different = sharded(mesh) if gl.rank() == 0 else fully_shard(made(mlp), mesh=mesh)
        with pytest.raises(MismatchError, match=r"module 1 over a mesh of \[1\]"):
            gl.fsdp.attach(different)

        def refuse(*_):
            raise ValueError("multiple param groups")

        groups = sharded(mesh)
        monkeypatch.setattr(type(groups[1]), "set_all_reduce_hook", refuse)
        with pytest.raises(UnsupportedError, match="module 1 has several groups of parameters"):
            gl.fsdp.attach(groups)


@pytest.mark.over("shm")
@PAIR
@NEEDS_HOOK
def test_nodes_of_different_sizes_are_refused(monkeypatch):
    with two_nodes() as mesh:
        places = [[["", [2], [0]]], [["", [2], [0]]], [["", [2], [1]]]]
        monkeypatch.setattr(gl.fsdp, "gather_by_rank", lambda *_, **__: dict(enumerate(places)))
        model = fully_shard(made(mlp), mesh=mesh)
        complaint = r"2 workers hold the shard \[0\] of the mesh, and 1 the shard \[1\]"
        with pytest.raises(InvalidArgumentError, match=complaint):
            gl.fsdp.attach(model)


@pytest.mark.over("shm")
@PAIR
def test_a_release_without_the_hook_is_refused(monkeypatch):
    monkeypatch.delattr(FSDPModule, "set_all_reduce_hook", raising=False)
    with two_nodes() as mesh, pytest.raises(UnsupportedError, match=r"FSDP2 of PyTorch \d+\..* has no hook"):
        gl.fsdp.attach(sharded(mesh))


def test_attach_before_init_says_so():
    ended = run_python("import gradlane.torch as gl, torch; gl.fsdp.attach(torch.nn.Linear(1, 1))")
    assert ended.code == 1 and "NotInitializedError" in ended.output, ended.output
