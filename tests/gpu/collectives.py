"""What reductions among the ranks of one machine cost, by size, and groups of them; PyTorch's NCCL beside them."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gradlane.torch as gl
import torch
from groups import differences, nccl, nccl_calls, stand_in_counter
from places import IS_CUDA, IS_SHORT, IS_STAND_IN, put, settle
from telling import figure, passed, skipped
from torch import distributed

KIB = 1 << 10
MIB = 1 << 20
GROUPS = {"4 KiB": [4 * KIB], "64 KiB": [64 * KIB], "8 x 64 KiB": [64 * KIB] * 8}
if not IS_SHORT:
    GROUPS = {"4 KiB": [4 * KIB], "4 MiB": [4 * MIB], "8 x 4 MiB": [4 * MIB] * 8}
SIZES = (4 * KIB, 256 * KIB) if IS_SHORT else (4 * KIB, 64 * KIB, MIB, 4 * MIB, 32 * MIB, 256 * MIB)
ROUNDS = 3 if IS_SHORT else 30
GROUPED = gl.Max if IS_STAND_IN else gl.Average
"""An average is divided by a kernel. The stand-in would interpret it, for seconds, on the cores where groups are issued."""

ISSUE_US_MAX = 20.0
"""What the thread that calls NCCL may take for a group beside NCCL's own time."""


