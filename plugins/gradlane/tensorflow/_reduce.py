"""Reduces lists of tensors, in graphs and eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradlane import _agreement
from gradlane._agreement import Agreement
from gradlane.tensorflow import _eager, _graph
from gradlane.tensorflow._reduction import Reduction


def reduce_all(
    tensors: Sequence[Any], names: Sequence[str], reduction: Reduction, agreement: Agreement | None = None
) -> list[Any]:
    """Reduces the tensors of a list together.

    Args:
        tensors: dense, or `tf.IndexedSlices` for `sum` and `mean`.
        names: equal on all workers, each once.
        agreement: what these gradients are on this worker, if other workers may have others.
    Raises:
        NotInitializedError: this process takes part in no job.
        InvalidArgumentError: a tensor cannot be reduced.
    """
    _agreement.check_in_step()
    if not tensors and agreement is None:
        return []
    path = _eager if tf.executing_eagerly() else _graph
    results: list[Any] = path.reduce_all(tensors, names, reduction, agreement)
    return results
