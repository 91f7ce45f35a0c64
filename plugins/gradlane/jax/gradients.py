"""Averages gradients as a step of an optax optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from gradlane._averaging import averaging_of
from gradlane._model_choice import Choice
from gradlane._reduction import Average, ReduceOp
from gradlane.jax._names import FirstUse
from gradlane.jax.ops import reduced

if TYPE_CHECKING:
    import optax


def push_pull_gradients(
    name: str | None = None,
    *,
    op: ReduceOp = Average,
    compression: Choice = None,
    timeout: float | None = None,
) -> optax.GradientTransformation:
    """The first step of an optax chain: replaces the gradients by their average over all workers. Experimental.

        optimizer = optax.chain(gl.push_pull_gradients(), optax.adam(1e-3))

    Nothing is broadcast: give all workers the same parameters by `broadcast` first. `optax.MultiSteps` around the chain
    gives the right result, but optax computes updates in every pass, so that gradients are sent in every pass. To send
    them once, add up the gradients of several passes yourself, such as by `jax.lax.scan`, before you call the optimizer.

    Args:
        name: a prefix of the arrays' names, equal on all workers, and another one for each call. None makes a number when
            the optimizer is used for the first time, so workers may make their optimizers in any order. Give names if
            workers use them for the first time in different orders.
        op: `Average` or `Sum`.
        compression: how gradients travel: one of `Compression`, or a function that gives one for an array's path in the tree
            and shape. None takes the setting `compression`. One of `Compression` leaves out vectors, scalars and small
            gradients unless it is `fp16`, `bf16` or has `compress_all=True`; if it would act on none, that is an error. A
            function is not asked about sparse gradients, and those whose shape is not known. Equal on all workers.
        timeout: seconds for the reduction of one step; None takes the job's step timeout.
    Raises:
        ModuleNotFoundError: optax is not installed.
        InvalidArgumentError: on use, if it has no name and was made inside the function that JAX traces. Each trace would
            make another one, and workers need not trace equally often.
    """
    try:
        import optax
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "gradlane.jax.push_pull_gradients needs optax; run pip install 'gradlane[jax]'", name="optax"
        ) from error

    prefix = FirstUse("gradients", name)

    def init(_: Any) -> Any:
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any | None = None) -> tuple[Any, Any]:
        del params
        prefixed = prefix.of(updates)
        how = averaging_of(op, compression, sparse_as_dense=False, timeout=timeout)
        leaves = jax.tree_util.tree_leaves_with_path(updates)
        rows = ((jax.tree_util.keystr(path), str(leaf.dtype), tuple(leaf.shape)) for path, leaf in leaves)
        return reduced(updates, prefixed, how.reduction_of(rows)), state

    return optax.GradientTransformation(init, update)
