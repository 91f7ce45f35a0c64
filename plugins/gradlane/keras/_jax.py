"""Averages the gradients of Keras variables where JAX is the backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlane import _session
from gradlane._averaging import Averaging, path_of
from gradlane.jax.ops import reduced


def average(gradients: Sequence[Any], variables: Sequence[Any], namespace: str, how: Averaging) -> list[Any]:
    """Averages gradients, which are arrays of JAX, also under `jax.jit`; as `gradlane.tensorflow.gradients.average`.

    `gradlane.jax` notices where workers have gradients for different variables.
    """
    present = {str(position): gradient for position, gradient in enumerate(gradients) if gradient is not None}
    if not _session.is_alone():  # the size would be that at the time of the trace, and an elastic job may grow
        leaves = ((int(key), present[key]) for key in sorted(present))  # in JAX's order of a tree's keys
        rows = ((path_of(i, variables[i]), str(leaf.dtype), tuple(leaf.shape)) for i, leaf in leaves)
        present = reduced(present, namespace, how.reduction_of(rows))
    return [present.get(str(position)) for position in range(len(gradients))]
