"""Results for which a stream waits instead of a thread: two workers of one machine, each on its device.

A gate in the current stream stands for a gradient that is still being computed: the engine puts its work behind it, and
nothing lands before the test opens the gate. Driver and NCCL are stand-ins; see `ondevice`.
"""

import asyncio
import contextlib
import ctypes
import os
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
import ondevice  # noqa: E402
from conftest import IN_WORKER, record_as_passed  # noqa: E402
from fakecuda import (  # noqa: E402
    LIBRARY,
    NCCL_LIBRARY,
    Graph,
    call,
    calls,
    carry,
    closed_gate,
    consume,
    counter,
    in_context,
    let_engine_give_back,
    produce,
    user_stream,
)
from gradlane.errors import FailedPreconditionError  # noqa: E402
from gradlane.torch._futures import Completions, future_on  # noqa: E402
from ondevice import bring, bring_module  # noqa: E402
from training import batches, by_cross_barrier, by_optimizer, by_wrapper, made, mine, mlp, sgd, step  # noqa: E402

SETTINGS = {"cuda_lib": LIBRARY, "nccl_lib": NCCL_LIBRARY}
pytestmark = [
    pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "2"}),
    pytest.mark.over("local"),
]

COUNT = 1000
SOON = 20.0
"""Seconds within which everything is put on a device."""


@pytest.fixture
def cuda(monkeypatch):
    if not IN_WORKER:
        yield
        return
    with ondevice.cuda_as_far_as_gradlane_sees(monkeypatch) as seen:
        # What the engine loads and pins at its first sum waits for all work of a device: not behind a gate.
        gl.push_pull(bring(torch.ones(COUNT), gl.rank()), "warm up")
        gl.synchronize()
        yield seen


def gradient():
    return bring(torch.full((COUNT,), float(gl.rank() + 1)), gl.rank())


def gate(cuda):
    gl.synchronize()  # gives the memory of earlier tests back, which would wait for the gate
    return closed_gate(cuda.stream[gl.rank()], gl.rank())


def seen_elsewhere(tensor):
    """What a stream sees of the tensor's first element that waits for nothing."""
    device = gl.rank()
    return memoryview(consume(user_stream(device), tensor.data_ptr(), 4, device)).cast("f")[0]


def test_a_wait_returns_before_the_result_and_what_the_stream_does_next_sees_it(cuda):
    tensor = gradient()
    before = gl.metrics()
    with gate(cuda) as opened:
        handle = gl.push_pull_async_(tensor, "early", op=gl.Sum)
        assert handle.wait(SOON) is tensor
        assert handle.ready() and not handle.poll()
        assert seen_elsewhere(tensor) == gl.rank() + 1, "nothing has landed"
        opened.set()
        assert (tensor == 3).all()
    assert handle.synchronize() is tensor and handle.poll()
    after = gl.metrics()
    assert after["stream_waits"] == before["stream_waits"] + 1


@pytest.mark.parametrize("form", ["push_pull", "push_pull_", "grouped_push_pull", "grouped_push_pull_", "broadcast_"])
def test_every_synchronous_form_returns_before_the_result(form, cuda):
    tensor = gradient()
    with gate(cuda) as opened:
        match form:
            case "push_pull_":
                gl.push_pull_(tensor, form, op=gl.Sum, timeout=SOON)
            case "grouped_push_pull_":
                gl.grouped_push_pull_([tensor], form, op=gl.Sum, timeout=SOON)
            case "broadcast_":
                gl.broadcast_(tensor, 1, form, timeout=SOON)
            case _:
                # They begin with a copy, which PyTorch makes at once here, so behind no gate.
                opened.set()
                result = gl.push_pull(tensor, form, op=gl.Sum) if form == "push_pull" else None
                tensor = result if form == "push_pull" else gl.grouped_push_pull([tensor], form, op=gl.Sum)[0]
        if not opened.is_set():
            assert seen_elsewhere(tensor) == gl.rank() + 1, "nothing has landed"
        opened.set()
        assert (tensor == (2 if form == "broadcast_" else 3)).all()


