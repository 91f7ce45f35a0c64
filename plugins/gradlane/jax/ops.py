"""Reductions and broadcasts of trees of arrays."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from gradlane import _session, elastic
from gradlane._compression import Compressor
from gradlane._operations import check_root
from gradlane._reduction import ReduceOp, Reduction, broadcast_of, reduction_of
from gradlane.errors import InvalidArgumentError
from gradlane.jax._call import Call
from gradlane.jax._choice import run
from gradlane.jax._errors import typed_errors
from gradlane.jax._guard import guarded
from gradlane.jax._names import names_of, structure_of

Tree = TypeVar("Tree")


def push_pull(
    tree: Tree,
    name: str,
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: Any | None = None,
    priority: int = 0,
    compression: Compressor | None = None,
    timeout: float | None = None,
) -> Tree:
    """Average all arrays of `tree` over all workers, in one call. Works under `jax.jit`. Experimental.

    An `Average` or `Sum` can be differentiated in reverse: gradients are reduced in the same way.

    Args:
        tree: a pytree of arrays, the same on all workers; float16, bfloat16, float32, float64, int32, int64, int8 or
            uint8; on one device.
        name: equal on all workers, and one for each place of the program. With the paths in the tree it names the
            arrays; the first use of these names fixes dtypes and shapes.
        op: `Average` (default), `Sum`, `Min`, `Max` or `WeightedAverage`; equal on all workers.
        average: old form of `op`: True for `Average`, False for `Sum`.
        weight: this worker's weight in a `WeightedAverage`; a number or a scalar array.
        priority: of the first array; each further one has one less. Higher goes first; only the order matters.
        compression: how tensors travel, one of `Compression`; None takes the setting `compression`. Equal on all workers.
        timeout: seconds for the whole operation; None takes the job's step timeout.
    Returns:
        A tree of new arrays. Called outside of `jax.jit`, it returns when they are complete.
    Raises:
        NotInitializedError: before `init()`.
        MismatchError: the trees of two workers differ (both are named).
        StallError: some workers did not contribute in time (they are named).
        InvalidArgumentError: an array cannot be reduced; it is named.
        UnsupportedError: inside `vmap`, `pmap` or `shard_map`, or of arrays on several devices.
        jax.errors.JaxRuntimeError: under `jax.jit`, what goes wrong when the compiled function runs, with the text of
            the exceptions above; `typed_errors` turns it into them.
    """
    # The weight may be a tracer, so it is no part of the value.
    stated = None if weight is None else 1.0
    reduction = reduction_of(op, average, stated, priority, compression, timeout=timeout)
    if weight is None and reduction.op == "weighted_mean":
        raise InvalidArgumentError("op=WeightedAverage needs weight=, such as this worker's number of samples")
    return reduced(tree, name, reduction, weight)


def broadcast(tree: Tree, root_rank: int = 0, name: str = "broadcast", *, timeout: float | None = None) -> Tree:
    """Give every worker the arrays of `root_rank`, bit for bit. Arguments and errors are those of `push_pull`.

    Args:
        tree: a pytree of arrays, the same on all workers but for the values; also of booleans, of integers of 16 to 64
            bits and of complex64.
        root_rank: the rank whose arrays all workers get.
    """
    return reduced(tree, name, broadcast_of(check_root(root_rank), timeout=timeout))


def reduced(tree: Tree, name: str, reduction: Reduction, weight: Any | None = None) -> Tree:
    """The tree of results; `weight` is that of a weighted mean."""
    _session.session()
    if _session.passes_over(name, is_broadcast=reduction.op == "broadcast"):
        return tree
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = names_of(name, [path for path, _ in with_paths])
    if not names:
        return tree
    call = Call(names, structure_of(name, names), reduction)
    arrays = tuple(array_of(named, leaf) for named, (_, leaf) in zip(names, with_paths, strict=True))
    weights = () if weight is None else (jnp.asarray(weight, jnp.float32),)
    if any(isinstance(array, jax.core.Tracer) for array in arrays + weights):
        results = _differentiable(call, arrays, weights)
    else:
        with typed_errors():
            results = jax.block_until_ready(_differentiable(call, arrays, weights))
    return jax.tree_util.tree_unflatten(structure, results)  # type: ignore[no-any-return]


def array_of(name: str, leaf: Any) -> Any:
    """The array of a leaf, which is named in errors."""
    try:
        return jnp.asarray(leaf)
    except TypeError as error:
        raise InvalidArgumentError(f"{name} is {type(leaf).__name__}, no array; leave it out of the tree") from error


def _run(call: Call, arrays: tuple[Any, ...], weights: tuple[Any, ...]) -> tuple[Any, ...]:
    whole = guarded([*arrays, *weights])
    return tuple(run(call, whole[: len(arrays)], whole[-1] if weights else None))


def _forward(call: Call, arrays: tuple[Any, ...], weights: tuple[Any, ...]) -> tuple[tuple[Any, ...], None]:
    if not call.reduction.is_linear:
        op = call.reduction.op
        raise InvalidArgumentError(f"op={op} has no gradient; use jax.lax.stop_gradient, or Average or Sum")
    return _differentiable(call, arrays, weights), None


def _backward(call: Call, _: None, gradients: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[()]]:
    """The gradient of a mean (or sum) over workers is the mean (or sum) of their gradients."""
    # Integers have gradients of no type.
    kept = [at for at, gradient in enumerate(gradients) if gradient.dtype != jax.dtypes.float0]
    reduced = _differentiable(call.of_gradients(kept), tuple(gradients[at] for at in kept), ())
    means = dict(zip(kept, reduced, strict=True))
    return tuple(means.get(at, gradient) for at, gradient in enumerate(gradients)), ()


def settle() -> None:
    """Waits for the calls of compiled functions that still run; JAX returns from them before."""
    with typed_errors():
        jax.effects_barrier()


elastic.before_boundaries(settle)

_differentiable: Any = jax.custom_vjp(_run, nondiff_argnums=(0,))
_differentiable.defvjp(_forward, _backward)
