"""Rows of tables as arrays of JAX, eagerly and under `jax.jit`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from gradlane import _session
from gradlane._table_rows import added_up, read, whole_ids
from gradlane.errors import Error, FailedPreconditionError, InvalidArgumentError, UnsupportedError
from gradlane.jax._errors import remember
from gradlane.jax._guard import guarded
from gradlane.jax._names import is_evaluated, present_traces
from gradlane.jax.ops import settle
from gradlane.tables import Table

PULLS_MAX = 256
"""How often a process may pull rows of a table without a push in between."""

_Array = np.ndarray[Any, Any]

_pulls: weakref.WeakKeyDictionary[Table, int] = weakref.WeakKeyDictionary()
"""How often rows of each table were pulled since the last push."""


def pull(table: Table, ids: Any, *, timeout: float | None = None) -> jax.Array:
    """Read rows for training: an id without a row gets one, if the table admits it. Works under `jax.jit`. Experimental.

        table = gl.Table("items", 16, rule=gl.rules.Adagrad(lr=0.1), init="uniform", scale=0.05)
        rows = gl.pull(table, ids)
        loss, (gradients, of_rows) = jax.value_and_grad(loss_of, argnums=(0, 1))(params, rows, labels)
        gl.push(table, ids, of_rows)

    Give the rows to the function that is differentiated, as above. Inside of it they would be constants, so that is refused.

    In compiled functions the uses of all tables come in the order of the program, also in `lax.scan` and the like, and what is called
    outside of them comes after those. The methods of a `Table` wait for no compiled function; call `jax.effects_barrier()` before.

    Args:
        table: equal on all workers; made outside of compiled functions.
        ids: integers of any type and shape; unsigned ones of 64 bits count by their bits. Outside of `jax.jit` they may be an array of
            NumPy. An argument of a compiled function has 64 bits only with `jax_enable_x64`: without it JAX cuts larger ids to 32 bits
            before this function sees them.
        timeout: seconds for the whole use; None takes the job's step timeout, which is also the upper bound.
    Returns:
        float32, of the shape of the ids and `table.dim`.
    Raises:
        FailedPreconditionError: the table is full, a server has no memory for more rows, or rows were pulled 256 times without a push.
        MismatchError: another worker has made the table with other arguments; both sides are named.
        InvalidArgumentError: ids are no integers, or there are more than 1,048,576 distinct ones.
        UnsupportedError: inside of a function that is differentiated, of `vmap`, `pmap` or `shard_map`, or of arrays on several devices.
        jax.errors.JaxRuntimeError: under `jax.jit`, what goes wrong when the compiled function runs, with the text of the exceptions
            above; `typed_errors` turns it into them.
    """
    if any(type(trace).__name__ in _DIFFERENTIATING for trace in present_traces()):
        raise UnsupportedError(
            f"table {table.name}: pull in a function that JAX differentiates would bring constants, and no gradients; pull before, and "
            "give the rows to the function as an argument"
        )
    return _read(table, ids, "pull", timeout)


def look(table: Table, ids: Any, *, timeout: float | None = None) -> jax.Array:
    """Read rows for evaluation, as `pull`. It makes no row and changes nothing: ids without a row read as what it would begin with.

    Also in functions that are differentiated, where rows are constants.
    """
    return _read(table, ids, "look", timeout)


def push(table: Table, ids: Any, gradients: Any, *, timeout: float | None = None) -> None:
    """Change rows by gradients, as the rule of the table says. Works under `jax.jit`. Experimental.

    Nothing is averaged over the workers: the servers apply what each worker sends when it comes, and nobody waits. Outside of
    `jax.jit`, it returns when the rows are changed.

    Args:
        table: as for `pull`.
        ids: those of the pull. Gradients of an id that comes several times are added up first.
        gradients: float32 of the shape of the ids and `table.dim`.
        timeout: as for `pull`.
    Raises:
        InvalidArgumentError: as `pull`, or gradients of another shape or dtype.
        NotFiniteError: a gradient is infinite or not a number; nothing was sent.
        UnsupportedError: as `pull`: a push has no derivative.
        FailedPreconditionError, MismatchError, jax.errors.JaxRuntimeError: as `pull`.
    """
    kind = _checked(table, ids)
    gradients = gradients if isinstance(gradients, jax.Array) else np.asarray(gradients)
    expected = (*kind.shape, table.dim)
    if gradients.dtype != np.float32 or gradients.shape != expected:
        raise InvalidArgumentError(
            f"table {table.name}: gradients of {gradients.dtype} and shape {list(gradients.shape)}; give float32 of shape {list(expected)}"
        )
    _run(functools.partial(_push, table, timeout), "push", [kind, gradients], None)


_DIFFERENTIATING = ("JVPTrace", "LinearizeTrace")
"""The classes of the traces of functions that are differentiated. JAX names the second one nowhere in public."""


def _read(table: Table, ids: Any, action: str, timeout: float | None) -> jax.Array:
    kind = _checked(table, ids)
    result = jax.ShapeDtypeStruct((*kind.shape, table.dim), np.float32)
    rows: jax.Array = _run(functools.partial(_look if action == "look" else _pull, table, timeout), action, [kind], result)
    return rows


def _checked(table: Table, ids: Any) -> Any:
    """Ids as an array of JAX or, with all their bits, of NumPy."""
    if not isinstance(table, Table):
        raise InvalidArgumentError(f"table={table!r:.100}; give a gradlane.tables.Table")
    array = ids if isinstance(ids, jax.Array) else np.asarray(ids)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise InvalidArgumentError(f"table {table.name}: ids of {array.dtype}; give integers of at most 64 bits")
    return array


def _run(use: Callable[..., Any], action: str, arrays: list[Any], result: jax.ShapeDtypeStruct | None) -> Any:
    """Uses a table: now, or where JAX traces a function, when that runs."""
    _session.session()
    traced = [at for at, array in enumerate(arrays) if isinstance(array, jax.core.Tracer)]
    if not traced and is_evaluated():
        settle()
        rows = use(*map(np.asarray, arrays))
        return None if result is None else jnp.asarray(rows)
    given = guarded([arrays[at] for at in traced], action)
    # What is known already is no operand, because JAX might cut it to 32 bits.
    known = {at: np.asarray(array) for at, array in enumerate(arrays) if at not in traced}

    def call(*operands: Any) -> Any:
        found = known | dict(zip(traced, map(np.asarray, operands), strict=True))
        try:
            return use(*(found[at] for at in range(len(arrays))))
        except Error as error:
            remember(error)
            raise

    return io_callback(call, result, *given, ordered=True)


def _pull(table: Table, timeout: float | None, ids: _Array) -> _Array:
    pulls = _pulls.get(table, 0)
    if pulls >= PULLS_MAX:
        raise FailedPreconditionError(
            f"table {table.name}: rows were pulled {pulls} times and nothing was pushed; push their gradients, or use look where there are none"
        )
    _pulls[table] = pulls + 1
    return read(table, whole_ids(table, ids), is_training=True, timeout=timeout)


def _look(table: Table, timeout: float | None, ids: _Array) -> _Array:
    return read(table, whole_ids(table, ids), is_training=False, timeout=timeout)


def _push(table: Table, timeout: float | None, ids: _Array, gradients: _Array) -> None:
    _pulls.pop(table, None)
    given = np.ascontiguousarray(gradients).reshape(gradients.shape)
    table.push(*added_up(whole_ids(table, ids), given), timeout=timeout)
