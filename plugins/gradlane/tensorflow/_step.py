"""The scalar that tells one run of a graph from the next, so that nothing is computed once and for all.

It also says whether the workers are out of step: then it is negative.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gradlane import _session

_OUT_OF_STEP = -1

_variable: Any = None


def step() -> Any:
    """A scalar of int64 in the present graph, not constant."""
    global _variable
    with tf.init_scope():
        outside_is_eager = tf.executing_eagerly()
        if outside_is_eager and _variable is None:
            with tf.device("CPU:0"):
                _variable = tf.Variable(0, dtype=tf.int64, trainable=False, name="gradlane_step")
    # In the sessions of TensorFlow 1 a variable would have to be initialised, and the time is no constant either.
    return _variable.read_value() if outside_is_eager else tf.cast(tf.timestamp(), tf.int64)


def mark_out_of_step() -> None:
    """Makes `step` negative until this process leaves its job."""
    if _variable is not None:
        _variable.assign(_OUT_OF_STEP)
        _session.after_leaving(lambda: _variable.assign(0))
