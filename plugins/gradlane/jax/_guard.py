"""Refuses transformations that would run a call several times in one process, or split what it reduces.

Arrays pass through a primitive that does nothing but have rules for them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax
import jax.extend.core
from jax.interpreters import ad, batching, mlir

from gradlane.errors import UnsupportedError

_guard: Any = jax.extend.core.Primitive("gradlane_once")
_guard.multiple_results = True


def guarded(arrays: list[Any], call: str = "push_pull") -> list[Any]:
    """The same arrays, at a place where a call may be, whose name is `call`.

    Raises:
        UnsupportedError: inside `vmap`, `pmap` or `shard_map`, of arrays on several devices, or where the arrays are differentiated.
    """
    for array in arrays:
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer) and len(array.devices()) > 1:
            _refuse(call, f"an array on {len(array.devices())} devices")
    return list(_guard.bind(*arrays, call=call))


def _refuse(call: str, what: str) -> NoReturn:
    raise UnsupportedError(
        f"{call} is one call of a process on one device, and was given {what}; call it outside of vmap, pmap and "
        "shard_map, on arrays of one device, or use JAX's own collectives there"
    )


def _impl(*arrays: Any, call: str) -> list[Any]:
    del call
    return list(arrays)


def _abstract(*arrays: Any, call: str) -> list[Any]:
    axes = getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ())
    if axes:
        _refuse(call, f"a shard of the mesh axes {', '.join(map(str, axes))}")
    return list(arrays)


def _batch(*_: Any, call: str) -> NoReturn:
    _refuse(call, "a batch by vmap")


def _differentiate(*_: Any, call: str) -> NoReturn:
    raise UnsupportedError(f"{call} has no derivative; call it outside of functions that JAX differentiates")


def _lower(context: Any, *arrays: Any, call: str) -> Any:
    if getattr(context.module_context.axis_context, "num_devices", None) != 1:
        _refuse(call, "a program for several devices")
    return arrays


_guard.def_impl(_impl)
_guard.def_abstract_eval(_abstract)
batching.primitive_batchers[_guard] = _batch
ad.primitive_jvps[_guard] = _differentiate
mlir.register_lowering(_guard, _lower)
