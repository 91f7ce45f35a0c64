"""Whether gradients leave while the backward pass computes others."""

from __future__ import annotations

import time
from pathlib import Path

import gradlane.torch as gl
import torch
from gradlane import _timeline_files
from places import IS_CUDA, SCRATCH, put, put_module, settle
from telling import figure, passed

SHARE_MIN = 0.25
"""Of the bytes; less on a GPU that two processes share by turns, so it is a target and no condition."""


def overlap() -> None:
    """Compares the timeline with the moment at which the device has computed the last gradient."""
    width = 2048 if IS_CUDA else 256
    model = put_module(torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(12)]))
    inputs = put(torch.randn(2048 if IS_CUDA else 16, width))
    wrapped = gl.DistributedDataParallel(model)
    finished: list[object] = []

    def computed(_: torch.Tensor) -> None:
        finished.append(event_now() if IS_CUDA else time.monotonic_ns())

    model[0].weight.register_hook(computed)
    for _ in range(3):
        wrapped(inputs).square().mean().backward()
    settle()
    path = gl.start_timeline(str(SCRATCH))
    begun = time.monotonic_ns()
    start = event_now() if IS_CUDA else None
    with gl.timeline.span("backward"):
        wrapped(inputs).square().mean().backward()
        gl.synchronize()
    returned = time.monotonic_ns()
    gl.stop_timeline()
    last = begun + int(start.elapsed_time(finished[-1]) * 1e6) if start else finished[-1]
    events = _timeline_files.read(Path(path)).events
    spans = [event for event in events if event.get("ph") == "X" and event["name"] == "PUSH"]
    # Times of the file count from here, by the same clock.
    zero = events[0]["args"]["monotonic_ns"]
    early = [span for span in spans if zero + span["ts"] * 1000 < last]
    share = sum(span["args"]["bytes"] for span in early) / sum(span["args"]["bytes"] for span in spans)
    figure("forward and backward pass, with the exchange", (returned - begun) / 1e6, "ms")
    figure("of it, until the last gradient was computed", (last - begun) / 1e6, "ms")
    figure("bytes that had begun to leave by then", share, at_least=SHARE_MIN)
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    sent = sum(span["args"]["bytes"] for span in spans)
    assert sent >= gradients, f"the timeline has {sent} of {gradients} bytes"
    passed("the timeline has every gradient of the step")


def event_now() -> torch.cuda.Event:
    """An event in the current stream that tells its time."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
