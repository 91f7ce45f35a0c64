"""Copies between host and device, and what a tensor costs its caller: figures, against those of the machine itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import gradlane.torch as gl
import torch
from driver import Driver
from gradlane import _core
from places import IS_SHORT, put, settle
from probing import sealed
from telling import figure, passed, skipped

KIB = 1 << 10
MIB = 1 << 20
SIZE = (8 if IS_SHORT else 256) * MIB
CHUNKS = (256 * KIB, 4 * MIB) if IS_SHORT else (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)

TARGETS = {(4 * MIB, "out"): 0.92, (4 * MIB, "in"): 0.92, (4 * MIB, "both"): 0.85, (MIB, "out"): 0.85}
"""Shares of the machine's own rate, by chunk and direction."""

SUBMIT_US_MAX = 15.0
EXCHANGE_MS_MAX = 0.35


def copies() -> None:
    """Compares with one large copy of memory that the driver has pinned, in the same run."""
    with Driver() as driver, driver.memory(SIZE) as device:
        with driver.pinned(SIZE) as pinned:
            own = {way: SIZE / driver.seconds_of_copies(way, pinned, device, SIZE, SIZE) / 1e9 for way in ("out", "in")}
            for way, rate in own.items():
                figure(f"the machine's own copy of {SIZE // MIB} MiB {way}", rate, "GB/s")
        by_engine(device, own)
        try:
            by_registered(driver, device, own)
        except OSError as error:
            skipped(f"copies of registered memory: this system has none with the seals ({error})")
    passed("copies were measured")


def by_engine(device: int, own: dict[str, float]) -> None:
    """The engine's copies, four chunks under way in each direction."""
    for chunk in CHUNKS:
        for way in ("out", "in", "both"):
            seconds = min(_core.copy_seconds({}, 0, device, SIZE, chunk, 4, way) for _ in range(3))
            rate = SIZE / (2 if way == "both" else 1) / seconds / 1e9
            limit = own[way] if way != "both" else min(own.values())
            name = f"the engine's chunks of {chunk // KIB} KiB {way}{' at once, each' if way == 'both' else ''}"
            figure(f"{name}, of the machine's own rate", rate / limit, at_least=TARGETS.get((chunk, way)))


def by_registered(driver: Driver, device: int, own: dict[str, float]) -> None:
    """Memory that is shared with servers: sealed, then registered with the driver."""
    with sealed(SIZE) as (_, address), driver.registered(address, SIZE):
        for way, rate in own.items():
            for chunk in (4 * MIB, SIZE):
                seconds = driver.seconds_of_copies(way, address, device, SIZE, chunk)
                name = f"registered memory {way}, chunks of {chunk // MIB} MiB, of the machine's own rate"
                figure(name, SIZE / seconds / 1e9 / rate, at_least=0.92 if chunk == 4 * MIB else None)


def timings() -> None:
    """Times the calling thread, and the way there and back."""
    tensors = [put(torch.ones(MIB // 4)) for _ in range(8 if IS_SHORT else 64)]
    forms: dict[str, Callable[[], list[gl.Handle]]] = {
        "each": lambda: [gl.push_pull_async_(tensor, f"enqueued.{i}") for i, tensor in enumerate(tensors)],
        "group": lambda: [gl.grouped_push_pull_async_(tensors, "enqueued")],
    }
    for form, begin in forms.items():
        seconds = []
        for _ in range(4 if IS_SHORT else 30):
            settle()
            begun = time.perf_counter()
            handles = begin()
            seconds.append((time.perf_counter() - begun) / len(tensors))
            for handle in handles:
                handle.synchronize()
        # The first ones declare the tensors.
        name = "a tensor of 1 MiB" if form == "each" else f"a tensor of 1 MiB in a group of {len(tensors)}"
        target = SUBMIT_US_MAX if form == "each" else None
        figure(f"enqueueing {name}", statistics.median(seconds[2:]) * 1e6, "us", at_most=target)
    for size in (4 * KIB, 4 * MIB) if IS_SHORT else (4 * KIB, 64 * KIB, MIB, 4 * MIB, 64 * MIB, 256 * MIB):
        tensor, seconds = put(torch.ones(size // 4)), []
        for _ in range(4 if IS_SHORT else 30):
            settle()
            begun = time.perf_counter()
            gl.push_pull_async_(tensor, f"complete {size}").synchronize()
            seconds.append(time.perf_counter() - begun)
        name = f"a tensor of {size // KIB} KiB there and back through a server of this machine"
        target = EXCHANGE_MS_MAX if size == 4 * MIB else None
        figure(name, statistics.median(seconds[2:]) * 1e3, "ms", at_most=target)
        assert (tensor == 1.0).all()
    passed("enqueueing and completion were measured")
