"""A gradient tape whose gradients are averages over all workers."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from gradlane import _agreement
from gradlane._averaging import Averaging, averaging_of
from gradlane._model_choice import Choice
from gradlane._reduction import Average, ReduceOp
from gradlane.errors import InvalidArgumentError
from gradlane.tensorflow._autograph import unconverted
from gradlane.tensorflow.gradients import average

_used: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""By graph of a function: how many tapes without a name it has."""


@unconverted
def DistributedGradientTape(
    tape: Any,
    *,
    op: ReduceOp = Average,
    compression: Choice = None,
    sparse_as_dense: bool = False,
    name: str | None = None,
) -> Any:
    """Makes `tape` average its gradients over all workers; returns the same object, of a subclass of its class.

        with tf.GradientTape() as tape:
            loss = ...
        tape = gl.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    Nothing is broadcast: call `broadcast_variables` first. The averages can be differentiated again, such as for a
    gradient penalty, if all workers do so; `tf.IndexedSlices` only with `sparse_as_dense`. Jacobians are averaged, too.

    Args:
        tape: a `tf.GradientTape`, also one that has not recorded yet.
        op: `Average` or `Sum`.
        compression: how gradients travel: one of `Compression`, or a function that gives one for a variable's path
            and shape. None takes the setting `compression`. One of `Compression` leaves out vectors, scalars and small
            gradients unless it is `fp16`, `bf16` or has `compress_all=True`; if it would act on none, that is an error. A
            function is not asked about sparse gradients, and those whose shape is not known. Equal on all workers.
        sparse_as_dense: whether `tf.IndexedSlices` (of embeddings) are made dense instead of gathered.
        name: a prefix of the tensors' names. Needed only if a function uses several tapes, and its workers
            trace them in different orders.
    Raises:
        InvalidArgumentError: `tape` is something else, or averages its gradients already.
        NotInitializedError: before `init()`.
    """
    _agreement.check_in_step()
    if not isinstance(tape, tf.GradientTape):
        raise InvalidArgumentError(f"{type(tape).__name__} is no tf.GradientTape")
    if isinstance(tape, _Distributed):
        raise InvalidArgumentError("the tape is distributed already; wrap it once")
    kind = type(tape)
    how = averaging_of(op, compression, sparse_as_dense)
    tape.__class__ = type(kind.__name__, (_Distributed, kind), {"__module__": kind.__module__, "_how": how})
    tape._namespace = name or _namespace()
    return tape


class _Distributed:
    """The methods of a distributed tape before those of its own class."""

    _how: Averaging
    _namespace: str
    _is_inside = False
    """Whether a method of the class below runs that calls others of this one."""

    @unconverted
    def gradient(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """The gradients of `target` with respect to `sources`, averaged; arguments are those of `tf.GradientTape`."""
        local = super().gradient(target, sources, *arguments, **options)  # type: ignore[misc]
        # `jacobian` of the class calls this for each row.
        return local if self._is_inside else self._averaged(local, sources)

    @unconverted
    def jacobian(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """The Jacobians, averaged; arguments are those of `tf.GradientTape`."""
        with self._inside():
            local = super().jacobian(target, sources, *arguments, **options)  # type: ignore[misc]
        return self._averaged(local, sources)

    @unconverted
    def batch_jacobian(self, target: Any, source: Any, *arguments: Any, **options: Any) -> Any:
        """The Jacobians of the rows of a batch, averaged; arguments are those of `tf.GradientTape`."""
        with self._inside():
            local = super().batch_jacobian(target, source, *arguments, **options)  # type: ignore[misc]
        return self._averaged(local, source)

    def _averaged(self, local: Any, sources: Any) -> Any:
        flat, variables = tf.nest.flatten(local), tf.nest.flatten(sources)
        return tf.nest.pack_sequence_as(local, average(flat, variables, self._namespace, self._how))

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False


def _namespace() -> str:
    """A prefix for a tape without a name: the number of the tape in its function.

    A worker may trace a function again, for a batch of another size, and must come to the same names.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly():
        return "tape"
    while type(graph).__name__ not in ("FuncGraph", "Graph") and getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph  # of a branch or of a loop in the function
    number = _used.get(graph, 0)
    _used[graph] = number + 1
    return f"tape.{number}" if number else "tape"
