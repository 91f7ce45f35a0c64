"""Reductions of tensors by name: `push_pull`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gradlane._compression import Compressor
from gradlane._operations import check_name
from gradlane._reduction import ReduceOp, reduction_of
from gradlane.tensorflow import _sparse
from gradlane.tensorflow._autograph import unconverted
from gradlane.tensorflow._dense import dense
from gradlane.tensorflow._reduce import reduce_all


@unconverted
def push_pull(
    tensor: Any,
    name: str,
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor | None = None,
    timeout: float | None = None,
    sparse_as_dense: bool = False,
) -> Any:
    """Average `tensor` over all workers into a new tensor. Differentiable: the gradient is reduced the same way.

    Works eagerly and in `tf.function`. In a function, calls wait for their results in the order of the program. If
    there are many tensors, `tf.concat` them, or use `DistributedGradientTape`, which waits once for all. If several Python
    threads call functions that reduce, each wait occupies one of TensorFlow's threads: set more of them than yours by
    `tf.config.threading.set_inter_op_parallelism_threads`.

    Args:
        tensor: anything that `tf.convert_to_tensor` takes, or `tf.IndexedSlices`, of which the values and indices of
            all workers are gathered; any shape; float16, bfloat16, float32, float64, int32, int64, int8 or uint8.
        name: equal on all workers; its first use fixes dtype and shape.
        op: `Average` (default), `Sum`, `Min`, `Max` or `WeightedAverage`; equal on all workers.
        average: old form of `op`: True for `Average`, False for `Sum`.
        weight: this worker's weight in a `WeightedAverage`.
        priority: higher goes first; only the order matters.
        compression: how tensors travel, one of `Compression`; None takes the setting `compression`. Equal on all workers.
        timeout: seconds for the whole operation; None takes the job's step timeout.
        sparse_as_dense: make `tf.IndexedSlices` dense first.
    Raises:
        MismatchError: a worker used `name` with another dtype, shape or op (both are named).
        StallError: some workers did not contribute in time (they are named).
        InvalidArgumentError: the tensor is ragged or sparse, or its elements cannot be reduced.
        UnsupportedError: the function is compiled by XLA, or loses gradients, as `tf.vectorized_map` does.
        NotInitializedError: before `init()`.
        tensorflow.errors.OpError: in a graph, where an error passes through TensorFlow. Its text has the class and the
            message of ours.
    """
    reduction = reduction_of(op, average, weight, priority, compression, timeout=timeout)
    tensor = dense(tensor)
    if sparse_as_dense and isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    check_name(name)
    if isinstance(tensor, tf.IndexedSlices):
        _sparse.check_linear(reduction)
    return reduce_all([tensor], [name], reduction)[0]
