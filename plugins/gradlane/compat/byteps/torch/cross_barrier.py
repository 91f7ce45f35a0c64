"""`byteps.torch.cross_barrier`."""

from gradlane.torch.cross_barrier import CrossBarrier

__all__ = ["CrossBarrier"]
