"""`byteps.torch.cross_barrier`: scripts import it in the place of `byteps.torch`, so it has all names of that."""

import functools
from typing import Any

from gradlane.compat.byteps.common import refuse_asynchronous
from gradlane.compat.byteps.torch import *  # noqa: F403
from gradlane.compat.byteps.torch import __all__ as _of_torch
from gradlane.torch import cross_barrier as _cross_barrier

__all__ = [*_of_torch, "CrossBarrier"]


@functools.wraps(_cross_barrier.CrossBarrier, assigned=("__annotations__",))
def CrossBarrier(*positional: Any, **named: Any) -> Any:
    """Averages gradients while training goes on; see `gradlane.torch.CrossBarrier` for arguments and more errors.

    Raises:
        UnsupportedError: `BYTEPS_ENABLE_ASYNC` asks for asynchronous training.
    """
    refuse_asynchronous("CrossBarrier", "DistributedOptimizer of byteps.torch")
    return _cross_barrier.CrossBarrier(*positional, **named)
