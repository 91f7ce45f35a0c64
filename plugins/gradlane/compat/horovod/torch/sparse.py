"""`horovod.torch.sparse_allreduce_async`: reduces a sparse tensor by gathering the rows of all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradlane._reduction import reduction_of
from gradlane.compat.horovod.common import ProcessSet, global_process_set, members_of
from gradlane.compat.horovod.torch._calls import checked_op
from gradlane.errors import InvalidArgumentError
from gradlane.torch._sparse import SparseTransfer


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: Any, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begins the reduction of a sparse tensor; the function that it returns waits and yields a new sparse tensor.

    Args:
        tensor: of layout `torch.sparse_coo`, of one shape on all workers; the number of its rows may differ.
        name: equal on all workers.
        op: `Average` or `Sum`.
        process_set: the workers that take part, of which this one is a member. All of them must call the functions of
            several tensors in the same order.
    Raises:
        InvalidArgumentError: the tensor is not sparse, or `op` is another one.
    """
    reduction = reduction_of(checked_op(op), process_set=members_of(process_set))
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise InvalidArgumentError("sparse_allreduce_async takes a tensor of layout torch.sparse_coo; use allreduce")
    transfer = SparseTransfer(tensor, f"sparse_allreduce.{name}", reduction)

    def complete() -> torch.Tensor:
        transfer.exchange()
        return transfer.wait()

    return complete