def group_issue() -> None:
    """Times groups, and counts what NCCL is asked for."""
    for name, sizes in GROUPS.items():
        tensors = [put(torch.ones(size // 4)) for size in sizes]
        submitting: list[float] = []

        def begin(name: str = name, tensors: list[torch.Tensor] = tensors) -> gl.Handle:
            begun = time.perf_counter()
            handle = gl.grouped_push_pull_async_(tensors, f"group {name}", op=GROUPED)
            submitting.append(time.perf_counter() - begun)
            return handle

        before = nccl_calls()
        begin().synchronize()
        calls = differences(nccl_calls(), before)
        if IS_CUDA or IS_STAND_IN:
            costs = [cost_to_issue(lambda: begin().synchronize()) for _ in range(ROUNDS)]
            issued, ours, busy = ([cost[place] for cost in costs] for place in range(3))
            figure(f"{name}: issuing a group, median", statistics.median(issued), "us")
            figure(f"{name}: issuing a group, least", min(issued), "us")
            figure(f"{name}: processor time of the thread that issues, median", statistics.median(busy), "us")
            if IS_STAND_IN:
                median = statistics.median(ours)
                figure(f"{name}: issuing a group without the time in NCCL, median", median, "us", at_most=ISSUE_US_MAX)
                figure(f"{name}: issuing a group without the time in NCCL, least", min(ours), "us")
        seconds = median_of(lambda: begin().synchronize())
        assert all((tensor == 1.0).all() for tensor in tensors)
        figure(f"{name}: from submission to completion", seconds * 1e6, "us")
        waits = median_of(lambda: begin().wait())
        settle()
        figure(f"{name}: from submission until the stream waits", waits * 1e6, "us")
        figure(f"{name}: the submission alone", statistics.median(submitting[1:]) * 1e6, "us")
        if IS_CUDA:
            show_issue(name, begin)
        passed(f"a group of {name} is right{'' if IS_CUDA else f'; NCCL was asked for {calls}'}")
    group = nccl()
    if group is None:
        return
    for name, sizes in GROUPS.items():
        tensors = [torch.ones(size // 4, device="cuda") for size in sizes]
        seconds = median_of(lambda: reduce_by_pytorch(tensors, group))
        figure(f"{name}: PyTorch's NCCL, to completion", seconds * 1e6, "us")


def cost_to_issue(work: Callable[[], object]) -> tuple[float, float, float]:
    """Microseconds that the thread that calls NCCL took for each group of the work; no wait for a result is in them.

    All of the time; the time without NCCL's own (only the stand-in tells it), which has the start of a thread for each group
    in it, because a communicator does not block; and the time for which the thread that calls NCCL had a core.
    """
    before, called, ran = gl.metrics(), call_nanoseconds(), processor_nanoseconds()
    work()
    groups, issued = (gl.metrics()[name] - before[name] for name in ("nccl_groups", "nccl_issue_nanoseconds"))
    assert groups > 0, "no group was issued"
    ours = issued - (call_nanoseconds() - called)
    return issued / groups / 1e3, ours / groups / 1e3, (processor_nanoseconds() - ran) / groups / 1e3


def processor_nanoseconds() -> int:
    """How long the engine's threads that call NCCL have had a core (`proc_pid_schedstat`)."""
    ran = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread, which has ended meanwhile
            if (task / "comm").read_text() == "gl-nccl\n":
                ran += int((task / "schedstat").read_text().split()[0])
    return ran


def call_nanoseconds() -> int:
    """How long calls of NCCL's stand-in took the threads that issue groups, until these knew that they were done; 0 elsewhere."""
    return stand_in_counter("call_nanoseconds") if IS_STAND_IN else 0


def show_issue(name: str, begin: Callable[[], gl.Handle]) -> None:
    """The time from submission to the start of NCCL's first kernel, as PyTorch's profiler sees both."""
    delays = []
    for _ in range(5):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            begun = time.time_ns()
            begin().wait()
            settle()
        kernels = [event for event in profile.profiler.kineto_results.events() if "nccl" in event.name().lower()]
        delays += [(min(event.start_ns() for event in kernels) - begun) / 1e3] if kernels else []
    if delays:
        figure(f"{name}: from submission to the start of NCCL's kernel", statistics.median(delays), "us")
    else:
        skipped(f"{name}: the start of NCCL's kernel, of which PyTorch's profiler shows nothing")


def reduce_2() -> None:
    """Time and bandwidth by size, as nccl-tests count them."""
    ranks = gl.size()
    for size in SIZES:
        tensor = put(torch.full((size // 4,), gl.rank() + 1.0))
        gl.push_pull_(tensor, f"by size {size}", op=gl.Sum)
        assert (tensor == sum(range(1, ranks + 1))).all()
        tensor.fill_(1.0)
        show(size, "Gradlane", median_of(partial(reduce_by_gradlane, tensor, f"by size {size}")))
        assert (tensor == 1.0).all()
    passed(f"reductions among {ranks} ranks of a machine are exact at every size")
    group = nccl()
    if group is not None:
        for size in SIZES:
            tensor = torch.ones(size // 4, device="cuda")
            show(size, "PyTorch's NCCL", median_of(lambda: reduce_by_pytorch([tensor], group)))


reduce_4 = reduce_2


def show(size: int, by: str, seconds: float) -> None:
    """The columns of nccl-tests."""
    ranks = gl.size()
    name = f"{size // KIB} KiB, {ranks} ranks, {by}"
    figure(f"{name}: time", seconds * 1e6, "us")
    figure(f"{name}: busbw", size / seconds * 2 * (ranks - 1) / ranks / 1e9, "GB/s")


def median_of(work: Callable[[], object]) -> float:
    """Seconds of the work, after two rounds to warm up; all ranks begin together."""
    times = []
    for _ in range(ROUNDS + 2):
        settle()
        gl.barrier("begin")
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[2:])


def reduce_by_gradlane(tensor: torch.Tensor, name: str) -> None:
    """Averages, and waits until the device is done; `wait()` would return when the stream waits."""
    gl.push_pull_async_(tensor, name, op=gl.Average).synchronize()


def reduce_by_pytorch(tensors: list[torch.Tensor], group: distributed.ProcessGroup) -> None:
    """Averages with PyTorch's NCCL, and waits until the device is done, as a handle of Gradlane does."""
    for work in [distributed.all_reduce(tensor, distributed.ReduceOp.AVG, group, async_op=True) for tensor in tensors]:
        work.wait()
    settle()
