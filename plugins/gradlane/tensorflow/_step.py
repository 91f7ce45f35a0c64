"""A variable that tells one run of a graph from the next, so that nothing is computed once and for all.

Each graph reads it before its first reduction, and writes it after each wait. TensorFlow keeps the order of reads and
writes, also between the iterations of a loop and between calls of one function. So a name is submitted again only after
its last reduction has ended here. Otherwise TensorFlow would run independent iterations side by side, in another order
on each worker, and a sum would mix them.

Its value also says whether the workers are out of step: then it is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gradlane import _session
from gradlane.errors import UnsupportedError

_OUT_OF_STEP = -1

_variable: Any = None


@dataclass(frozen=True)
class Step:
    """The variable as one graph has read it."""

    value: Any
    """A scalar of int64, not constant."""
    resource: Any | None
    """The variable in this graph; None in the sessions of TensorFlow 1."""

    def advance(self, after: Sequence[Any]) -> None:
        """Writes the variable once the tensors `after` exist."""
        if self.resource is not None:
            with tf.control_dependencies(after):
                tf.raw_ops.AssignAddVariableOp(resource=self.resource, value=tf.constant(0, tf.int64))


def step(forward: Step | None) -> Step:
    """Reads the variable in the present graph.

    Args:
        forward: of the graph whose gradient the present graph computes, if it does. The gradient of a branch or of a
            loop finds the variable only there.
    Raises:
        UnsupportedError: in a loop of a session of TensorFlow 1, whose iterations have no order.
    """
    global _variable
    with tf.init_scope():
        outside_is_eager = tf.executing_eagerly()
        if outside_is_eager and _variable is None:
            with tf.device("CPU:0"):
                _variable = tf.Variable(0, dtype=tf.int64, trainable=False, name="gradlane_step")
    if outside_is_eager:
        resource = _variable.handle if forward is None or forward.resource is None else forward.resource
        value = tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.int64)
        return Step(value, value.op.inputs[0])
    _refuse_loops_of_sessions()
    # A variable would have to be initialised, and the time is no constant either.
    return Step(tf.cast(tf.timestamp(), tf.int64), None)


def mark_out_of_step() -> None:
    """Makes the variable negative until this process leaves its job."""
    if _variable is not None:
        _variable.assign(_OUT_OF_STEP)
        _session.after_leaving(lambda: _variable.assign(0))


def _refuse_loops_of_sessions() -> None:
    context = tf.compat.v1.get_default_graph()._get_control_flow_context()
    while context is not None:
        if context.IsWhileContext():
            raise UnsupportedError(
                "a reduction in a loop of a session of TensorFlow 1, whose iterations have no order; reduce outside of "
                "the loop, or use tf.function"
            )
        context = context.outer_context
