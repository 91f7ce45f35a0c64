"""`byteps.tensorflow.keras`: the same as `byteps.keras`, because Keras is one package now."""

from __future__ import annotations

from gradlane.compat.byteps.keras import (
    Compression,
    DistributedOptimizer,
    broadcast,
    broadcast_global_variables,
    init,
    load_model,
    local_rank,
    local_size,
    push_pull,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from gradlane.compat.byteps.tensorflow.keras import callbacks

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "init",
    "load_model",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
