"""Brings the variables of all workers to the same values before training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from gradlane import _session
from gradlane._agreement import Agreement
from gradlane._averaging import label
from gradlane._buffers import ITEM_BYTES
from gradlane._operations import check_root
from gradlane._reduction import broadcast_of
from gradlane.errors import InvalidArgumentError
from gradlane.tensorflow._autograph import unconverted
from gradlane.tensorflow._reduce import reduce_all


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0, *, name: str = "variables") -> None:
    """Give every worker the values of `variables` on `root_rank`, bit for bit. Works eagerly and in `tf.function`.

    Args:
        variables: `tf.Variable` or `keras.Variable`; any element type but strings; the same list on all workers.
        root_rank: the rank whose values all workers get.
        name: a prefix of the tensors' names; give one if a function broadcasts several lists.
    Raises:
        MismatchError: a worker has one of them in another dtype or shape (both are named).
        InvalidArgumentError: something in `variables` is no variable, or is not built.
    """
    broadcast_assignments(variables, root_rank, name)


@unconverted
def broadcast_assignments(variables: Iterable[Any], root_rank: int, name: str) -> list[Any]:
    """Does what `broadcast_variables` says; returns what a session of TensorFlow 1 has to run."""
    listed = [variable_of(variable) for variable in variables]
    if _session.passes_over(name, is_broadcast=True):
        return []
    bits = [as_bits(variable.read_value()) for variable in listed]
    kinds = [f"{variable.dtype.base_dtype.name} {variable.shape}" for variable in listed]
    agreement = Agreement(name, [label(*pair) for pair in enumerate(listed)], kinds)
    names = agreement.names(range(len(listed)))
    received = reduce_all(bits, names, broadcast_of(check_root(root_rank)), agreement)
    return [
        variable.assign(of_bits(tensor, variable.dtype.base_dtype))
        for variable, tensor in zip(listed, received, strict=True)
    ]


def as_bits(tensor: Any) -> Any:
    """A tensor with the same bits, of an element type that the engine knows."""
    if tensor.dtype.name in ITEM_BYTES:
        return tensor
    if tensor.dtype == tf.bool:
        return tf.cast(tensor, tf.uint8)
    if tensor.dtype == tf.string or tensor.dtype == tf.variant or tensor.dtype == tf.resource:
        raise InvalidArgumentError(f"a variable of {tensor.dtype.name} cannot be broadcast; leave it out")
    return tf.bitcast(tensor, tf.uint8)


def of_bits(tensor: Any, dtype: Any) -> Any:
    """The inverse of `as_bits`."""
    if tensor.dtype == dtype:
        return tensor
    return tf.cast(tensor, tf.bool) if dtype == tf.bool else tf.bitcast(tensor, dtype)


def variable_of(variable: Any) -> Any:
    """The TensorFlow variable of one of TensorFlow or of Keras."""
    own = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
    if isinstance(own, tf.Variable):
        return own
    raise InvalidArgumentError(
        f"{type(variable).__name__} is no variable of TensorFlow; give model.variables and optimizer.variables, after "
        "both were built"
    )
