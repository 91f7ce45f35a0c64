"""Whether a stream waits for a sum instead of a thread."""

from __future__ import annotations

import time

import gradlane.torch as gl
import torch
from places import IS_CUDA, IS_SHORT, count_wrong, fill_late, full, settle
from telling import figure, passed

COUNT = 1 << 20
ROUNDS = 5 if IS_SHORT else 50


def streams() -> None:
    """Waits for handles while a slow kernel still computes what they reduce; what the stream does next sees the sum."""
    total = sum(range(1, gl.size() + 1))
    values = full(COUNT, gl.rank() + 1.0)
    early, seconds = 0, []
    for number in range(ROUNDS):
        tensor = full(COUNT, -1.0)
        settle()
        fill_late(tensor, values)
        handle = gl.push_pull_async_(tensor, "followed", op=gl.Sum)
        begun = time.perf_counter()
        handle.wait()
        seconds.append(time.perf_counter() - begun)
        early += not handle.poll()
        seen = tensor * 2.0  # in the stream that waits
        wrong = int((seen != total * 2.0).sum())
        assert wrong == 0, f"round {number}: {wrong} of {COUNT} elements are not {total * 2.0}"
        handle.synchronize()
        expected = full(COUNT, float(total))
        settle()
        assert count_wrong(tensor, expected) == 0, f"round {number}: synchronize() came too early"
    passed(f"in {ROUNDS} rounds whatever the stream did after wait() saw the sum")
    if IS_CUDA:
        figure("waits that returned before the sum was there", early / ROUNDS, at_least=0.9)
        figure("a wait that a slow kernel is before", sorted(seconds)[ROUNDS // 2] * 1e3, "ms")


streams_through_servers = streams
