"""BytePS scripts, unchanged but for what loads `byteps`."""

import contextlib
import importlib
import inspect
import math
import sys
import time

import gradlane
import gradlane.compat.byteps as _  # noqa: F401  so that `import byteps` works
import pytest
import torch
from conftest import IN_WORKER
from gradlane import _core
from gradlane.compat.byteps._compressors import compressor_of
from gradlane.errors import InvalidArgumentError, UnsupportedError
from processes import SAY, Running, free_port, over, run_all, run_as_it_is, run_python
from torch import nn
from training import TOLERANCE, batches, made, mine, mlp, step, trained_alone

bps = importlib.import_module("byteps.torch")

OVER_ALL = pytest.mark.over("local", "shm", "quic")

SIGNATURES = {
    "init": "(lazy=True)",
    "shutdown": "(timeout=10.0)",
    "suspend": "()",
    "resume": "(num_workers, num_servers, global_rank, context=None)",
    "size": "()",
    "local_size": "()",
    "rank": "()",
    "local_rank": "()",
    "get_pushpull_speed": "()",
    "declare": "(name, **compression)",
    "push_pull": "(tensor, average=True, name=None, version=0, priority=0, compression=none)",
    "push_pull_inplace": "(tensor, average=True, name=None, version=0, priority=0)",
    "push_pull_async": "(tensor, average=True, name=None, version=0, priority=0)",
    "push_pull_async_inplace": "(tensor, average=True, name=None, version=0, priority=0)",
    "push_pull_group_sync_inplace": "(tensor, average=True, name=None, version=0, priority=0)",
    "byteps_torch_set_num_grads": "(num_grads)",
    "poll": "(handle)",
    "synchronize": "(handle)",
    "DistributedOptimizer": "(optimizer, named_parameters=None, compression=none, backward_passes_per_step=1)",
    "broadcast_parameters": "(params, root_rank, prefix='Parameter.')",
    "broadcast_optimizer_state": "(optimizer, root_rank, prefix='Parameter.')",
    "broadcast_object": "(obj, root_rank=0, name=None)",
    "parallel.DistributedDataParallel": "(module, device_ids=None, broadcast_buffers=True, compression=none)",
}
"""Of BytePS 0.2.5; `shutdown` takes a timeout more. CrossBarrier takes more arguments after those of BytePS."""

SCRIPT = """
import sys
import torch
import byteps.torch as bps
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.parallel import DistributedDataParallel

bps.init()
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=bps.Compression.fp16
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((4, 3), 1.0 + bps.rank())).square().sum().backward()
    optimizer.step()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
assert torch.equal(bps.push_pull(weights, average=True, name="weights"), weights), "all have the same"
print(f"{sys.argv[1]} of rank {bps.rank()} of {bps.size()} ended well", flush=True)
bps.shutdown()
"""


def plain(signature: inspect.Signature) -> str:
    """A signature without annotations, in which compressors have their names."""
    parameters = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=Named(parameter.default.codec) if hasattr(parameter.default, "codec") else parameter.default,
        )
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class Named(str):
    def __repr__(self):
        return str(self)


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_and_defaults_are_those_of_byteps(name):
    module, _, function = f"byteps.torch.{name}".rpartition(".")
    assert plain(inspect.signature(getattr(importlib.import_module(module), function))) == SIGNATURES[name]


def test_cross_barrier_takes_the_arguments_of_byteps_first():
    cross_barrier = importlib.import_module("byteps.torch.cross_barrier").CrossBarrier
    expected = "model optimizer named_parameters compression backward_passes_per_step num_steps".split()
    assert list(inspect.signature(cross_barrier).parameters)[:6] == expected


def test_one_module_has_two_names():
    assert bps is sys.modules["gradlane.compat.byteps.torch"]
    assert bps.__spec__.name == "gradlane.compat.byteps.torch"
    assert importlib.import_module("byteps.torch.ops") is importlib.import_module("gradlane.compat.byteps.torch.ops")
    with pytest.raises(ModuleNotFoundError, match="byteps.mxnet"):
        importlib.import_module("byteps.mxnet")


def test_byteps_itself_goes_first_with_a_warning(tmp_path):
    (tmp_path / "byteps").mkdir()
    (tmp_path / "byteps" / "__init__.py").write_text("whose = 'its own'")
    script = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import gradlane.compat.byteps
