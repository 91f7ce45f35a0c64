"""Averages lists of gradients, with their errors, for the tape and for optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradlane import _agreement, _session
from gradlane._agreement import Agreement
from gradlane._averaging import Averaging, label, path_of
from gradlane.tensorflow._dense import dense
from gradlane.tensorflow._reduce import reduce_all


def average(gradients: Sequence[Any], variables: Sequence[Any], namespace: str, how: Averaging) -> list[Any]:
    """Averages the gradients of a list of variables over all workers.

    Args:
        gradients: for each variable a tensor, `tf.IndexedSlices`, or None.
        variables: the same on all workers, in the same order.
        namespace: a prefix of all names, equal on all workers.
    Returns:
        The averages, and None where no worker has a gradient.
    Raises:
        UnusedParametersError: some workers have no gradient for a variable that has one on others.
        MismatchError: the gradients of a variable differ in dtype or shape, or only some are sparse.
    """
    _agreement.check_in_step()
    present = {i: _prepared(gradient, how) for i, gradient in enumerate(gradients) if gradient is not None}
    if _session.is_alone():  # a graph would keep the size that it was traced with, and an elastic job may grow
        return [present.get(i) for i in range(len(gradients))]
    kinds = [_kind(present[i]) if i in present else None for i in range(len(gradients))]
    labels = [label(i, variable) for i, variable in enumerate(variables)]
    rows = ((path_of(i, variables[i]), gradient.dtype.name, _shape(gradient)) for i, gradient in present.items())
    reduction = how.reduction_of(rows)
    agreement = Agreement(namespace, labels, kinds)
    names = agreement.names(present)
    averages = dict(zip(present, reduce_all(list(present.values()), names, reduction, agreement), strict=True))
    return [averages.get(i) for i in range(len(gradients))]


def _prepared(gradient: Any, how: Averaging) -> Any:
    gradient = dense(gradient)
    if how.sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    return gradient


def _shape(gradient: Any) -> tuple[int, ...] | None:
    if isinstance(gradient, tf.IndexedSlices) or not gradient.shape.is_fully_defined():
        return None
    return tuple(gradient.shape)


def _kind(gradient: Any) -> str:
    if isinstance(gradient, tf.IndexedSlices):
        return f"sparse {gradient.dtype.name} {_extents(gradient.values.shape[1:])}"
    return f"{gradient.dtype.name} {_extents(gradient.shape)}"


def _extents(shape: Any) -> str:
    return "?" if shape.rank is None else "[" + ", ".join("?" if e is None else str(e) for e in shape) + "]"
