"""An optimizer that steps on gradients averaged over all workers: of Keras, or of TensorFlow 1."""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf

from gradlane import _agreement, _names
from gradlane._averaging import Averaging, averaging_of
from gradlane._model_choice import Choice
from gradlane._reduction import Average, ReduceOp
from gradlane.errors import InvalidArgumentError
from gradlane.tensorflow._autograph import unconverted
from gradlane.tensorflow.gradients import average

T = TypeVar("T")


def DistributedOptimizer(
    optimizer: T,
    *,
    op: ReduceOp = Average,
    compression: Choice = None,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    name: str | None = None,
) -> T:
    """Makes `optimizer` average its gradients over all workers; `gradlane.keras.DistributedOptimizer` says the rest.

    Args:
        optimizer: a Keras optimizer, or a `tf.compat.v1.train.Optimizer`, which cannot accumulate gradients.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from gradlane.keras import DistributedOptimizer as of_keras  # Keras takes a second to import

        return of_keras(
            optimizer,
            op=op,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step,
            name=name,
        )
    _agreement.check_in_step()
    if isinstance(optimizer, _Distributed):
        raise InvalidArgumentError("the optimizer is distributed already; wrap it once")
    if backward_passes_per_step != 1:
        raise InvalidArgumentError("an optimizer of TensorFlow 1 takes backward_passes_per_step=1; use one of Keras")
    kind = type(optimizer)
    methods = {"__module__": kind.__module__, "_how": averaging_of(op, compression, sparse_as_dense)}
    optimizer.__class__ = type(kind.__name__, (_Distributed, kind), methods)
    optimizer._namespace = _names.namespace("v1 optimizer", name)
    return optimizer


class _Distributed:
    """The methods of a distributed optimizer of TensorFlow 1 before those of its own class."""

    _how: Averaging
    _namespace: str

    @unconverted
    def compute_gradients(self, *arguments: Any, **options: Any) -> list[tuple[Any, Any]]:
        """Pairs of averaged gradients and variables; arguments are those of the optimizer's own method."""
        pairs = super().compute_gradients(*arguments, **options)  # type: ignore[misc]
        gradients, variables = zip(*pairs, strict=True)
        return list(zip(average(gradients, variables, self._namespace, self._how), variables, strict=True))
