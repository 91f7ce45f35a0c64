"""Sums sparse gradients by gathering the indices and values of all workers.

A worker sends its own rows once and receives the rows of all workers: 8 bytes for each index, and the values, with at
most a twentieth or 255 bytes more (`gradlane._objects`). So what it receives grows with the workers. With many of them,
or where a batch uses most rows, a dense sum is cheaper; `sparse="dense"` of the wrappers makes one. A gradient on a
CUDA device goes through host memory. This waits for its stream, because the number of rows is known only then.
"""

from __future__ import annotations

import ctypes
import math

import torch

from gradlane._handle import Handle
from gradlane._objects import Gathering
from gradlane._reduction import ReduceOp, Reduction
from gradlane._rows import RowKind, unpack
from gradlane.errors import InvalidArgumentError
from gradlane.torch import _tensors

_INDEX_BYTES = 8


class SparseTransfer:
    """One sparse gradient in flight: construction sends lengths, `exchange` sends contents, `wait` returns the sum."""

    def __init__(self, gradient: torch.Tensor, name: str, reduction: Reduction) -> None:
        """Starts to gather `gradient`, of layout sparse_coo, from the workers that take part.

        Raises:
            InvalidArgumentError: it is neither an average nor a sum.
        """
        if not reduction.is_linear:
            op = ReduceOp(reduction.op).name
            raise InvalidArgumentError(f"sparse gradients have no {op}; use Average or Sum, or dense gradients")
        gradient = gradient.detach().coalesce()
        self._shape, self._dtype, self._device = gradient.shape, gradient.dtype, gradient.device
        self._sparse_dim = gradient.sparse_dim()
        self._name, self._is_mean = name, reduction.op == "mean"
        dimensions = "" if self._sparse_dim == 1 else f", {self._sparse_dim} dimensions of it sparse"
        kind = RowKind(_tensors.dtype_name(self._dtype), f"{list(self._shape)}{dimensions}")
        content = kind.pack(content_of(gradient.indices()), content_of(gradient.values()))
        self._gathering = Gathering(content, name, process_set=reduction.process_set)

    def exchange(self) -> None:
        """Waits for the lengths and starts the transfer of the contents."""
        self._gathering.exchange()

    def wait(self) -> torch.Tensor:
        """The sum or average, coalesced; bitwise equal on all workers, because all add the same rows in rank order.

        Raises:
            MismatchError: workers use different shapes or element types.
        """
        received = self._gathering.received()
        contents = unpack(list(received.values()), self._name, list(received))
        divisor = len(received) if self._is_mean else 1
        parts = [self._parse(content) for content in contents]
        indices = torch.cat([indices for indices, _ in parts], dim=1)
        values = torch.cat([values for _, values in parts])
        indices, values = indices.to(self._device), (values / divisor).to(self._device)
        # Each worker's own tensor was valid, and all have this shape.
        summed = torch.sparse_coo_tensor(indices, values, self._shape, dtype=self._dtype, check_invariants=False)
        return summed.coalesce()

    def _parse(self, content: memoryview) -> tuple[torch.Tensor, torch.Tensor]:
        row_shape = self._shape[self._sparse_dim :]
        row_bytes = math.prod(row_shape) * self._dtype.itemsize
        rows = len(content) // (_INDEX_BYTES * self._sparse_dim + row_bytes)
        if rows == 0:  # torch.frombuffer refuses empty buffers
            return torch.empty((self._sparse_dim, 0), dtype=torch.int64), torch.empty(
                (0, *row_shape), dtype=self._dtype
            )
        index_count = rows * self._sparse_dim
        indices = torch.frombuffer(content, dtype=torch.int64, count=index_count)
        values = torch.frombuffer(content, dtype=self._dtype, offset=index_count * _INDEX_BYTES)
        return indices.view(self._sparse_dim, rows), values.view(rows, *row_shape)


def content_of(tensor: torch.Tensor) -> bytes:
    """The values of a tensor of any strides and on any device, as bytes."""
    tensor = _tensors.dense(tensor.cpu())
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""
