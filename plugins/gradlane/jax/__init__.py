"""Gradlane for JAX: trees of arrays in and out, eagerly and under `jax.jit`. Experimental: names may still change.

    import gradlane.jax as gl
    import optax

    gl.init()
    params = gl.broadcast(params)
    optimizer = optax.chain(gl.push_pull_gradients(), optax.adam(1e-3))    # the rest of the script stays as it is

Each process computes by itself, on one device, and `push_pull` reduces over the processes. That is for clusters without
a fast network between all devices, and for models that fit on one device. Inside one pod, JAX's own sharding does more.

Arrays of the CPU are reduced from and into XLA's memory, without copies, in one call for a whole tree. Arrays of other
devices go through host memory and Python.

`ServerOptimizer` trains parameters that live on the servers, in each of `gradlane.modes`. `pull`, `push` and `look` use the rows of a
`Table` on the servers.
"""

from __future__ import annotations

from gradlane.jax import _release as _  # noqa: F401  first, because it says what is missing

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
from gradlane.jax._errors import typed_errors
from gradlane.jax.gradients import push_pull_gradients
from gradlane.jax.ops import broadcast, push_pull
from gradlane.jax.server_optimizer import ServerOptimizer
from gradlane.jax.table_rows import look, pull, push
from gradlane.tables import Table

__all__ = [
    "Average",
    "Compression",
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
    "Table",
    "TimeoutError",
    "UnsupportedError",
    "WeightedAverage",
    "allgather",
    "barrier",
    "broadcast",
    "broadcast_object",
    "checkpoint",
    "init",
    "is_initialized",
    "layout",
    "local_rank",
    "local_size",
    "look",
    "metrics",
    "modes",
    "node_rank",
    "num_nodes",
    "print_config",
    "pull",
    "push",
    "push_pull",
    "push_pull_gradients",
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
