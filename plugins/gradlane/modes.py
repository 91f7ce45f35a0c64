"""Modes: when the change of a worker to a parameter is done, and for whom a worker waits.

    from gradlane import modes, parameters, rules

    clock = parameters.Clock("train", modes.SSP(4))
    parameters.init("w", weights, rule=rules.SGD(lr=0.1), mode=clock)
    for gradient in gradients:
        parameters.push_pull("w", gradient, out=weights, update="step")
        clock.tick()

| mode | a gradient | a worker waits for |
|---|---|---|
| `Async()` | is applied when it comes | nobody |
| `SSP(bound)` | is applied when it comes | the slowest, if that is more than `bound` rounds behind |
| `Sync()` | is kept until its round is closed; then the rule is applied once, to the mean of all | all, in each round |
| `Backup(k)` | as `Sync`, with the first `k` workers of each round | so many |

`Async` and `SSP` may bound the *staleness* of a change: its lag is the number of versions that came between the one from which it
was computed, which is the one that its worker has read last, and the present one. With a larger lag than `max_staleness` a change
is discarded, or with `beyond="scale"` multiplied by 1 / (1 + lag). A change that assigns a value has no lag.

With `compensate=kappa` they correct an old gradient first, by what has changed since (delay compensation, arXiv:1609.08326): g becomes
g + kappa·g·g·(w - b), where b is the value that its worker has read last, and w the present one. Servers keep that value for each
worker, in their memory. A gradient of another version is refused: where a pull has failed, pull again before the next gradient.

A mode is a value. Give all workers the same one; whoever gives another hears of both in a `MismatchError`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gradlane.errors import InvalidArgumentError

__all__ = ["SSP", "Async", "Backup", "Mode", "Sync"]

_COUNT_MAX = 2**32 - 1


@dataclass(frozen=True)
class Mode:
    """What all modes are."""

    def __str__(self) -> str:
        """As the engine reads it, such as `ssp:bound=4`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Async(Mode):
    """Each change is done when it comes, and nobody waits."""

    max_staleness: int | None = None
    """The largest lag with which a change is done as it is; None for any."""
    beyond: Literal["discard", "scale"] = "discard"
    """What happens to a change of a larger lag."""
    compensate: float | None = None
    """The kappa by which old gradients are compensated, above 0; None if they are taken as they are."""

    def __post_init__(self) -> None:
        _check_staleness(self.max_staleness, self.beyond)
        _check_kappa(self.compensate)

    def __str__(self) -> str:
        return _text("async", [*_staleness(self.max_staleness, self.beyond), *_compensation(self.compensate)])


@dataclass(frozen=True)
class SSP(Mode):
    """Stale synchronous parallel: changes are done when they come, and nobody is too far ahead of the slowest worker."""

    bound: int
    """The most rounds that a worker may have finished before the slowest one has. With 0, all are in the same round."""
    max_staleness: int | None = None
    """As for `Async`."""
    beyond: Literal["discard", "scale"] = "discard"
    """As for `Async`."""
    compensate: float | None = None
    """As for `Async`."""

    def __post_init__(self) -> None:
        _check_count("bound", self.bound, 0)
        _check_staleness(self.max_staleness, self.beyond)
        _check_kappa(self.compensate)

    def __str__(self) -> str:
        settings = [*_staleness(self.max_staleness, self.beyond), *_compensation(self.compensate)]
        return _text("ssp", [f"bound={self.bound}", *settings])


@dataclass(frozen=True)
class Sync(Mode):
    """All workers close each round, and the rule is applied once."""

    merge: Literal["mean", "sum"] = "mean"
    """What the rule is applied to: the sum of the gradients, or that over the number of workers."""

    def __post_init__(self) -> None:
        _check_word("merge", self.merge, ("mean", "sum"))

    def __str__(self) -> str:
        return _text("sync", _merge(self.merge))


@dataclass(frozen=True)
class Backup(Mode):
    """The first `k` workers close each round. What others bring for it is dropped, and they go on with the next round."""

    k: int
    """From 1 to the number of workers."""
    merge: Literal["mean", "sum"] = "mean"
    """As for `Sync`; the mean is over `k`."""

    def __post_init__(self) -> None:
        _check_count("k", self.k, 1)
        _check_word("merge", self.merge, ("mean", "sum"))

    def __str__(self) -> str:
        return _text("k_of_n", [f"k={self.k}", *_merge(self.merge)])


def has_rounds(mode: Mode) -> bool:
    """Whether gradients are kept until a round is closed."""
    return isinstance(mode, Sync | Backup)


def check_mode(mode: object) -> Mode:
    """Refuses what is no mode."""
    if not isinstance(mode, Mode) or type(mode) is Mode:
        raise InvalidArgumentError(f"mode={mode!r}; give one of gradlane.modes, such as modes.SSP(4)")
    return mode


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _COUNT_MAX:
        raise InvalidArgumentError(f"{name}={value!r}; give an integer of at least {least}")


def _check_staleness(value: object, beyond: object) -> None:
    _check_word("beyond", beyond, ("discard", "scale"))
    if value is not None:
        _check_count("max_staleness", value, 0)
    elif beyond != "discard":
        raise InvalidArgumentError(f"beyond={beyond!r} without max_staleness; give the largest lag with which a change is done as it is")


def _check_kappa(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidArgumentError(f"compensate={value!r}; give a number above 0")


def _check_word(name: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise InvalidArgumentError(f"{name}={value!r}; give one of {', '.join(words)}")


def _staleness(most: int | None, beyond: str) -> list[str]:
    if most is None:
        return []
    return [f"max_staleness={most}", *([] if beyond == "discard" else [f"beyond={beyond}"])]


def _compensation(kappa: float | None) -> list[str]:
    return [] if kappa is None else [f"compensate={kappa!r}"]


def _merge(merge: str) -> list[str]:
    return [] if merge == "mean" else [f"merge={merge}"]


def _text(name: str, settings: list[str]) -> str:
    return f"{name}:{','.join(settings)}" if settings else name
