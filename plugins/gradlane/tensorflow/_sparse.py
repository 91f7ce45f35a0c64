"""Sums sparse gradients (`tf.IndexedSlices`) by gathering the indices and values of all workers.

A worker sends its own rows once and receives the rows of all workers: 8 bytes for each index, and the values, with at
most a twentieth or 255 bytes more (`gradlane._objects`). So what it receives grows with the workers. With many of them,
or where a batch uses most rows, a dense sum is cheaper; `sparse_as_dense=True` makes one. These operations always run in Python, because the number of rows is known only then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradlane._handle import Handle
from gradlane._objects import Gathering
from gradlane._reduction import Reduction
from gradlane._rows import RowKind, unpack
from gradlane.errors import InvalidArgumentError
from gradlane.tensorflow._errors import python_function
from gradlane.tensorflow._memory import aligned

_INDEX = np.dtype(np.int64)

Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""The values of rows, and their indices."""

_numbers = itertools.count(1)
_pending: dict[int, SparseTransfer | Exception] = {}


class SparseTransfer:
    """One sparse gradient in flight: construction sends lengths, `exchange` sends contents, `wait` returns the sum."""

    def __init__(
        self, values: np.ndarray[Any, Any], indices: np.ndarray[Any, Any], name: str, reduction: Reduction
    ) -> None:
        """Starts to gather rows.

        Args:
            values: a row for each index, of one shape on all workers.
            indices: of any integer type.
            reduction: a sum or a mean, over all workers.
        """
        self._row_shape, self._dtype, self._index_dtype = values.shape[1:], values.dtype, indices.dtype
        self._name, self._is_mean = name, reduction.op == "mean"
        kind = RowKind(self._dtype.name, f"[rows, {', '.join(map(str, self._row_shape))}]")
        content = kind.pack(np.ascontiguousarray(indices, _INDEX).tobytes(), np.ascontiguousarray(values).tobytes())
        self._gathering = Gathering(content, f"{name}/rows")

    def exchange(self) -> None:
        """Waits for the lengths and starts the transfer of the contents."""
        self._gathering.exchange()

    def wait(self) -> Rows:
        """The rows of all workers in rank order, divided for a mean; the same on all workers, bit by bit.

        Raises:
            MismatchError: workers use rows of different shapes or element types.
        """
        received = self._gathering.received()
        parts = [self._parse(content) for content in unpack(list(received.values()), self._name, list(received))]
        total = sum(len(indices) for _, indices in parts)
        values = aligned((total, *self._row_shape), self._dtype)
        np.concatenate([values for values, _ in parts], out=values)
        if self._is_mean and len(received) > 1:
            values[...] = values // len(received) if values.dtype.kind in "iu" else values / len(received)
        return values, np.concatenate([indices for _, indices in parts]).astype(self._index_dtype)

    def _parse(self, content: memoryview) -> Rows:
        rows = len(content) // (_INDEX.itemsize + math.prod(self._row_shape) * self._dtype.itemsize)
        data = np.frombuffer(content, np.uint8)
        split = rows * _INDEX.itemsize
        return data[split:].view(self._dtype).reshape(rows, *self._row_shape), data[:split].view(_INDEX)


def complete(transfers: Sequence[SparseTransfer]) -> list[Rows]:
    """Completes several transfers, with one round trip for all lengths and one for all contents."""
    for transfer in transfers:
        transfer.exchange()
    return [transfer.wait() for transfer in transfers]


def submit(slices: Any, name: str, step: Any, reduction: Reduction) -> Any:
    """Starts a transfer when the graph runs; see `_fallback.submit`."""

    def begin(values: np.ndarray[Any, Any], indices: np.ndarray[Any, Any], _: Any) -> np.int64:
        number = next(_numbers)
        try:
            _pending[number] = SparseTransfer(values, indices, name, reduction)
        except Exception as error:
            _pending[number] = error
        return np.int64(number)

    handle = tf.numpy_function(python_function(begin), [slices.values, slices.indices, step], tf.int64, stateful=False)
    handle.set_shape([])
    return handle


def wait(handles: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Waits for transfers when the graph runs; see `_fallback.wait`."""

    def finish(numbers: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        transfers = [_pending.pop(number) for number in numbers.tolist()]
        begun = [transfer for transfer in transfers if isinstance(transfer, SparseTransfer)]
        for failed in transfers:
            if isinstance(failed, Exception):
                raise failed
        return [array for rows in complete(begun) for array in rows]

    dtypes = [dtype for slices in like for dtype in (slices.values.dtype, slices.indices.dtype)]
    flat = tf.numpy_function(python_function(finish), [tf.stack(list(handles))], dtypes, stateful=False)
    for values, indices, slices in zip(flat[::2], flat[1::2], like, strict=True):
        values.set_shape([None, *slices.values.shape[1:]])
        indices.set_shape([None])
    return [
        tf.IndexedSlices(values, indices, slices.dense_shape)
        for values, indices, slices in zip(flat[::2], flat[1::2], like, strict=True)
    ]


def check_linear(reduction: Reduction) -> None:
    """Raises InvalidArgumentError if the reduction is neither a sum nor a mean, which sparse gradients do not have."""
    if not reduction.is_linear:
        op = reduction.op
        raise InvalidArgumentError(f"sparse gradients have no {op}; use Average or Sum, or tf.convert_to_tensor")
