"""`Compression.auto`: measures whether a codec makes sums faster on the job's own links, and takes it if so."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from functools import lru_cache

from gradlane import _buffers, _session
from gradlane._compression import Compressor
from gradlane._operations import barrier, submit
from gradlane._reduction import Reduction

_SIZES = (64 << 10, 1 << 20, 4 << 20)
"""Bytes of the tensors that are measured."""

_ROUNDS = 5
"""Sums of each size and codec, after one that declares the tensor."""

_LONG = 0.3
"""Seconds. Of sums that take longer, one is enough: the link decides, and not the noise of the machine."""

_LEAST_GAIN = 1.05
"""A codec is taken if sums without it take this much longer."""


@dataclass(frozen=True)
class Decision:
    """What was decided for a job."""

    codec: str
    min_bytes: int
    """Smaller tensors travel unchanged."""


def decide(allowed: tuple[Compressor, ...]) -> Decision:
    """The codec that made sums of large tensors fastest, of none and those that are allowed. All workers must call it.

    The first call in a job measures, and rank 0 prints what was decided.
    """
    return _decided(_session.generation(), allowed)


@lru_cache(maxsize=8)
def _decided(generation: int, allowed: tuple[Compressor, ...]) -> Decision:
    codecs = ["none", *(compressor.codec for compressor in allowed)]
    seconds = {codec: [_seconds(codec, size, generation) for size in _SIZES] for codec in codecs}
    gains = {codec: [plain / of for plain, of in zip(seconds["none"], seconds[codec], strict=True)] for codec in codecs}
    best = max(codecs, key=lambda codec: gains[codec][-1])
    decision = Decision("none", 0)
    if gains[best][-1] >= _LEAST_GAIN:
        smaller = [size for size, gain in zip(_SIZES, gains[best], strict=True) if gain < _LEAST_GAIN]
        decision = Decision(best, min(size for size in _SIZES if size > max(smaller, default=0)))
    if _session.rank() == 0:
        sys.stderr.write(_told(decision, gains))
    return decision


def _seconds(codec: str, size: int, generation: int) -> float:
    """How long a sum of a tensor of so many bytes takes, the same on all workers: that of the slowest."""
    name = f"auto {generation}/{codec}/{size}"
    contribution = _buffers.locate(memoryview(bytearray(size)).cast("f"), writable=True)
    taken: list[float] = []
    reduction = Reduction("sum", codec=codec)
    for number in range(_ROUNDS + 1):
        barrier(f"{name} {number}")
        began = time.perf_counter()
        submit(name, contribution, contribution, reduction, result=None, waits=True).wait()
        # The first one also declares the tensor.
        if number > 0:
            slowest = memoryview(bytearray(8)).cast("d")
            slowest[0] = time.perf_counter() - began
            place = _buffers.locate(slowest, writable=True)
            submit(f"{name} slowest", place, place, Reduction("max"), result=None, waits=True).wait()
            taken.append(slowest[0])
            if slowest[0] > _LONG:
                break
    _session.session().undeclare([name, f"{name} slowest"], None)
    return statistics.median(taken)


def _told(decision: Decision, gains: dict[str, list[float]]) -> str:
    """One line for people."""
    measured = "; ".join(
        f"{codec} " + ", ".join(f"{gain:.2f}" for gain in of) for codec, of in gains.items() if codec != "none"
    )
    sizes = ", ".join(f"{size >> 10} KiB" for size in _SIZES)
    taken = decision.codec if decision.codec == "none" else f"{decision.codec} from {decision.min_bytes >> 10} KiB on"
    return f"gradlane: compression auto takes {taken} (speed-up at {sizes}: {measured})\n"
