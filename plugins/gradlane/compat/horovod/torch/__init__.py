"""`horovod.torch`: the names, positional arguments and defaults of Horovod, over `gradlane.torch`."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import torch

import gradlane.torch as gl
from gradlane import Average, Max, Min, Sum, _session
from gradlane.compat.horovod.common import (
    ProcessSet,
    add_process_set,
    check_added,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    members_of,
    rank,
    remove_process_set,
    root_of,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from gradlane.compat.horovod.torch import elastic
from gradlane.compat.horovod.torch._calls import Adasum, checked_op
from gradlane.compat.horovod.torch.compression import Compression
from gradlane.compat.horovod.torch.exchanges import (
    alltoall,
    alltoall_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from gradlane.compat.horovod.torch.ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    poll,
    synchronize,
)
from gradlane.compat.horovod.torch.sparse import sparse_allreduce_async
from gradlane.errors import Error as HorovodInternalError
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch.compression import Compressor

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

_MISSING = {
    "Product": "multiply what allgather returns",
    "SyncBatchNorm": 'on GPUs use torch.nn.SyncBatchNorm after torch.distributed.init_process_group("gradlane")',
}
"""Names of Horovod that there are not, each with what to use instead."""

_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
"""The distributed optimizers of this process, for `join`."""


def DistributedOptimizer(
    optimizer: Kind,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Kind:
    """Makes `optimizer` average its gradients over all workers; see `gradlane.torch.DistributedOptimizer`.

    `num_groups` and `groups` change no result, and the engine joins and cuts messages by its own rules. A
    `gradient_predivide_factor` changes none either, because sums of 16-bit floats are made in float32.

    With a `process_set`, its workers average among themselves, and a worker outside of it steps on its own gradients.

    `step()` after `synchronize()` warns unless it is inside of `skip_synchronize()`, as in Horovod.

    Raises:
        InvalidArgumentError: see `gradlane.torch.DistributedOptimizer`; or a factor with another `op` than `Average`, or
            something else than groups of tensors.
    """
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise InvalidArgumentError(f"gradient_predivide_factor={gradient_predivide_factor} needs op=Average")
    _check_groups(num_groups if groups is None else groups)
    members = check_added(process_set).members
    named = None if named_parameters is None else list(named_parameters)
    distributed = gl.DistributedOptimizer(
        optimizer,
        named,
        compression,
        backward_passes_per_step,
        checked_op(op) or Average,
        sparse_as_dense=sparse_as_dense,
        process_set=members if process_set.included() else gl.ProcessSet([gl.rank()]),
    )
    distributed._parameter_names = _names_of(distributed, named)  # type: ignore[attr-defined]  # scripts read it
    _optimizers.add(distributed)
    _warn_of_second_synchronize(distributed)
    return distributed


def _names_of(optimizer: Any, named: Sequence[tuple[str, torch.Tensor]] | None) -> dict[torch.Tensor, str]:
    """The name of each parameter, as Horovod gives them."""
    if named is not None:
        return {parameter: name for name, parameter in named}
    return {
        parameter: f"allreduce.noname.{group}.{position}"
        for group, members in enumerate(optimizer.param_groups)
        for position, parameter in enumerate(members["params"])
    }


def _check_groups(groups: object) -> None:
    is_count = isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0
    members = [member for group in groups for member in group] if isinstance(groups, list) else None
    if not is_count and members is None:
        raise InvalidArgumentError(f"groups={groups!r}; give a number of groups, or a list of lists of torch.Tensor")
    if members is not None and not all(isinstance(member, torch.Tensor) for member in members):
        raise InvalidArgumentError("groups must consist of torch.Tensor")
    if members is not None and len(set(map(id, members))) < len(members):
        raise InvalidArgumentError("a parameter can only appear once in groups")


def _warn_of_second_synchronize(optimizer: Any) -> None:
    """Makes `step()` warn if the script has called `synchronize()` and the averages may be awaited once more."""
    awaited = False
    # Weakly, because the optimizer keeps these functions, and the averaging ends with its last reference.
    reference, kind = weakref.ref(optimizer), type(optimizer)
    skips = 0

    def noted() -> None:
        nonlocal awaited
        kind.synchronize(reference())
        awaited = True

    @contextlib.contextmanager
    def skipped() -> Iterator[None]:
        nonlocal skips
        skips += 1
        try:
            with kind.skip_synchronize(reference()):
                yield
        finally:
            skips -= 1

    def before_step(*_: object) -> None:
        nonlocal awaited
        if awaited and not skips:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "The averages are awaited once more, and what was changed in between is kept; use "
                "`with optimizer.skip_synchronize(): optimizer.step()`",
                stacklevel=3,
            )
        awaited = False

    optimizer.synchronize, optimizer.skip_synchronize = noted, skipped
    optimizer.register_step_pre_hook(before_step)


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every worker the tensors of `root_rank`, a rank in the job, in place, bit for bit."""
    gl.broadcast_parameters(params, root_of(root_rank), process_set=members_of(process_set))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: object = None) -> None:
    """Gives every worker the optimizer state of `root_rank`; `model` is not needed."""
    del model
    gl.broadcast_optimizer_state(optimizer, root_of(root_rank))


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Gives every worker the object of `root_rank`, a rank in the job, and returns it."""
    return gl.broadcast_object(obj, root_of(root_rank), name or "object", process_set=members_of(process_set))


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Gives every worker the objects of all, in rank order."""
    return gl.allgather_object(obj, name or "allgather_object", process_set=members_of(process_set))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every worker has come."""
    gl.barrier("horovod", process_set=members_of(process_set))


def join(device: int = -1) -> int:
    """Says that this worker has no more data, and adds zeros to the steps of the others until none has any.

    The zeros are those of the one `DistributedOptimizer` of this process; other operations of workers that still have
    data wait for this worker, and end with an error. As in Horovod, an average is divided by the number of all workers.

    Args:
        device: has no effect.
    Returns:
        A rank that was among the last ones with data, equal on all workers.
    Raises:
        UnsupportedError: there is no `DistributedOptimizer`, or more than one.
        NotInitializedError: before `init()`.
    """
    del device
    _session.session()  # raises before `init()`
    if len(_optimizers) != 1:
        raise UnsupportedError(
            f"join with {len(_optimizers)} distributed optimizers; it takes part in the steps of one. Call join() of each "
            "optimizer, or give all workers the same number of batches"
        )
    [optimizer] = _optimizers
    last: int = optimizer.join()
    return last


def mpi_threads_supported() -> bool:
    """Whether MPI is used with threads: it is not used."""
    return False


def mpi_enabled() -> bool:
    """Whether MPI carries the data: it does not."""
    return False


def mpi_built() -> bool:
    """Whether MPI is built in: it is not."""
    return False


def gloo_enabled() -> bool:
    """Whether Gloo carries the data: it does not."""
    return False


def gloo_built() -> bool:
    """Whether Gloo is built in: it is not."""
    return False


def nccl_built() -> int:
    """The version of NCCL that is built in: none; it is loaded at run time where there are GPUs."""
    return 0


def cuda_built() -> bool:
    """Whether CUDA is built in: it is not; the driver is loaded at run time where there are GPUs."""
    return False


def rocm_built() -> bool:
    """Whether ROCm is built in: it is not."""
    return False


def ccl_built() -> bool:
    """Whether oneCCL is built in: it is not."""
    return False


def ddl_built() -> bool:
    """Whether IBM's DDL is built in: it is not."""
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of workers is a power of two, which matters to `Adasum` alone."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def __getattr__(name: str) -> NoReturn:
    """Refuses what Horovod has and Gradlane lacks.

    Raises:
        UnsupportedError: Horovod has the name; the message says what to use instead.
        AttributeError: Horovod has no such name.
    """
    if name in _MISSING:
        raise UnsupportedError(f"horovod.torch.{name} does not exist here; {_MISSING[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
