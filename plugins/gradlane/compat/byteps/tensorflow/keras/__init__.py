"""`byteps.tensorflow.keras`: the same as `byteps.keras`, because Keras is one package now."""

from __future__ import annotations

from gradlane.compat.byteps.keras import *  # noqa: F403
from gradlane.compat.byteps.keras import __all__  # noqa: F401
from gradlane.compat.byteps.tensorflow.keras import callbacks  # noqa: F401
