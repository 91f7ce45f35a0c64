"""Refuses to be imported without Keras, or with one that is too old."""

from __future__ import annotations

from gradlane._framework import Framework

KERAS = Framework("Keras", "keras", (3, 0), ", or use gradlane.tensorflow.DistributedGradientTape")
"""3.0 is the first release with several backends."""

KERAS.check()
