"""Rows of tables in TensorFlow: reads that can be differentiated, eagerly and in graphs.

Gradients flow to an *anchor*, a scalar that stands for the rows among the weights of a model. Its own gradient is zero. Each read takes
the value of the anchor, and the step of the optimizer changes the anchor behind the send. So TensorFlow runs reads after the send of the
step before, also in graphs with several steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradlane import _table_rows
from gradlane._table_rows import TableRows
from gradlane.errors import UnsupportedError
from gradlane.tensorflow._autograph import unconverted
from gradlane.tensorflow._errors import python_function
from gradlane.tensorflow._transformations import refuse_lost_gradients, refuse_xla


@unconverted
def read(rows: TableRows, anchor: Any, ids: Any, *, is_training: bool) -> Any:
    """The rows of ids, float32. For a training a backward pass leaves their gradients in `rows`.

    Args:
        anchor: a scalar variable of float32.
        ids: a dense tensor.
    Raises:
        UnsupportedError: ids are ragged or sparse, or XLA or a transformation that loses gradients runs this.
    """
    if not tf.is_tensor(ids) or isinstance(ids, tf.RaggedTensor | tf.SparseTensor):
        raise UnsupportedError(
            f"table {rows.table.name}: ids in a {type(ids).__name__}; give a dense tensor, such as that of to_tensor(), and mask_zero=True"
        )
    anchor, ids = tf.convert_to_tensor(anchor), tf.convert_to_tensor(ids)
    if not is_training:
        return _called(rows, rows.look, [ids, anchor], rows.table.dim)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(anchor: Any, ids: Any) -> Any:
        def leave(gradients: Any) -> tuple[Any, None]:
            return _called(rows, rows.leave, [ids, tf.convert_to_tensor(gradients)], None), None

        return _called(rows, rows.pull, [ids, anchor], rows.table.dim), leave

    return differentiable(anchor, ids)


@unconverted
def send(rows: Sequence[TableRows], gradients: Sequence[Any], factor: float, after: Sequence[Any]) -> list[Any]:
    """Sends what backward passes have left.

    Args:
        gradients: those of the anchors, which exist once all gradients of the rows were left.
        factor: by which the gradients are multiplied.
        after: tensors that exist before anything is sent; None among them counts for nothing.
    Returns:
        A gradient for each anchor, zero, which exists once the rows were changed.
    """
    if tf.executing_eagerly():
        _table_rows.send(rows, factor)
        return list(gradients)

    def begin(*_: Any) -> np.float32:
        _table_rows.send(rows, factor)
        return np.float32(0.0)

    with tf.control_dependencies([tensor for tensor in after if tensor is not None]):
        sent = tf.numpy_function(python_function(begin), list(gradients), tf.float32)
    sent.set_shape([])
    return [sent for _ in gradients]


def _called(rows: TableRows, function: Any, inputs: Sequence[Any], dim: int | None) -> Any:
    """What `function` makes of the first input, and of the second one if it takes that: rows of `dim` numbers, or zero."""
    ids, second = inputs

    def call(ids: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> Any:
        if dim is not None:
            return function(np.asarray(ids))
        function(np.asarray(ids), np.asarray(second, np.float32))
        return np.float32(0.0)

    if tf.executing_eagerly():
        return tf.convert_to_tensor(call(ids.numpy(), second.numpy()))
    refuse_xla()
    refuse_lost_gradients([second], f"a use of table {rows.table.name}")
    result = tf.numpy_function(python_function(call), [ids, second], tf.float32)
    result.set_shape([] if dim is None else [*ids.shape, dim] if ids.shape.rank is not None else None)
    return result
