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
    present = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}
    if _session.size() == 1:
        return [present.get(i) for i in range(len(gradients))]
    # The tree has its leaves in the order of these keys.
    leaves = {str(i): present[i] for i in sorted(present, key=str)}
    rows = [(path_of(int(i), variables[int(i)]), str(leaf.dtype), tuple(leaf.shape)) for i, leaf in leaves.items()]
    averages = reduced(leaves, namespace, how.reduction_of(rows))
    return [averages.get(str(i)) for i in range(len(gradients))]
