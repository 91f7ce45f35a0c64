"""The checks of `check.py`: each runs in every worker of a job, or in one process without a job."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gradlane.torch as gl
import torch
from gradlane import _core
from gradlane.errors import FailedPreconditionError

DEVICE = os.environ.get("GPU_CHECK_DEVICE", "cuda")
IS_CUDA = DEVICE == "cuda"
MIB = 1 << 20

THROUGH_SERVERS = {"GRADLANE_LOCAL_REDUCE": "off"}
"""The workers share a machine and would reduce among themselves."""

ONE_GPU_FOR_ALL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_MAX_CTAS": "2",
}
"""With a host identity for each rank, NCCL takes ranks on one GPU for ranks of several machines."""


@dataclass(frozen=True)
class Check:
    """One check, and the job that it runs in."""

    about: str
    body: Callable[[], None]
    workers: int = 0
    """0 for a process without a job."""
    servers: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    under: tuple[str, ...] = ()
    """A command that the check is started by."""
    is_for_host: bool = True
    """Whether it means anything for tensors in host memory."""


def passed(what: str) -> None:
    if not gl.is_initialized() or gl.rank() == 0:
        print(f"PASS {what}", flush=True)


def figure(what: str) -> None:
    if not gl.is_initialized() or gl.rank() == 0:
        print(f"FIGURE {what}", flush=True)


def held(what: str, value: float, limit: float, unit: str, *, at_least: bool = False) -> None:
    """Tells a figure and whether it is what is aimed at, of a device."""
    if not IS_CUDA:
        return figure(f"{what}: {value:.3g} {unit}")
    is_met = value >= limit if at_least else value <= limit
    if gl.is_initialized() and gl.rank() != 0:
        return
    word = "at least" if at_least else "at most"
    print(f"{'PASS' if is_met else 'FAIL'} {what}: {value:.3g} {unit}, aim {word} {limit:g} {unit}", flush=True)
    return None


def device() -> torch.device:
    """Where this worker's tensors are: on a GPU of its own if there are enough."""
    if not IS_CUDA:
        return torch.device("cpu")
    number = gl.rank() % torch.cuda.device_count() if gl.is_initialized() else 0
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def settle() -> None:
    if IS_CUDA:
        torch.cuda.synchronize()


def probe() -> None:
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        figure(f"cuda:{number} is {facts.name}, {facts.total_memory >> 30} GiB, sm_{facts.major}{facts.minor}")
    doctor = subprocess.run([sys.executable, "-m", "gradlane", "doctor"], capture_output=True, text=True, timeout=60)
    found = [line.strip() for line in doctor.stdout.splitlines() if "cuda" in line.lower() or "nccl" in line.lower()]
    for line in found:
        figure(f"doctor: {line}")
    name = torch.cuda.get_device_properties(0).name
    assert any(name in line for line in found), f"doctor does not name {name}:\n{doctor.stdout}{doctor.stderr}"
    passed("the driver was found, and doctor names the device as PyTorch does")


def copies() -> None:
    size, here = 256 * MIB, device()
    there = torch.empty(size, dtype=torch.uint8, device=here)
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    limits = {"out": rate_of(lambda: pinned.copy_(there, non_blocking=True), size)}
    limits["in"] = rate_of(lambda: there.copy_(pinned, non_blocking=True), size)
    for way, limit in limits.items():
        figure(f"the machine copies 256 MiB {way} at {limit:.1f} GB/s")
    shares = {}
    for chunk in (256 << 10, MIB, 4 * MIB, 16 * MIB):
        texts = []
        for way in ("out", "in", "both"):
            seconds = min(
                _core.copy_seconds({}, here.index, there.data_ptr(), size, chunk, 4, way) for _ in range(3)
            )
            one_way = size / (2 if way == "both" else 1) / seconds / 1e9
            limit = limits[way] if way != "both" else min(limits.values())
            shares[chunk, way] = one_way / limit
            texts.append(f"{way} {one_way:.1f} GB/s ({one_way / limit:.2f})")
        figure(f"chunks of {chunk >> 10} KiB: {', '.join(texts)}")
    held("4 MiB chunks from the device, of the machine's rate", shares[4 * MIB, "out"], 0.92, "", at_least=True)
    held("4 MiB chunks to the device, of the machine's rate", shares[4 * MIB, "in"], 0.92, "", at_least=True)
    held("4 MiB chunks, each of both ways at once", shares[4 * MIB, "both"], 0.85, "", at_least=True)
    held("1 MiB chunks from the device, of the machine's rate", shares[MIB, "out"], 0.85, "", at_least=True)


def rate_of(copy: Callable[[], object], size: int) -> float:
    """GB/s of the best of five."""
    times = []
    for _ in range(6):
        settle()
        start = time.perf_counter()
        copy()
        settle()
        times.append(time.perf_counter() - start)
    return size / min(times[1:]) / 1e9