import byteps
print(byteps.whose, [str(warning.message) for warning in caught])
"""
    ended = run_python(script, env={"PYTHONPATH": str(tmp_path)})
    assert ended.code == 0 and "its own ['byteps is installed" in ended.output, ended.output


@pytest.mark.over("local", "quic")
def test_a_script_runs_as_it_is(tmp_path, transport):
    ended = run_as_it_is("byteps", SCRIPT, tmp_path, "training", env=over(transport))
    assert ended.code == 0, ended.output
    for rank in range(2):
        assert f"training of rank {rank} of 2 ended well" in ended.output


def test_the_command_runs_modules_too_and_says_how_it_is_used(tmp_path):
    (tmp_path / "job.py").write_text("import sys, byteps.torch as bps\nprint(__name__, sys.argv[1:], bps.__name__)")
    command = [sys.executable, "-m", "gradlane.compat.byteps"]
    commands = [([*command, "-m", "job", "1"], {}), (command, {}), ([*command, "--help"], {})]
    module, nothing, usage = run_all(commands, timeout=60, cwd=tmp_path)
    assert module.code == 0 and "__main__ ['1'] gradlane.compat.byteps.torch" in module.output, module.output
    assert nothing.code == 2 and usage.code == 0
    assert nothing.output == usage.output and usage.output.startswith("usage: python -m gradlane.compat.byteps")


@OVER_ALL
@pytest.mark.workers(2)
def test_training_through_the_wrapper_equals_that_of_one_process():
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    wrapper = importlib.import_module("byteps.torch.parallel").DistributedDataParallel
    # A parameter that gets no gradient counts as zeros, as in BytePS.
    inner = nn.ModuleDict({"used": made(mlp, seed=7 + bps.rank()), "left_out": nn.Linear(2, 2)})
    model = wrapper(inner, None, True, bps.Compression.none)
    with torch.no_grad():
        for theirs, ours in zip(made(mlp).parameters(), inner["used"].parameters(), strict=True):
            ours.copy_(theirs)
    inner.forward = inner["used"].forward
    optimizer = sgd(model.parameters())
    losses = [step(model, optimizer, mine(batch)) for batch in batches(6)]
    model.synchronize()
    reference, _ = trained_alone(mlp, sgd, 6)
    assert losses[-1] < losses[0]
    for theirs, ours in zip(reference.parameters(), inner["used"].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


@OVER_ALL
@pytest.mark.workers(2)
def test_every_form_of_push_pull():
    mine = torch.full((3,), 1.0 + bps.rank())
    assert bps.push_pull(mine, name="a").tolist() == [1.5] * 3
    assert bps.push_pull(mine, False, "b", 0, 3, bps.Compression.fp16).tolist() == [3.0] * 3
    assert bps.push_pull_inplace(mine.clone(), False, "c").tolist() == [3.0] * 3
    handle = bps.push_pull_async(mine, name="d")
    assert bps.synchronize(handle).tolist() == [1.5] * 3 and bps.poll(handle)
    assert bps.synchronize(bps.push_pull_async_inplace(mine.clone(), True, "e", 7, -1)).tolist() == [1.5] * 3
    assert mine.tolist() == [1.0 + bps.rank()] * 3
    assert bps.broadcast_object({"rank": bps.rank()}, 1) == {"rank": 1}
    tensors = [torch.full((2,), float(bps.rank())), torch.full((5,), bps.rank())]
    bps.broadcast_parameters(tensors, 1)
    assert [tensor.tolist() for tensor in tensors] == [[1.0] * 2, [1] * 5]


@OVER_ALL
@pytest.mark.workers(2)
def test_tensors_without_names_are_told_apart():
    from gradlane.compat._unnamed import in_flight

    shapes = [(3,), (3,), (2, 2), ()]
    tensors = [torch.full(shape, 1.0 + position) for position, shape in enumerate(shapes)]
    for _ in range(3):
        handles = [bps.push_pull_async(tensor, False) for tensor in tensors]
        assert in_flight == {f"noname.float32.{kind}" for kind in ("3.0", "3.1", "2x2.0", ".0")}
        means = [bps.push_pull(tensor) for tensor in tensors]
        sums = [bps.synchronize(handle) for handle in handles]
        for tensor, mean, total in zip(tensors, means, sums, strict=True):
            assert torch.equal(mean, tensor) and torch.equal(total, 2 * tensor)
        assert not in_flight


@OVER_ALL
@pytest.mark.workers(2)
def test_a_group_of_gradients_is_counted():
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        bps.byteps_torch_set_num_grads(0)
    bps.byteps_torch_set_num_grads(2)
    for _ in range(2):
        begun = [bps.push_pull_group_sync_inplace(torch.ones(2), False, name) for name in ("first", "second")]
        assert [count for _, count in begun] == [1, 2]
        assert [bps.synchronize(handle).tolist() for handle, _ in begun] == [[2.0] * 2] * 2


@pytest.mark.skipif(IN_WORKER, reason="is a job of its own")
def test_a_worker_that_suspends_can_resume():
    bps.init()
    assert bps.push_pull(torch.ones(2), name="a").tolist() == [1.0] * 2
    with pytest.raises(InvalidArgumentError, match=r"suspend\(\) first"):
        bps.resume(1, 0, 0)
    bps.suspend()
    assert not gradlane.is_initialized()
    bps.resume(1, 0, 0, None)
    assert (bps.rank(), bps.size()) == (0, 1)
    assert bps.push_pull(torch.ones(5), name="a").tolist() == [1.0] * 5
    bps.shutdown()


CHANGING_PLACES = SAY + """
import torch
import byteps.torch as bps

