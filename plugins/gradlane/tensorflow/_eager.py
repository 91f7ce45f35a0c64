"""Reductions of eager tensors, straight from and into their memory, in one call for a whole list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradlane._agreement import Agreement
from gradlane._groups import submit_all
from gradlane._handle import Handle
from gradlane._reduction import Reduction
from gradlane.tensorflow import _sparse, _step
from gradlane.tensorflow._memory import aligned, lent, taken


def reduce_all(
    tensors: Sequence[Any], names: Sequence[str], reduction: Reduction, agreement: Agreement | None
) -> list[Any]:
    """Reduces all `tensors`, dense or `tf.IndexedSlices`. Failures have classes of `gradlane.errors`."""
    results: list[Any] = [None] * len(tensors)
    sparse = {
        position: _sparse.SparseTransfer(slices.values.numpy(), slices.indices.numpy(), name, reduction)
        for position, (slices, name) in enumerate(zip(tensors, names, strict=True))
        if isinstance(slices, tf.IndexedSlices)
    }
    dense = [position for position in range(len(tensors)) if position not in sparse]
    begun = None
    if dense:
        chosen = [tensors[i] for i in dense], tuple(names[i] for i in dense), reduction.among(dense)
        begun = _begin(*chosen, agreement is None)
    if agreement is not None:
        try:
            agreement.check(agreement.begin().wait())
        except Exception:
            _step.mark_out_of_step()
            raise
    for position, array in zip(dense, begun.wait() if begun is not None else [], strict=True):
        results[position] = taken(array, tensors[position].dtype)
    for position, (values, indices) in zip(sparse, _sparse.complete(list(sparse.values())), strict=True):
        slices = tensors[position]
        results[position] = tf.IndexedSlices(
            taken(values, slices.values.dtype), tf.constant(indices, slices.indices.dtype), slices.dense_shape
        )
    return results


def _begin(
    tensors: Sequence[Any], names: tuple[str, ...], reduction: Reduction, waits: bool
) -> Handle[list[np.ndarray[Any, Any]]]:
    sources = [lent(tensor) for tensor in tensors]
    targets = [aligned(source.shape, source.dtype) for source in sources]
    return submit_all(
        names,
        tuple(tensor.dtype.name for tensor in tensors),
        tuple(source.shape for source in sources),
        [source.ctypes.data for source in sources],
        [target.ctypes.data for target in targets],
        reduction,
        owner=(sources, targets),
        result=targets,
        waits=waits,
    )
