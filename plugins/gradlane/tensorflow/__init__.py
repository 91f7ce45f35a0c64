"""Gradlane for TensorFlow: `tf.Tensor` and `tf.IndexedSlices` in and out, eagerly and in `tf.function`.

    import gradlane.tensorflow as gl

    gl.init()
    with tf.GradientTape() as tape:
        loss = ...
    tape = gl.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)    # averages over all workers

`DistributedOptimizer` does the same for a Keras optimizer; with `model.fit`, use it and the callbacks of
`gradlane.keras`.

`ServerOptimizer` trains variables that live on the servers, in each of `gradlane.modes`, in eager loops.
"""

from __future__ import annotations

from gradlane.tensorflow import _release as _  # first, because it says what is missing

# ruff: isort: split
from gradlane import (
    Average,
    Error,
    Max,
    Min,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ReduceOp,
    StallError,
    Sum,
    TimeoutError,
    UnsupportedError,
    WeightedAverage,
    allgather,
    barrier,
    broadcast_object,
    checkpoint,
    init,
    is_initialized,
    layout,
    local_rank,
    local_size,
    metrics,
    modes,
    node_rank,
    num_nodes,
    print_config,
    rank,
    rules,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
    timeline,
    undeclare,
)
from gradlane._compression import Compression
from gradlane.errors import UnusedParametersError
from gradlane.tensorflow._errors import typed_errors
from gradlane.tensorflow.ops import push_pull
from gradlane.tensorflow.optimizer import DistributedOptimizer
from gradlane.tensorflow.server_optimizer import ServerOptimizer
from gradlane.tensorflow.tape import DistributedGradientTape
from gradlane.tensorflow.variables import broadcast_variables

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Error",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ReduceOp",
    "ServerOptimizer",
    "StallError",
    "Sum",
    "TimeoutError",
    "UnsupportedError",
    "UnusedParametersError",
    "WeightedAverage",
    "allgather",
    "barrier",
    "broadcast_object",
    "broadcast_variables",
    "checkpoint",
    "init",
    "is_initialized",
    "layout",
    "local_rank",
    "local_size",
    "metrics",
    "modes",
    "node_rank",
    "num_nodes",
    "print_config",
    "push_pull",
    "rank",
    "rules",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "timeline",
    "typed_errors",
    "undeclare",
]
