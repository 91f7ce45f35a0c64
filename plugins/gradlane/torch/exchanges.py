"""Exchanges: how workers that train models of their own come together, for `gradlane.torch.LocalSGD`.

    local = gl.LocalSGD(model.named_parameters(), optimizer, exchange=gl.exchanges.Average(), every=8)

An exchange is a value: a rule and its rate r. Give all workers the same one. In the formulas, x are the weights of a
worker, c those that all workers share, o those that the worker knew after its last exchange, and N is the number of
workers. The rules are those of Paddle's parameter servers; `Elastic` is EASGD (arXiv:1412.6651).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradlane.errors import InvalidArgumentError

__all__ = ["Average", "Elastic", "Exchange", "Geo"]


@dataclass(frozen=True)
class Exchange:
    """What all exchanges are."""

    rate: float = 1.0
    """r: how much of what a worker has learnt the others get."""

    def __post_init__(self) -> None:
        if isinstance(self.rate, bool | str) or not hasattr(self.rate, "__float__"):
            raise InvalidArgumentError(f"rate={self.rate!r}; give a number above 0")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise InvalidArgumentError(f"rate={self.rate!r} is out of range; give a number above 0")

    def __str__(self) -> str:
        """As messages and states have it, such as `geo:rate=1.0`."""
        return f"{type(self).__name__.lower()}:rate={float(self.rate)}"


@dataclass(frozen=True)
class Average(Exchange):
    """The workers' progress is averaged: c += r/N * (x - o), then x = o = c.

    Synchronous, c += r/N times the sum over all workers, for which they wait. With a rate of 1, c is then the mean of
    their models. Otherwise each worker changes c by itself when it comes, and waits for nobody.
    """

    synchronous: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.synchronous, bool):
            raise InvalidArgumentError(f"synchronous={self.synchronous!r}; give True or False")

    def __str__(self) -> str:
        """As messages and states have it."""
        return f"{super().__str__()},synchronous={self.synchronous}"


@dataclass(frozen=True)
class Elastic(Exchange):
    """A spring holds models and c together: with a = r/N, c += a * (x - c) and x -= a * (x - c), with the same difference.

    A model is never replaced, so workers explore by themselves. Let r be below N: with both equal, x and c change places.
    No worker waits for another.
    """


@dataclass(frozen=True)
class Geo(Exchange):
    """Progress is merged: d = r/N * (x - o), o += d, c += d, then x += c - o and o = c.

    The rest of the progress stays with the worker, whose later exchanges send it on. So with a rate of 1, c gets the whole
    progress of every worker: in time the sum of all, not their mean. No worker waits for another.
    """
