"""Memory of TensorFlow's tensors without copies, where TensorFlow allows that.

TensorFlow takes memory that NumPy has allocated over without a copy if it begins at a multiple of 64 bytes. It lends
the memory of a tensor as a NumPy array that keeps the tensor alive.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from gradlane._buffers import HostBuffer

_ALIGNMENT = 64

_SMALL_BYTES = 16 << 10
"""Up to here a copy is faster than DLPack."""


def place_of(array: np.ndarray[Any, Any], dtype: str) -> HostBuffer:
    """The memory of a contiguous array."""
    return HostBuffer(array.ctypes.data, dtype, array.shape, array)


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """A new array that TensorFlow takes over without a copy."""
    bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    array: np.ndarray[Any, Any] = memory[start : start + bytes].view(dtype).reshape(shape)
    return array


def lent(tensor: Any) -> np.ndarray[Any, Any]:
    """The values of an eager tensor, read-only, and contiguous; without a copy if they are in host memory."""
    array = np.asarray(tensor)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def taken(array: np.ndarray[Any, Any], dtype: Any) -> Any:
    """The eager tensor of an array from `aligned`, which must not be changed any more."""
    if array.nbytes <= _SMALL_BYTES:
        return tf.convert_to_tensor(array, dtype)
    if dtype == tf.bfloat16:  # NumPy's DLPack does not know it
        return tf.bitcast(tf.experimental.dlpack.from_dlpack(array.view(np.uint16).__dlpack__()), dtype)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
