"""Refuses XLA, and transformations of TensorFlow that lose the gradient of a call in a graph without a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradlane.errors import UnsupportedError

_VECTORIZED = "loop_body"
"""The scope in which `tf.vectorized_map`, and `jacobian` of a tape, trace what they vectorize."""


def refuse_lost_gradients(tensors: Sequence[Any], what: str = "a reduction") -> None:
    """Raises if what is about to be added to the present graph would lose its derivatives.

    `tf.vectorized_map` drops the gradients that functions define themselves, and may run the calls in another order on
    each worker. A `tf.autodiff.ForwardAccumulator` in a graph takes such a function for a constant.

    Args:
        tensors: what the call gets, dense or `tf.IndexedSlices`.
        what: the call.
    Raises:
        UnsupportedError: it would.
    """
    if _is_vectorized():
        raise UnsupportedError(
            f"{what} inside of tf.vectorized_map, or of jacobian(), which uses it, would run once for each "
            "element, in any order; use tf.map_fn, or experimental_use_pfor=False"
        )
    if _has_tangents([tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor for tensor in tensors]):
        raise UnsupportedError(
            f"a tf.autodiff.ForwardAccumulator inside of tf.function does not see the derivative of {what}; use "
            "it outside of tf.function, or a tf.GradientTape"
        )


def refuse_xla() -> None:
    """Raises if XLA will compile the present graph.

    Raises:
        UnsupportedError: it will.
    """
    try:
        from tensorflow.python.ops import control_flow_util  # no public function tells
    except ImportError:
        return
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UnsupportedError(
            "the function is compiled by XLA, which cannot wait for other processes; use model.compile(jit_compile="
            "False) and tf.function(jit_compile=False), and call Gradlane outside of compiled functions"
        )


def _is_vectorized() -> bool:
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if any(scope.startswith(_VECTORIZED) for scope in graph.get_name_scope().split("/")):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _has_tangents(tensors: Sequence[Any]) -> bool:
    try:
        from tensorflow.python.eager import forwardprop_util  # no public function tells
    except ImportError:
        return False
    return bool(forwardprop_util.pack_tangents(list(tensors)).tangents)
