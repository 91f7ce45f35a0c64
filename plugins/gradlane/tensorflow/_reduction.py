"""What is done to tensors, and which tensors it can be done to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gradlane._buffers import check_dtype
from gradlane._reduction import NativeOp
from gradlane.errors import InvalidArgumentError


@dataclass(frozen=True)
class Reduction:
    """An operation of the engine with its options; `gradlane._operations.submit` says what they mean."""

    op: NativeOp = "mean"
    root: int = 0
    weight: float = 1.0
    priority: int = 0
    """Of the first tensor of a list; each further one has one less."""
    codec: str = "none"
    timeout: float | None = None

    def options(self, priority: int) -> dict[str, Any]:
        """The arguments for one tensor."""
        return {
            "op": self.op,
            "root": self.root,
            "weight": self.weight,
            "priority": priority,
            "codec": self.codec,
            "timeout": self.timeout,
        }


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