bps.init()
for turn in range(2):
    rank, own = bps.rank(), torch.full((1000,), 1.0 + bps.rank())
    [total] = set(bps.push_pull(own, average=False, name="turn").tolist())
    say(f"turn {turn}: rank {rank} of {bps.size()}, {bps.local_rank()} of {bps.local_size()} here, got {total:.0f}")
    bps.suspend()
    bps.resume(2, 1, 1 - rank)
bps.shutdown()
"""


@OVER_ALL
def test_two_workers_suspend_and_resume_with_each_others_ranks(tmp_path, transport):
    env = over(transport) | {"OMP_NUM_THREADS": "1"}
    ended = run_as_it_is("byteps", CHANGING_PLACES, tmp_path, env=env, timeout=60.0)
    assert ended.code == 0, ended.output
    for turn in range(2):
        for rank in range(2):
            place = f"{rank ^ turn} of 2 here"  # its local rank is that of its device, and stays
            assert f"turn {turn}: rank {rank} of 2, {place}, got 3\n" in ended.output, ended.output


RESIZED = SAY + """
import sys, time
from pathlib import Path
import torch
import byteps.torch as bps

def total(what):
    own = torch.full((1000,), 1.0 + bps.rank())
    [value] = set(bps.push_pull(own, average=False, name="grown").tolist())
    say(f"{what}: rank {bps.rank()} of {bps.size()} got {value:.0f}")

bps.init()
rank = bps.rank()
if rank < 2:
    total("before")
    bps.suspend()
    say("suspended")
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
    # Those that stay change places.
    bps.resume(3, 1, 1 - rank)
