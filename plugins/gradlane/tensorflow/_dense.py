"""Which tensors can be reduced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gradlane._buffers import check_dtype
from gradlane.errors import InvalidArgumentError


def dense(tensor: Any) -> Any:
    """The tensor of a value that is to be reduced; `tf.IndexedSlices` stay as they are.

    Raises:
        InvalidArgumentError: it is ragged or sparse, or of an element type that cannot be reduced.
    """
    if isinstance(tensor, tf.IndexedSlices):
        check_dtype(tensor.dtype.name)
        return tensor
    if isinstance(tensor, tf.RaggedTensor):
        raise InvalidArgumentError("a ragged tensor cannot be reduced; use tensor.to_tensor(), or reduce flat_values")
    if isinstance(tensor, tf.SparseTensor):
        raise InvalidArgumentError("a SparseTensor cannot be reduced; use tf.sparse.to_dense(tensor)")
    tensor = tf.convert_to_tensor(tensor)
    check_dtype(tensor.dtype.name)
    return tensor
