"""`byteps.tensorflow.keras.callbacks`."""

from __future__ import annotations

from gradlane.compat.byteps.keras.callbacks import *  # noqa: F403
from gradlane.compat.byteps.keras.callbacks import __all__  # noqa: F401
