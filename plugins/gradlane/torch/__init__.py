"""Gradlane for PyTorch: tensors in and out, on CUDA devices and on the CPU.

    import gradlane.torch as gl

    gl.init()
    model = gl.DistributedDataParallel(model)    # the rest of the training script stays as it is

Ways to average gradients, all over one engine: `DistributedDataParallel` wraps the model, `DistributedOptimizer` the
optimizer, and `ddp_comm_hook` goes under PyTorch's own wrapper. `CrossBarrier` wraps model and optimizer, and lets the
next forward pass begin while gradients are still in flight. `torch.distributed.init_process_group("gradlane")` puts the
engine under everything that uses process groups, such as FSDP2. `fsdp.attach` averages models across nodes that FSDP2
shards inside of them. `Store` is a store for process groups of any backend that no rank has to serve. `ServerOptimizer` trains
asynchronously, with weights that live on the servers. `Embedding`, `EmbeddingBag` and `EmbeddingBagCollection` have rows that live there,
in tables larger than a worker's memory, and `TableOptimizer` trains these. `LocalSGD` exchanges models every few steps, in place of gradients in each.
"""

from __future__ import annotations

from gradlane import (
    Average,
    Error,
    Handle,
    Max,
    Min,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ProcessSet,
    ReduceOp,
    StallError,
    Sum,
    TimeoutError,
    UnsupportedError,
    WeightedAverage,
    barrier,
    checkpoint,
    elastic,
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
from gradlane.errors import UnusedParametersError
from gradlane.modes import SSP, Async, Backup, Sync
from gradlane.torch import exchanges, fsdp
from gradlane.torch import library as _library  # noqa: F401  defines torch.ops.gradlane
from gradlane.torch._group_options import ProcessGroupOptions
from gradlane.torch.broadcast import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from gradlane.torch.compression import Compression
from gradlane.torch.cross_barrier import CrossBarrier
from gradlane.torch.ddp import DistributedDataParallel
from gradlane.torch.embedding import Embedding, EmbeddingBag, TableOptimizer
from gradlane.torch.embedding_bags import EmbeddingBagCollection
from gradlane.torch.groups import (
    grouped_push_pull,
    grouped_push_pull_,
    grouped_push_pull_async,
    grouped_push_pull_async_,
)
from gradlane.torch.hook import State, ddp_comm_hook
from gradlane.torch.local_sgd import LocalSGD
from gradlane.torch.ops import (
    broadcast_,
    declare,
    poll,
    push_pull,
    push_pull_,
    push_pull_async,
    push_pull_async_,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)
from gradlane.torch.optimizer import DistributedOptimizer
from gradlane.torch.process_group import ProcessGroupGradlane, register_backend
from gradlane.torch.server_optimizer import ServerOptimizer
from gradlane.torch.store import Store

__all__ = [
    "SSP",
    "Async",
    "Average",
    "Backup",
    "Compression",
    "CrossBarrier",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "Error",
    "Handle",
    "LocalSGD",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessGroupGradlane",
    "ProcessGroupOptions",
    "ProcessSet",
    "ReduceOp",
    "ServerOptimizer",
    "StallError",
    "State",
    "Store",
    "Sum",
    "Sync",
    "TableOptimizer",
    "TimeoutError",
    "UnsupportedError",
    "UnusedParametersError",
    "WeightedAverage",
    "allgather_object",
    "barrier",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "checkpoint",
    "ddp_comm_hook",
    "declare",
    "elastic",
    "exchanges",
    "fsdp",
    "grouped_push_pull",
    "grouped_push_pull_",
    "grouped_push_pull_async",
    "grouped_push_pull_async_",
    "init",
    "is_initialized",
    "layout",
    "local_rank",
    "local_size",
    "metrics",
    "modes",
    "node_rank",
    "num_nodes",
    "poll",
    "print_config",
    "push_pull",
    "push_pull_",
    "push_pull_async",
    "push_pull_async_",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "register_backend",
    "rules",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "timeline",
    "undeclare",
]

register_backend()
