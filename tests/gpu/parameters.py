"""Parameters whose values lie on the device: changed from there and read to there."""

from __future__ import annotations

import statistics
import time

import gradlane.torch as gl
import torch
from gradlane import parameters as kept
from places import IS_SHORT, put, settle
from telling import figure, passed

COUNTS = (1, 1000, (1 << 18) + 3) if IS_SHORT else (1, 1000, 1 << 20, (1 << 22) + 3)
ROUNDS = 3 if IS_SHORT else 10
BASE = 64
"""Of the digit of each worker: more than its changes, and the sums of two workers stay exact in float32."""


def parameters() -> None:
    """Each worker adds its digit; the value says who is in it, and how often."""
    due = float(ROUNDS * sum(BASE**rank for rank in range(gl.size())))
    for count in COUNTS:
        name = f"kept {count}"
        kept.init(name, put(torch.zeros(count)))
        digit, found = put(torch.full((count,), float(BASE ** gl.rank()))), put(torch.full((count,), -1.0))
        settle()
        for _ in range(ROUNDS):
            kept.push(name, digit)
        gl.barrier(name)
        kept.pull(name, found)
        wrong = int((found.cpu() != due).sum())
        assert wrong == 0, f"{wrong} of {count} elements are not {due}"
        gl.barrier(f"read {count}")
        own = digit.clone()
        settle()
        version = kept.push_pull(name, own)
        assert version > 1 + ROUNDS * gl.size() and (own.cpu() > due).all(), "the value lacks the own change"
    passed("changes from the device are all in the value, once, and it comes back to the device")
    for size in (4 << 10, 1 << 20) if IS_SHORT else (4 << 10, 4 << 20, 64 << 20):
        value, name = put(torch.ones(size // 4)), f"timed {gl.rank()} {size}"
        kept.init(name, value)
        settle()
        for what, use in (("push", lambda: kept.push(name, value)), ("pull", lambda: kept.pull(name, value))):
            seconds = []
            for _ in range(4 if IS_SHORT else 20):
                begun = time.perf_counter()
                use()
                seconds.append(time.perf_counter() - begun)
            figure(f"a {what} of {size >> 10} KiB", statistics.median(seconds[2:]) * 1e3, "ms")
