"""Reductions inside of graphs: in `tf.function`, in Keras' `fit`, and in the sessions of TensorFlow 1.

All tensors of a list are submitted as soon as each is computed, and there is one wait for all of them. A wait blocks
one of the few threads that run operations. So waits happen in the order of the program, one at a time, each after all
submissions that the program made before it. All workers run the same program, so each of them has submitted what the
others wait for, even with a single thread.

If a graph uses a name twice, the second submission comes after the wait for the first. Otherwise two workers could
submit them in different orders. For graphs that run several times, as the body of a loop does, `_step` says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import tensorflow as tf

from gradlane import _agreement, _session
from gradlane._agreement import Agreement
from gradlane._operations import declare_places
from gradlane._reduction import Reduction
from gradlane.tensorflow import _sparse, _step
from gradlane.tensorflow._choice import operations
from gradlane.tensorflow._errors import python_function
from gradlane.tensorflow._step import Step
from gradlane.tensorflow._transformations import refuse_lost_gradients, refuse_xla


@dataclass
class _Program:
    """What a graph contains so far."""

    gates: list[Any] = field(default_factory=list)
    """What the next wait comes after."""
    names: set[str] = field(default_factory=set)
    """The names that it uses."""
    step: Step | None = None
    """Read before its first reduction."""


def reduce_all(
    tensors: Sequence[Any],
    names: Sequence[str],
    reduction: Reduction,
    agreement: Agreement | None,
    forward: Step | None,
) -> tuple[list[Any], Step]:
    """Adds the reduction of all `tensors`, dense or `tf.IndexedSlices`, to the present graph.

    Args:
        tensors, names, reduction, agreement: as for `_reduce.reduce_all`.
        forward: what this function returned for the graph whose gradient the present graph computes, if it does.
    Returns:
        The results, and what the gradient of them needs as `forward`.
    Raises:
        UnsupportedError: the graph will be compiled by XLA, or is inside of a transformation that loses gradients.
    """
    refuse_xla()
    refuse_lost_gradients(tensors)
    _declare(tensors, names, reduction)
    program = _program()
    if program.step is None:
        program.step = _step.step(forward)
    used = {*names, *(() if agreement is None else (agreement.name,))}
    is_again = not program.names.isdisjoint(used)
    program.names |= used
    ops, step, gates = operations(), program.step.value, program.gates
    dense, sparse = [], []
    with tf.control_dependencies(gates if is_again else []):
        for position, (tensor, name) in enumerate(zip(tensors, names, strict=True)):
            if isinstance(tensor, tf.IndexedSlices):
                sparse.append((position, _sparse.submit(tensor, name, step, reduction)))
            else:
                dense.append((position, ops.submit(tensor, name, step, reduction.at(position))))
        marks = _submitted_marks(agreement, step) if agreement is not None else None
    gates += [handle for _, handle in dense + sparse]
    if agreement is not None and marks is not None:
        gates[:] = [_checked(agreement, marks, step, gates)]
    results: list[Any] = [None] * len(tensors)
    for wait, begun in ((ops.wait, dense), (_sparse.wait, sparse)):
        if begun:
            with tf.control_dependencies(gates):
                landed = wait([handle for _, handle in begun], [tensors[position] for position, _ in begun])
            gates[:] = [landed[0].values if isinstance(landed[0], tf.IndexedSlices) else landed[0]]
            for (position, _), result in zip(begun, landed, strict=True):
                results[position] = result
    program.step.advance(gates)
    return results, program.step


def _program() -> _Program:
    """What the present graph contains. The graph keeps it, because it refers to the graph."""
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_gradlane_program"):
        graph._gradlane_program = _Program()
    program: _Program = graph._gradlane_program
    return program


def _submitted_marks(agreement: Agreement, step: Any) -> tuple[Any, Any]:
    """What this worker contributes to the agreement, and the handle of the exchange."""
    marks = tf.constant(agreement.marks.tolist(), tf.int32)
    return marks, operations().submit(marks, agreement.name, step, agreement.reduction)


def _checked(agreement: Agreement, submitted: tuple[Any, Any], step: Any, gates: Sequence[Any]) -> Any:
    """A tensor that exists once all workers agree on their gradients; it raises otherwise."""
    marks, handle = submitted
    with tf.control_dependencies([*gates, handle]):
        [agreed] = operations().wait([handle], [marks])

    def explain(now: Any) -> NoReturn:
        if now < 0:
            _agreement.check_in_step()
        try:
            agreement.explain()
        finally:
            _step.mark_out_of_step()

    return tf.cond(
        tf.logical_and(tf.reduce_all(tf.equal(agreed, marks)), step >= 0),
        lambda: tf.constant(0, tf.int64),
        lambda: tf.numpy_function(python_function(explain), [step], tf.int64, stateful=False),
    )


def _declare(tensors: Sequence[Any], names: Sequence[str], reduction: Reduction) -> None:
    """Declares the tensors of a list together, so that small ones share messages."""
    known = [
        position
        for position, tensor in enumerate(tensors)
        if not isinstance(tensor, tf.IndexedSlices) and tensor.shape.is_fully_defined()
    ]
    if len(known) > 1:
        places = [(names[i], tensors[i].dtype.name, tuple(tensors[i].shape)) for i in known]
        codecs = reduction.among(known).codec
        declare_places(_session.session(), places, codec=codecs, fuse=True, timeout=reduction.timeout)