def test_a_tensor_is_submitted_again_before_its_first_sum_has_landed(cuda):
    tensor = gradient()
    with gate(cuda) as opened:
        first = gl.push_pull_async_(tensor, "again", op=gl.Sum)
        with pytest.raises(gl.Error, match="in use for tensor again"):
            gl.push_pull_async_(tensor, "again too", op=gl.Sum)
        first.wait(SOON)
        second = gl.push_pull_async_(tensor, "again too", op=gl.Sum)
        second.wait(SOON)
        assert not first.poll()
        opened.set()
        assert (tensor == 6).all()


def test_memory_that_is_let_go_after_a_wait_is_kept_until_the_sum_has_landed(cuda):
    device, before = gl.rank(), counter("released_in_use", gl.rank())
    tensor = gradient()
    address, live = tensor.data_ptr(), counter("live_allocations", device)
    with gate(cuda) as opened:
        gl.push_pull_async_(tensor, "let go", op=gl.Sum).wait(SOON)
        del tensor
        assert counter("live_allocations", device) == live
        opened.set()
        assert memoryview(consume(cuda.stream[device], address, 4, device)).cast("f")[0] == 3
    gl.synchronize()
    gl.push_pull(gradient(), "next")  # the engine gives memory back in its next call
    assert counter("released_in_use", device) == before


def test_a_stream_that_never_was_is_named_and_one_may_go_after_the_wait(cuda):
    device, tensor = gl.rank(), gradient()
    with gate(cuda) as opened:
        handle = gl.push_pull_async_(tensor, "destroyed", op=gl.Sum)
        # Not one that is gone: the driver may crash then, and so does the stand-in.
        kept, cuda.stream[device] = cuda.stream[device], 0xDEAD000
        with pytest.raises(gl.Error, match="does not exist on cuda"):
            handle.wait(SOON)
        cuda.stream[device] = user_stream(device)
        handle.wait(SOON)
        in_context(device, "cuStreamDestroy_v2", ctypes.c_size_t(cuda.stream[device]))
        cuda.stream[device] = kept
        opened.set()
        handle.synchronize(SOON)
        assert (tensor == 3).all()


class Bucket(SimpleNamespace):
    """What DDP gives its hook."""

    def __init__(self, gradient, parameter):
        super().__init__(buffer=lambda: gradient, parameters=lambda: [parameter], is_last=lambda: True)


def test_a_stream_under_capture_cannot_wait_and_its_capture_survives(cuda):
    device, tensor, weight = gl.rank(), gradient(), torch.nn.Parameter(torch.ones(COUNT))
    group = gl.ProcessGroupGradlane(gl.rank(), range(gl.size()))
    kept, graph = bring(torch.zeros(COUNT), device), Graph(device)
    places = [bring(torch.zeros(COUNT), device) for _ in range(gl.size())]
    with gate(cuda) as opened:
        handle = gl.push_pull_async_(tensor, "captured", op=gl.Sum)
        with under_capture(cuda, graph):
            for door in (
                lambda: handle.wait(SOON),
                lambda: gl.push_pull_(tensor, "inside"),
                lambda: gl.grouped_push_pull_([tensor], "inside"),
                lambda: gl.broadcast_(tensor, 0, "inside"),
                lambda: gl.ddp_comm_hook(gl.State(names={weight: "w"}), Bucket(tensor, weight)),
                lambda: group.allreduce([tensor]),
                lambda: group.allgather([places], [tensor]),
                lambda: group.broadcast([tensor], SimpleNamespace(rootRank=0)),
            ):
                with refused():
                    door()
            carry(cuda.stream[device], kept.data_ptr(), tensor.data_ptr(), tensor.nbytes, device)
        handle.wait(SOON)
        graph.launch(cuda.stream[device])
        opened.set()
        assert (tensor == 3).all() and (kept == 3).all()


def refused():
    return pytest.raises(FailedPreconditionError, match="captured into a CUDA graph")


@contextlib.contextmanager
def under_capture(cuda, graph):
    """Inside, the current stream is one that `graph` captures."""
    device = gl.rank()
    usual, captured = cuda.stream[device], user_stream(device)
    with graph.capturing(captured):
        cuda.stream[device] = captured
        try:
            yield
        finally:
            cuda.stream[device] = usual


