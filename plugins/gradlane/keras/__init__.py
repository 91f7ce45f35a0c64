"""Gradlane for Keras 3, with TensorFlow, PyTorch or JAX as its backend.

    import gradlane.keras as gl

    gl.init()
    model.compile(optimizer=gl.DistributedOptimizer(keras.optimizers.Adam(1e-3 * gl.size())), loss=...)
    model.fit(data, callbacks=[gl.callbacks.BroadcastGlobalVariablesCallback(0), gl.callbacks.MetricAverageCallback()])

`Embedding` is a layer whose rows live on the servers.
"""

from __future__ import annotations

from gradlane.keras import _release as _  # first, because it says what is missing

# ruff: isort: split
from gradlane import (
    Average,
    Error,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ReduceOp,
    StallError,
    Sum,
    TimeoutError,
    UnsupportedError,
    allgather,
    barrier,
    broadcast_object,
    init,
    is_initialized,
    layout,
    local_rank,
    local_size,
    metrics,
    node_rank,
    num_nodes,
    rank,
    rules,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
    timeline,
)
from gradlane._compression import Compression
from gradlane.errors import UnusedParametersError
from gradlane.keras import callbacks
from gradlane.keras._values import broadcast_variables
from gradlane.keras.embedding import Embedding
from gradlane.keras.optimizer import DistributedOptimizer
from gradlane.keras.saving import load_model

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Embedding",
    "Error",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ReduceOp",
    "StallError",
    "Sum",
    "TimeoutError",
    "UnsupportedError",
    "UnusedParametersError",
    "allgather",
    "barrier",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "init",
    "is_initialized",
    "layout",
    "load_model",
    "local_rank",
    "local_size",
    "metrics",
    "node_rank",
    "num_nodes",
    "rank",
    "rules",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "timeline",
]
