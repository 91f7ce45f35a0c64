"""The clock of a machine, on the clock of all machines of a job."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

DRIFT_PPM = 1200
"""Two clocks drift apart by no more than this share of the time, as the engine's estimate believes (`RATE_MAX`)."""


@dataclass(frozen=True)
class Times:
    """Something on the clock of all, in nanoseconds since 1970."""

    start_ns: int
    end_ns: int
    error_ns: int
    """The start is wrong by at most so much."""


class Clock:
    """Places the times of a machine's monotonic clock on the clock of all.

    A reading says how far the other clock was ahead at a time, with an error. The offset cannot have changed by more than
    the drift before and after, so a good reading makes those around it better. Between two readings the offset goes along
    a line, and so does its error. Beyond the first and the last one it stays, and the error grows with the drift. So what
    lies within something else does so on both clocks.
    """

    def __init__(self, readings: Iterable[tuple[int, int, int]], *, drift_ppm: int = DRIFT_PPM) -> None:
        """`readings` are times of the monotonic clock, how far the other clock was ahead, and the error."""
        self._drift_ppm = drift_ppm
        self._anchors = self._tightened(sorted(readings))
        self._times = [at for at, _, _ in self._anchors]

    def place(self, ns: int) -> tuple[int, int]:
        """A time on the clock of all, and its error."""
        after = bisect.bisect_right(self._times, ns)
        first, ahead, error = self._anchors[max(after - 1, 0)]
        if 0 < after < len(self._anchors):
            last, ahead_then, error_then = self._anchors[after]
            lasts, gone = last - first, ns - first
            ahead += (ahead_then - ahead) * gone // lasts
            error = (error * (lasts - gone) + error_then * gone) // lasts
        else:
            error += self._drift(abs(ns - first))
        return ns + ahead, error

    def _tightened(self, readings: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The readings within the bounds that all of them set.

        Backwards, as far as they agree: a coordinator that has taken over has another clock, and the newest one counts.
        """
        kept: list[tuple[int, int, int]] = []
        for at, ahead, error in reversed(readings):
            low, high = ahead - error, ahead + error
            if kept:
                later, low_then, high_then = kept[-1]
                drift = self._drift(later - at)
                low, high = max(low, low_then - drift), min(high, high_then + drift)
            if low > high:
                break
            kept.append((at, low, high))
        kept.reverse()
        for index in range(1, len(kept)):
            (earlier, low_then, high_then), (at, low, high) = kept[index - 1 : index + 1]
            drift = self._drift(at - earlier)
            kept[index] = at, max(low, low_then - drift), min(high, high_then + drift)
        return [(at, (low + high) // 2, (high - low + 1) // 2) for at, low, high in kept]

    def _drift(self, ns: int) -> int:
        return -(-ns * self._drift_ppm // 1_000_000)
