"""Refuses to be imported without TensorFlow, or with one that is too old."""

from __future__ import annotations

from gradlane._framework import Framework

TENSORFLOW = Framework("TensorFlow", "tensorflow", (2, 16))
"""2.16 is the oldest release that is tested, and the first with Keras 3."""

TENSORFLOW.check()