@pytest.mark.parametrize("way_in", [by_wrapper, by_optimizer, by_cross_barrier])
def test_a_training_step_under_capture_is_refused_and_its_capture_survives(way_in, cuda):
    device, graph = gl.rank(), Graph(gl.rank())
    tensor, kept = gradient(), bring(torch.zeros(COUNT), device)
    trained, stepping = way_in(bring_module(made(mlp), device), sgd)
    for batch in batches(2):
        step(trained, stepping, mine(batch))
    with under_capture(cuda, graph):
        with refused():
            step(trained, stepping, mine(batch))
        carry(cuda.stream[device], kept.data_ptr(), tensor.data_ptr(), tensor.nbytes, device)
    if way_in is by_cross_barrier:
        stepping.remove()
    gl.push_pull_(tensor, "after a refused step", op=gl.Sum)
    graph.launch(cuda.stream[device])
    assert (tensor == 3).all() and (kept == 3).all()


def test_graphs_are_replayed_before_behind_and_beside_sums(cuda):
    device = gl.rank()
    stream, side = cuda.stream[device], user_stream(device)
    batch, weights, elsewhere = (bring(torch.zeros(COUNT), device) for _ in range(3))
    tensor = gradient()
    gl.push_pull_(tensor, "replayed", op=gl.Sum)
    backward, optimize, beside = Graph(device), Graph(device), Graph(device)
    for graph, to, origin in (
        (backward, tensor, batch),
        (optimize, weights, tensor),
        (beside, elsewhere, batch),
    ):
        with graph.capturing(stream):
            carry(stream, to.data_ptr(), origin.data_ptr(), tensor.nbytes, device)
    for turn in (1.0, 10.0):
        with gate(cuda) as opened:
            value = torch.full((COUNT,), turn * (device + 1))
            produce(stream, batch.data_ptr(), value.numpy().tobytes(), device)
            backward.launch(stream)
            handle = gl.push_pull_async_(tensor, "replayed", op=gl.Sum)
            handle.wait(SOON)
            optimize.launch(stream)
            assert not handle.poll(), "a wait returns before the result, also behind a graph"
            before = memoryview(consume(side, batch.data_ptr(), 4, device)).cast("f")[0]
            beside.launch(side)
            assert memoryview(consume(side, elsewhere.data_ptr(), 4, device)).cast("f")[0] == before
            opened.set()
            assert (weights == 3 * turn).all(), "the graph behind the sum"
            assert (tensor == 3 * turn).all(), "the sum of what the graph before it made"
        handle.synchronize(SOON)
        beside.launch(stream)
        assert (elsewhere == value).all(), "between sums"


def test_a_future_and_asyncio_wait_as_a_handle_does(cuda):
    completions = Completions.of_this_job()
    tensor, other = gradient(), gradient()
    with gate(cuda) as opened:
        handle = gl.push_pull_async_(tensor, "future", op=gl.Sum)
        completions.of(handle, torch.device("cpu")).wait()
        assert not handle.poll(), "the future is there, and the result is not"
        opened.set()
        assert (tensor == 3).all()

    async def awaited():
        return await gl.push_pull_async_(other, "awaited", op=gl.Sum)

    assert (asyncio.run(awaited()) == 3).all()


def test_the_hook_returns_before_the_result(cuda):
    tensor, weight = gradient(), torch.nn.Parameter(torch.ones(COUNT))
    state, before = gl.State(names={weight: "hooked"}), gl.metrics()
    with gate(cuda) as opened:
        average = gl.ddp_comm_hook(state, Bucket(tensor, weight)).wait()
        assert average.data_ptr() == tensor.data_ptr()
        assert seen_elsewhere(tensor) == gl.rank() + 1, "nothing has landed"
        opened.set()
        assert (tensor == 1.5).all()
    after = gl.metrics()
    assert [after[kind] - before[kind] for kind in ("stream_waits", "host_waits")] == [1, 0]


def test_a_future_of_a_tensor_on_a_device_names_the_device(monkeypatch):
    made_with = []
    monkeypatch.setattr(torch.futures, "Future", lambda *, devices: made_with.append(devices))
    for device in ("cuda:1", "cpu"):
        future_on(torch.device(device))
    assert made_with == [[torch.device("cuda:1")], None]


def test_another_stream_that_waits_later_waits_for_the_one_that_finished_the_result(cuda):
    device = gl.rank()
    strided = bring(torch.full((2, 3), float(device + 1)), device).t()
    handle = gl.push_pull_async_(strided, "strided", op=gl.Sum)
    handle.wait(SOON)
    before = calls("cuStreamWaitEvent")
    handle.wait(SOON)
    assert calls("cuStreamWaitEvent") == before, "the same stream"
    cuda.stream[device] = user_stream(device)
    handle.wait(SOON)
    assert calls("cuStreamWaitEvent") == before + 1
    assert (strided == 3).all()