def sums() -> None:
    gl.init()
    here, total = device(), sum(range(1, gl.size() + 1))
    streams = [torch.cuda.Stream(here) for _ in range(2)] if IS_CUDA else []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        for count in (1, 1000, 1 << 20, (1 << 22) + 3):
            pattern = (torch.arange(count, device=here) % 40).to(dtype)
            tensor = torch.full((count,), -7, device=here).to(dtype)
            settle()
            for _ in range(2):
                with torch.cuda.stream(streams[0]) if streams else torch.no_grad():
                    if streams:
                        torch.cuda._sleep(100_000_000)  # some 50 ms in which the values are not there yet
                    torch.mul(pattern, gl.rank() + 1, out=tensor)
                    gl.push_pull_(tensor, f"{dtype} {count}", op=gl.Sum)
                # In a stream that waited for nothing.
                with torch.cuda.stream(streams[1]) if streams else torch.no_grad():
                    wrong = int((tensor != pattern * total).sum())
                assert wrong == 0, f"{wrong} of {count} sums of {dtype} are wrong"
    passed(
        "sums through a server are exact in f32, bf16, f16 and i32: after a slow kernel, seen by a stream that waited for "
        "nothing"
    )
    average = gl.push_pull(torch.full((5,), float(gl.rank()), device=here), "average")
    assert average.device == here and (average == (gl.size() - 1) / 2).all()
    group = [torch.full((10,), float(gl.rank()), device=where) for where in (here, "cpu") for _ in range(50)]
    gl.grouped_push_pull_(group, "mixed group", op=gl.Sum)
    assert all((tensor == total - gl.size()).all() for tensor in group)
    passed("a group on the device and the CPU is reduced in one call")
    gl.shutdown()