total("after")
bps.shutdown()
"""


@pytest.mark.over("shm", "quic")
def test_workers_suspend_and_resume_in_a_larger_job_at_the_same_address(tmp_path, transport):
    restarted = tmp_path / "restarted"
    common = over(transport) | {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_SERVER": "1",
        "GRADLANE_STATE_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    gradlane = [sys.executable, "-m", "gradlane"]
    (tmp_path / "train.py").write_text(RESIZED)
    train = [sys.executable, "-m", "gradlane.compat.byteps", str(tmp_path / "train.py"), str(restarted)]

    def start(stack, command, role, workers, **own):
        env = common | {"DMLC_ROLE": role, "DMLC_NUM_WORKER": str(workers)} | own
        return stack.enter_context(Running(command, env=env))

    with contextlib.ExitStack() as stack:
        first = [start(stack, [*gradlane, role], role, 2) for role in ("scheduler", "server")]
        workers = [start(stack, train, "worker", 2, DMLC_WORKER_ID=str(rank)) for rank in range(2)]
        for rank, worker in enumerate(workers):
            worker.line(f"before: rank {rank} of 2 got 3")
            worker.line("suspended")
        assert [process.end(30.0).code for process in first] == [0, 0], [process.output for process in first]
        second = [start(stack, [*gradlane, role], role, 3) for role in ("scheduler", "server")]
        workers.append(start(stack, train, "worker", 3, DMLC_WORKER_ID="2"))
        restarted.touch()
        for rank, worker in zip((1, 0, 2), workers, strict=True):
            worker.line(f"after: rank {rank} of 3 got 6")
        assert [process.end(30.0).code for process in (*workers, *second)] == [0] * 5


@pytest.mark.parametrize(
    ("keywords", "codec"),
    [
        ({"type": "onebit", "onebit_scaling": "true"}, "onebit:scaling=1"),
        ({"type": "onebit"}, "onebit:scaling=0"),
        ({"type": "topk", "k": "0.01"}, "topk:k=10000"),
        ({"type": "topk", "k": 200}, "topk:count=200"),
        ({"type": "randomk", "k": 0.25, "seed": 7}, "randomk:k=250000"),
        ({"type": "dithering", "k": 8}, "dithering:s=8,natural=0,norm=0"),
        ({"type": "dithering", "k": 4, "partition": "natural", "normalize": 1}, "dithering:s=4,natural=1,norm=1"),
        ({"type": "topk", "k": 0.1, "ef_type": "vanilla"}, "topk:k=100000,feedback=1"),
        (
            {"type": "onebit", "ef_type": "vanilla", "momentum_type": "nesterov", "momentum_mu": "0.9"},
            "onebit:scaling=0,feedback=1,nesterov=900000",
        ),
    ],
)
def test_keywords_of_byteps_are_compressors_of_ours(keywords, codec):
    prefixes = dict.fromkeys(("type", "k", "onebit_scaling"), "byteps_compressor_")
    prefixes |= dict.fromkeys(("partition", "normalize"), "byteps_dithering_")
    given = {f"{prefixes.get(keyword, 'byteps_')}{keyword}": value for keyword, value in keywords.items()}
    found = compressor_of("w", given)
    assert found.codec == codec
    assert _core.codec_of(found.codec, "w", "float32", (64, 64)) != "none", "the engine reads it"


@pytest.mark.parametrize(
    ("keywords", "error", "complaint"),
    [
        ({"compressor": "onebit"}, InvalidArgumentError, "'compressor', which is no setting of a compressor; there are"),
        ({"byteps_ef_type": "vanilla"}, InvalidArgumentError, "there is none; give byteps_compressor_type"),
        ({"byteps_compressor_type": "zip"}, UnsupportedError, "no compressor 'zip'; there are onebit"),
        ({"byteps_compressor_type": "topk"}, InvalidArgumentError, "needs byteps_compressor_k"),
        ({"byteps_compressor_type": "topk", "byteps_compressor_k": "0"}, InvalidArgumentError, "a number above 0"),
        ({"byteps_compressor_type": "topk", "byteps_compressor_k": "many"}, InvalidArgumentError, "a number above 0"),
        ({"byteps_compressor_type": "randomk", "byteps_compressor_k": "5"}, UnsupportedError, "a share below 1"),
        ({"byteps_compressor_type": "onebit", "byteps_ef_type": "sparse"}, UnsupportedError, "there are vanilla and"),
        ({"byteps_compressor_type": "onebit", "byteps_momentum_type": "nesterov"}, UnsupportedError, "without error"),
    ],
)
def test_a_declaration_says_what_is_wrong_with_its_compressor(keywords, error, complaint):
    with pytest.raises(error, match=complaint):
        bps.declare("w", **keywords)


def test_the_speed_is_told_every_ten_seconds(monkeypatch):
    common = importlib.import_module("byteps.common")
    now, metrics = [100.0], {"push_bytes": 0, "local_bytes": 0}
    monkeypatch.setattr(common.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(common.time, "time_ns", lambda: 5_000_000_000)
    monkeypatch.setattr(common.gradlane, "metrics", lambda: metrics)
    speed = common._Speed()
    now[0], metrics["push_bytes"] = 109.0, 30_000_000
    assert speed.ask() == (0, -5.0)
    now[0] = 110.0
    assert speed.ask() == (5000, 3.0)
    assert speed.ask() == (0, -5.0)
    now[0], metrics["local_bytes"] = 130.0, 70_000_000
    assert speed.ask() == (5000, 2.0)


@OVER_ALL
@pytest.mark.workers(2)
def test_the_speed_is_that_of_the_bytes_that_were_reduced(monkeypatch):
    common = importlib.import_module("byteps.common")
    monkeypatch.setattr(common, "_BUCKET_SECONDS", 0.0)
    tensor = torch.ones(250_000)
    outer = time.monotonic()
    bps.get_pushpull_speed()  # the next answer is about what comes after
    inner = time.monotonic()
    for _ in range(4):
        bps.push_pull_inplace(tensor, average=False, name="timed")
    shortest, now = time.monotonic() - inner, time.time() * 1000
    at, speed = bps.get_pushpull_speed()
    longest = time.monotonic() - outer
    assert math.isfinite(speed) and abs(at - now) < 60_000
    assert 4.0 / longest <= speed <= 4.0 / shortest, "4 times 10^6 bytes"
