"""`byteps.keras.callbacks`: BytePS's arguments for the callbacks of `gradlane.keras`. Devices have no effect."""

from __future__ import annotations

from gradlane.keras import callbacks as ours
from gradlane.keras.callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

class BroadcastGlobalVariablesCallback(ours.BroadcastGlobalVariablesCallback):
    """See `gradlane.keras.callbacks.BroadcastGlobalVariablesCallback`."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """`device` has no effect."""
        del device
        super().__init__(root_rank)


class MetricAverageCallback(ours.MetricAverageCallback):
    """See `gradlane.keras.callbacks.MetricAverageCallback`."""

    def __init__(self, device: str = "") -> None:
        """`device` has no effect."""
        del device
        super().__init__()