def timings() -> None:
    gl.init()
    here = device()
    tensors = [torch.ones(MIB // 4, device=here) for _ in range(64)]
    forms: dict[str, Callable[[], list[gl.Handle]]] = {
        "each": lambda: [gl.push_pull_async_(tensor, f"enqueued.{i}") for i, tensor in enumerate(tensors)],
        "group": lambda: [gl.grouped_push_pull_async_(tensors, "enqueued")],
    }
    enqueued: dict[str, list[float]] = {form: [] for form in forms}
    for form, begin in forms.items():
        for _ in range(12):
            settle()
            start = time.perf_counter()
            handles = begin()
            enqueued[form].append((time.perf_counter() - start) / len(tensors) * 1e6)
            for handle in handles:
                handle.wait()
    # The first ones declare the tensors.
    each, group = (statistics.median(enqueued[form][2:]) for form in forms)
    held("enqueueing a tensor of 1 MiB", each, 15.0, "us")
    figure(f"enqueueing a tensor of 1 MiB in a group of 64: {group:.1f} us")
    for size in (4096, MIB, 4 * MIB, 64 * MIB):
        tensor, took = torch.ones(size // 4, device=here), []
        for _ in range(20):
            settle()
            start = time.perf_counter()
            gl.push_pull_(tensor, f"complete {size}")
            took.append(time.perf_counter() - start)
        milliseconds = statistics.median(took) * 1e3
        figure(f"one tensor of {size >> 10} KiB there and back through a server on this machine: {milliseconds:.3f} ms")
    passed("timings were taken")
    gl.shutdown()


def capture() -> None:
    gl.init()
    here = device()
    large, small = torch.ones(16 * MIB, device=here), torch.ones(64, device=here)
    gl.push_pull_(large, "before")  # pins memory and starts threads
    square = torch.rand(64, 64, device=here)
    side = torch.cuda.Stream(here)
    with torch.cuda.stream(side):
        product = square @ square
    settle()
    handle = gl.push_pull_async_(large, "under way")
    graph = torch.cuda.CUDAGraph()
    refused = None
    with torch.cuda.graph(graph, stream=side):
        product = square @ square
        try:
            gl.push_pull_async_(small, "captured")
        except FailedPreconditionError as error:
            refused = error
    assert refused is not None and "graph" in str(refused), refused
    passed(f"a push_pull in a stream under capture is refused: {refused}")
    handle.wait()
    product.zero_()
    graph.replay()
    settle()
    assert torch.equal(product, square @ square) and (large == 1).all()
    passed("a capture in PyTorch's mode survives copies of the engine, and these survive it")
    gl.shutdown()


def ranks_on_one_gpu() -> None:
    os.environ["NCCL_HOSTID"] = f"h{os.environ['GRADLANE_RANK']}"
    gl.init()
    _reduce_between_two()
    here = device()
    below_zero = torch.full((1000,), -gl.rank(), dtype=torch.int32, device=here)
    gl.push_pull_(below_zero, "below zero", op=gl.Average)
    assert torch.equal(below_zero, torch.full_like(below_zero, -1)), "rounded down, as in host memory"
    many = [torch.full((1 << 18,), gl.rank() + 1.0, device=here) for _ in range(40)]
    gl.grouped_push_pull_(many, "many", op=gl.Sum)
    assert all(torch.equal(one, torch.full_like(one, 3.0)) for one in many), "in groups"
    passed("the ranks of one machine reduce by NCCL, with exact sums and means of integers, and no server")
    gl.shutdown()


def pcie_groups() -> None:
    gl.init()
    _reduce_between_two()
    metrics = gl.metrics()
    assert not IS_CUDA or metrics["d2h_bytes"] == metrics["h2d_bytes"] > 0, "the host added nothing"
    passed("two groups of one device each add on the host, with exact sums and no server")
    gl.shutdown()


def _reduce_between_two() -> None:
    here = device()
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for count in (1, 1000, 1 << 20):
            pattern = (torch.arange(count, device=here) % 40).to(dtype)
            tensor = pattern * (gl.rank() + 1)
            gl.push_pull_(tensor, f"{dtype} {count}", op=gl.Sum)
            assert torch.equal(tensor, pattern * 3), f"{dtype} {count}"
    assert not IS_CUDA or gl.metrics()["pushes"] == 0, "a server was asked"


def overlap() -> None:
    gl.init()
    here = device()
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(12)]).to(here)
    inputs = torch.randn(2048 if IS_CUDA else 16, 2048, device=here)
    wrapped = gl.DistributedDataParallel(model)
    finished: list[object] = []
    first = model[0].weight

    def computed(_: torch.Tensor) -> None:
        if IS_CUDA:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            finished.append(event)
        else:
            finished.append(time.time_ns())

    first.register_hook(computed)
    for _ in range(3):
        wrapped(inputs).square().mean().backward()
    settle()
    path = gl.start_timeline(os.environ["GPU_CHECK_SCRATCH"])
    begun = time.time_ns()
    if IS_CUDA:
        start = torch.cuda.Event(enable_timing=True)
        start.record()
    with gl.timeline.span("backward"):
        wrapped(inputs).square().mean().backward()
    returned = time.time_ns()
    gl.stop_timeline()
    last = begun + int(start.elapsed_time(finished[-1]) * 1e6) if IS_CUDA else finished[-1]
    events = json.loads(Path(path).read_text())
    spans = [event for event in events if event.get("ph") == "X" and event["name"] == "PUSH"]
    early = [span for span in spans if span["ts"] * 1000 < last]
    share = sum(span["args"]["bytes"] for span in early) / sum(span["args"]["bytes"] for span in spans)
    figure(
        f"of {(returned - begun) / 1e6:.1f} ms, the last gradient was computed after {(last - begun) / 1e6:.1f} ms; "
        f"{share:.0%} of the bytes had begun to leave by then"
    )
    assert share > 0.25, "gradients leave only when all of them are computed"
    passed("gradients leave while the backward pass still computes others")
    gl.shutdown()


from training_checks import amp, several_places, training  # noqa: E402

CHECKS = {
    "probe": Check("the driver, the devices, and what doctor says of them", probe, is_for_host=False),
    "copies": Check("the engine's copies against the machine's own, by chunk size", copies, is_for_host=False),
    "sums": Check("sums of CUDA tensors through a server", sums, workers=2, env=THROUGH_SERVERS),
    "training": Check("training equals that of one process", training, workers=2, env=THROUGH_SERVERS),
    "amp": Check("an infinite gradient of one worker under GradScaler", amp, workers=2, env=THROUGH_SERVERS),
    "several_places": Check(
        "a model on all devices and the CPU", several_places, workers=2, env=THROUGH_SERVERS, is_for_host=False
    ),
    "timings": Check("enqueueing and completion", timings, workers=1, env=THROUGH_SERVERS),
    "capture": Check("graph capture", capture, workers=1, env=THROUGH_SERVERS, is_for_host=False),
    "overlap": Check("copies and messages during the backward pass", overlap, workers=2, env=THROUGH_SERVERS),
    "ranks_on_one_gpu": Check(
        "two ranks of a machine by NCCL on one GPU", ranks_on_one_gpu, workers=2, env=ONE_GPU_FOR_ALL
    ),
    "pcie_groups": Check(
        "two ranks of a machine, each a PCIe group of its own",
        pcie_groups,
        workers=2,
        env={**ONE_GPU_FOR_ALL, "GRADLANE_PCIE_SWITCH_SIZE": "1"},
    ),
    "sanitizer": Check(
        "sums under compute-sanitizer",
        sums,
        workers=2,
        env=THROUGH_SERVERS,
        # PyTorch asks the driver for what an older one may not have, and takes the refusal for an answer.
        under=("compute-sanitizer", "--target-processes", "all", "--report-api-errors", "no", "--error-exitcode", "9"),
        is_for_host=False,
    ),
}
