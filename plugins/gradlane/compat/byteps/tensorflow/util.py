"""`byteps.tensorflow.util`."""

from __future__ import annotations

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Whether operations run when they are called."""
    return bool(tf.executing_eagerly())
