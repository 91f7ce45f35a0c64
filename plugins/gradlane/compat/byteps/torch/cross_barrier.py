"""`byteps.torch.cross_barrier`: scripts import it in the place of `byteps.torch`, so it has all names of that."""

from gradlane.compat.byteps.torch import *  # noqa: F403
from gradlane.compat.byteps.torch import __all__ as _of_torch
from gradlane.torch.cross_barrier import CrossBarrier

__all__ = [*_of_torch, "CrossBarrier"]
