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

_ROUNDS = 7
"""Sums of each size with each codec, after one that declares the tensor."""

_LONG = 0.3
"""Seconds. Of sums that take longer, one is enough: the link decides, and not the noise of the machine."""

_LEAST_GAIN = 1.25
"""A codec is taken if sums without it take this much longer. A link that is the limit gives more; less may be noise, or what the codec
takes from the processors while they compute gradients."""


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
    del generation  # another session measures anew
    by_size = [_gains(codecs, size) for size in _SIZES]
    gains = {codec: [gain[codec] for gain in by_size] for codec in codecs}
    best = max(codecs, key=lambda codec: gains[codec][-1])
    decision = Decision("none", 0)
    if gains[best][-1] >= _LEAST_GAIN:
        smaller = [size for size, gain in zip(_SIZES, gains[best], strict=True) if gain < _LEAST_GAIN]
        decision = Decision(best, min(size for size in _SIZES if size > max(smaller, default=0)))
    if _session.rank() == 0:
        sys.stderr.write(_told(decision, gains))
    return decision


def _gains(codecs: list[str], size: int) -> dict[str, float]:
    """By codec: how many times as long a sum of a tensor of so many bytes takes without it; the same on all workers.

    The codecs take turns, so that what changes on the machine or its links meets all of them: the median over the rounds.
    """
    contribution = _buffers.locate(memoryview(bytearray(size)).cast("f"), writable=True)
    names = {codec: f"auto/{codec}/{size}" for codec in codecs}
    ratios: dict[str, list[float]] = {codec: [] for codec in codecs}
    for number in range(_ROUNDS + 1):
        seconds = {codec: _seconds(name, codec, contribution, number) for codec, name in names.items()}
        # The first round also declares the tensors.
        if number > 0:
            for codec, of in seconds.items():
                ratios[codec].append(seconds["none"] / of)
            if max(seconds.values()) > _LONG:
                break
    _session.session().undeclare([*names.values(), *map(_slowest, names.values())], None)
    return {codec: statistics.median(of) for codec, of in ratios.items()}


def _seconds(name: str, codec: str, contribution: _buffers.Buffer, number: int) -> float:
    """How long one sum takes: the time of the slowest worker."""
    barrier(f"{name} {number}")
    began = time.perf_counter()
    submit(name, contribution, contribution, Reduction("sum", codec=codec), result=None, waits=True).wait()
    slowest = memoryview(bytearray(8)).cast("d")
    slowest[0] = time.perf_counter() - began
    place = _buffers.locate(slowest, writable=True)
    submit(_slowest(name), place, place, Reduction("max"), result=None, waits=True).wait()
    return float(slowest[0])


def _slowest(name: str) -> str:
    """The name of the tensor with the time of the slowest worker."""
    return f"{name} slowest"


def _told(decision: Decision, gains: dict[str, list[float]]) -> str:
    """One line for people."""
    measured = "; ".join(
        f"{codec} " + ", ".join(f"{gain:.2f}" for gain in of) for codec, of in gains.items() if codec != "none"
    )
    sizes = ", ".join(f"{size >> 10} KiB" for size in _SIZES)
    taken = decision.codec if decision.codec == "none" else f"{decision.codec} from {decision.min_bytes >> 10} KiB on"
    return f"gradlane: compression auto takes {taken} (speed-up at {sizes}: {measured})\n"