@pytest.mark.parametrize("way_in", [by_wrapper, by_optimizer, by_cross_barrier])
def test_a_training_step_makes_no_thread_wait_for_a_device(way_in, cuda):
    waits = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize")
    model = bring_module(made(mlp), gl.rank())
    trained, stepping = way_in(model, sgd)
    for batch in batches(2):
        step(trained, stepping, mine(batch))
    before, counts = [calls(name) for name in waits], gl.metrics()
    for batch in batches(4):
        step(trained, stepping, mine(batch))
    if way_in is by_cross_barrier:
        stepping.synchronize()
    after = gl.metrics()
    assert [calls(name) for name in waits] == before
    # What has ended by then needs no wait of either kind. The host waits for the exchange of which parameters were used.
    assert after["host_waits"] - counts["host_waits"] <= 2 * 4
    if way_in is by_cross_barrier:
        stepping.remove()


A_BLOCKED_ABORT = {"FAKECUDA_DEVICES": "2", "FAKENCCL_ABORT_US": str(3600 * 10**6)}


@pytest.mark.workers(2, settings=SETTINGS | {"dead_timeout": "30s"}, env=A_BLOCKED_ABORT, alone=True)
def test_memory_of_a_sum_that_failed_after_the_wait_is_kept_while_nccl_may_write_it(cuda, request):
    tensor = gradient()
    with gate(cuda) if gl.rank() == 1 else contextlib.nullcontext():
        handle = gl.push_pull_async_(tensor, "in doubt", op=gl.Sum)
        handle.wait(SOON)
        gl.barrier("both devices are on it")
        if gl.rank() == 1:
            record_as_passed(request.node.nodeid)
            os._exit(0)  # as if killed, but the launcher does not end the first one for it
    with pytest.raises(gl.PeerLostError):
        handle.synchronize(SOON)
    live = counter("live_allocations")
    del tensor, handle
    let_engine_give_back(lambda: counter("live_allocations") < live, seconds=1.0)
    assert counter("live_allocations") == live
    gl.shutdown(0.0)


FAULT, RESET = 719, 709  # CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_CONTEXT_IS_DESTROYED


# Each of the following ends its job, so each has a job of its own.
@pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "3"})
def test_a_device_that_fails_after_the_wait_is_told_by_the_handle_and_by_the_next_call(cuda):
    told_by_the_handle_and_by_the_next_call(cuda, FAULT)


@pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "4"})
def test_a_device_that_is_reset_after_the_wait_is_told_by_the_handle_and_by_the_next_call(cuda):
    told_by_the_handle_and_by_the_next_call(cuda, RESET)


def told_by_the_handle_and_by_the_next_call(cuda, code):
    handle = failed_after_its_wait(cuda, code)
    with pytest.raises(gl.Error) as raised:
        handle.synchronize(SOON)
    assert "doomed" in str(raised.value) or "its devices failed" in str(raised.value), "its own fault, or the other's"
    with pytest.raises(gl.Error):
        gl.push_pull_(torch.zeros(3), "next")


@pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "5"})
def test_a_device_that_fails_after_the_wait_is_told_by_gl_synchronize(cuda):
    failed_after_its_wait(cuda, FAULT)
    with pytest.raises(gl.Error, match="doomed|its devices failed"):
        gl.synchronize()


@pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "6"})
def test_a_device_that_fails_after_the_wait_is_told_by_shutdown(cuda):
    failed_after_its_wait(cuda, FAULT)
    with pytest.raises(gl.Error, match="doomed|its devices failed"):
        gl.shutdown()


def failed_after_its_wait(cuda, code):
    """The handle of a sum for which the current stream waits, and which then fails on the device."""
    device, tensor = gl.rank(), gradient()
    with gate(cuda) as opened:
        handle = gl.push_pull_async_(tensor, "doomed", op=gl.Sum)
        handle.wait(SOON)
        # A worker that hears of the other's fault can no longer wait.
        gl.barrier("both streams wait", timeout=SOON)
        call("fakecuda_fail_device", device, code)
        opened.set()
    return handle
