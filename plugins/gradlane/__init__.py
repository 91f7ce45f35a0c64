"""Gradlane sums gradients over the workers of a training job.

This module works with any buffer and imports no framework; `gradlane.torch` offers the same and more for PyTorch.

    import gradlane
    import numpy as np

    gradlane.init()
    gradients = np.ones(1000, np.float32)
    gradlane.push_pull(gradients, "gradients")    # their average over all workers, in place
"""

from __future__ import annotations

from gradlane import checkpoint, elastic, modes, parameters, rules, timeline
from gradlane._collectives import (
    all_gather,
    all_gather_async,
    all_to_all,
    all_to_all_async,
    recv,
    recv_async,
    reduce,
    reduce_async,
    reduce_scatter,
    reduce_scatter_async,
    send,
    send_async,
)
from gradlane._compression import Compression
from gradlane._core import __version__
from gradlane._groups import grouped_push_pull, grouped_push_pull_async
from gradlane._handle import Handle, wait_any
from gradlane._objects import allgather, broadcast_object
from gradlane._operations import barrier, broadcast, declare, push_pull, push_pull_async, undeclare
from gradlane._reduction import Average, Max, Min, ReduceOp, Sum, WeightedAverage
from gradlane._server import Server
from gradlane._session import (
    init,
    is_initialized,
    local_rank,
    local_size,
    node_rank,
    num_nodes,
    rank,
    shutdown,
    size,
)
from gradlane._sets import ProcessSet
from gradlane._status import layout, metrics, metrics_text, print_config, show_versions
from gradlane.errors import (
    AbortedError,
    AuthError,
    CancelledError,
    CertExpiredError,
    ChecksumError,
    ConfigError,
    CorruptCheckpointError,
    DeviceError,
    DuplicateRankError,
    Error,
    FailedPreconditionError,
    FencedError,
    ForkedProcessError,
    IncompatibleError,
    InternalError,
    InvalidArgumentError,
    MismatchError,
    NotFiniteError,
    NotFormedError,
    NotFoundError,
    NotInitializedError,
    PeerLostError,
    ProtocolError,
    QuorumLostError,
    ResourceExhaustedError,
    RootLostError,
    ServerUnreachableError,
    StallError,
    StillRunningError,
    TimeoutError,
    TokenError,
    UnavailableError,
    UnresponsiveError,
    UnsupportedError,
    UnusedParametersError,
)
from gradlane.kv import KVWorker
from gradlane.modes import SSP, Async, Backup, Sync
from gradlane.timeline import start_timeline, stop_timeline

__all__ = [
    "SSP",
    "AbortedError",
    "Async",
    "AuthError",
    "Average",
    "Backup",
    "CancelledError",
    "CertExpiredError",
    "ChecksumError",
    "Compression",
    "ConfigError",
    "CorruptCheckpointError",
    "DeviceError",
    "DuplicateRankError",
    "Error",
    "FailedPreconditionError",
    "FencedError",
    "ForkedProcessError",
    "Handle",
    "IncompatibleError",
    "InternalError",
    "InvalidArgumentError",
    "KVWorker",
    "Max",
    "Min",
    "MismatchError",
    "NotFiniteError",
    "NotFormedError",
    "NotFoundError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSet",
    "ProtocolError",
    "QuorumLostError",
    "ReduceOp",
    "ResourceExhaustedError",
    "RootLostError",
    "Server",
    "ServerUnreachableError",
    "StallError",
    "StillRunningError",
    "Sum",
    "Sync",
    "TimeoutError",
    "TokenError",
    "UnavailableError",
    "UnresponsiveError",
    "UnsupportedError",
    "UnusedParametersError",
    "WeightedAverage",
    "__version__",
    "all_gather",
    "all_gather_async",
    "all_to_all",
    "all_to_all_async",
    "allgather",
    "barrier",
    "broadcast",
    "broadcast_object",
    "checkpoint",
    "declare",
    "elastic",
    "grouped_push_pull",
    "grouped_push_pull_async",
    "init",
    "is_initialized",
    "layout",
    "local_rank",
    "local_size",
    "metrics",
    "metrics_text",
    "modes",
    "node_rank",
    "num_nodes",
    "parameters",
    "print_config",
    "push_pull",
    "push_pull_async",
    "rank",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reduce_scatter",
    "reduce_scatter_async",
    "rules",
    "send",
    "send_async",
    "show_versions",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "timeline",
    "undeclare",
    "wait_any",
]
