"""Reduces lists of tensors, in graphs and eagerly, in a way that TensorFlow can differentiate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradlane import _agreement
from gradlane._agreement import Agreement
from gradlane._reduction import Reduction
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.tensorflow import _eager, _graph
from gradlane.tensorflow._step import Step


def reduce_all(
    tensors: Sequence[Any], names: Sequence[str], reduction: Reduction, agreement: Agreement | None = None
) -> list[Any]:
    """Reduces the tensors of a list together.

    Dense results of `sum` and `mean` can be differentiated, any number of times: the gradients are reduced in the same
    way, under the names with `.backward` behind them. For other results the gradient is an error. Without one it would
    be missing in silence.

    Args:
        tensors: dense, or `tf.IndexedSlices` for `sum` and `mean`.
        names: equal on all workers, each once.
        agreement: what these gradients are on this worker, if other workers may have others.
    Raises:
        NotInitializedError: this process takes part in no job.
        InvalidArgumentError: a tensor cannot be reduced.
        UnsupportedError: in a graph that XLA compiles, or that would lose the gradient.
    """
    if not tensors and agreement is None:
        _agreement.check_in_step()
        return []
    return _reduced(tensors, names, reduction, agreement, None)


def _reduced(
    tensors: Sequence[Any],
    names: Sequence[str],
    reduction: Reduction,
    agreement: Agreement | None,
    forward: Step | None,
) -> list[Any]:
    """`forward` is of the graph whose gradient this is, if it is one of a graph."""
    _agreement.check_in_step()
    results: list[Any] = []

    def reduce(*values: Any) -> Any:
        inputs = [_with_values(tensor, own) for tensor, own in zip(tensors, values, strict=True)]
        step = None
        if tf.executing_eagerly():
            results[:] = _eager.reduce_all(inputs, names, reduction, agreement)
        else:
            results[:], step = _graph.reduce_all(inputs, names, reduction, agreement, forward)

        def gradient(*upstream: Any) -> list[Any]:
            return _backward(tensors, names, reduction, upstream, step)

        return [_values(result) for result in results], gradient

    if not tensors:
        reduce()
        return []
    values = tf.custom_gradient(reduce)(*[_values(tensor) for tensor in tensors])
    return [_with_values(result, own) for result, own in zip(results, values, strict=True)]


def _backward(
    tensors: Sequence[Any], names: Sequence[str], reduction: Reduction, upstream: Sequence[Any], forward: Step | None
) -> list[Any]:
    """The gradients for `tensors`: the gradient of a mean (or sum) over workers is the mean (or sum) of theirs."""
    if not reduction.is_linear:
        raise InvalidArgumentError(f"{reduction.op} has no gradient; use tf.stop_gradient, or Average or Sum")
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise UnsupportedError(
            "rows of tf.IndexedSlices were gathered, which has no gradient; use sparse_as_dense=True, or "
            "tf.stop_gradient"
        )
    kept = [at for at, tensor in enumerate(tensors) if tensor.dtype.is_floating]
    theirs = [tf.convert_to_tensor(upstream[at]) for at in kept]
    reduced = _reduced(theirs, [f"{names[at]}.backward" for at in kept], reduction.among(kept), None, forward)
    means = dict(zip(kept, reduced, strict=True))
    return [means.get(at) for at in range(len(tensors))]


def _values(tensor: Any) -> Any:
    return tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor


def _with_values(tensor: Any, values: Any) -> Any:
    """`tensor` with other values, which TensorFlow differentiates."""
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(values, tensor.indices, tensor.dense_shape)
    return values
