"""The operations `submit` and `wait` in Python, for platforms and releases where the native ones do not load.

They run wherever TensorFlow runs Python functions, that is everywhere but in compiled (XLA) and in saved graphs. Each
call takes Python's lock, so the native operations disturb a training less.

Both are stateless, because TensorFlow runs stateful Python functions one after the other. Constant folding would run a
stateless one only once if all its inputs were constants. `step`, which must not be constant, prevents that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradlane import _operations
from gradlane._buffers import check_dtype
from gradlane._handle import Handle
from gradlane._reduction import Reduction
from gradlane.tensorflow._errors import python_function
from gradlane.tensorflow._memory import aligned, place_of

_numbers = itertools.count(1)

_pending: dict[int, tuple[str, Handle[np.ndarray[Any, Any]] | Exception]] = {}
"""By number: the name and the operation, or the error that kept it from beginning."""

_latest: dict[str, int] = {}
"""By name: the number of its latest operation."""


def submit(tensor: Any, name: str, step: Any, reduction: Reduction) -> Any:
    """Starts an operation on the value of `tensor` when the graph runs.

    Args:
        tensor: dense, of an element type that the engine knows.
        name: equal on all workers.
        step: a scalar that is not constant.
        reduction: how it is reduced; among all workers.
    Returns:
        A scalar of int64 for `wait`. It never fails; an error is raised where it is waited for.
    """
    dtype = tensor.dtype.name

    def begin(array: np.ndarray[Any, Any], _: Any) -> np.int64:
        return np.int64(_begin(array, dtype, name, reduction))

    handle = tf.numpy_function(python_function(begin), [tensor, step], tf.int64, stateful=False)
    handle.set_shape([])
    return handle


def wait(handles: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Waits for operations when the graph runs.

    Args:
        handles: from `submit`, at least one; each may be waited for once.
        like: the tensors that were submitted, for dtypes and shapes.
    Returns:
        The results. If operations failed, the first error is raised after all have ended.
    """

    def finish(numbers: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        return _finish(numbers.tolist())

    results: list[Any] = tf.numpy_function(
        python_function(finish), [tf.stack(list(handles))], [tensor.dtype for tensor in like], stateful=False
    )
    for result, tensor in zip(results, like, strict=True):
        result.set_shape(tensor.shape)
    return results


def _begin(array: np.ndarray[Any, Any], dtype: str, name: str, reduction: Reduction) -> int:
    number = next(_numbers)
    _forget(name)
    operation: Handle[np.ndarray[Any, Any]] | Exception
    try:
        source = np.ascontiguousarray(array).reshape(array.shape)  # the former makes scalars vectors
        target = aligned(source.shape, source.dtype)
        operation = _operations.submit(
            name, place_of(source, check_dtype(dtype)), place_of(target, dtype), reduction, result=target
        )
    except Exception as error:
        operation = error
    _pending[number] = name, operation
    _latest[name] = number
    return number


def _finish(numbers: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    results: list[np.ndarray[Any, Any]] = []
    first: Exception | None = None
    for number in numbers:
        _, operation = _pending.pop(number)
        try:
            if isinstance(operation, Exception):
                raise operation
            results.append(operation.wait())
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
    return results


def _forget(name: str) -> None:
    """Drops an earlier operation of this name that nobody waited for, because its graph failed elsewhere."""
    number = _latest.pop(name, None)
    if number is not None and number in _pending:
        operation = _pending[number][1]
        if isinstance(operation, Exception) or operation.poll():
            _pending.pop(number, None)
