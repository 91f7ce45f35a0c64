"""XLA's custom call of the op library: no Python runs, and nothing is copied.

One call takes all arrays, because XLA on the CPU runs custom calls one after the other.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from gradlane._op_library import OpLibrary
from gradlane.jax._call import Call

TARGET = "gradlane_push_pull"

library = OpLibrary("libgradlane_xla_ffi.so")


@functools.cache
def register() -> None:
    """Makes the call known to XLA.

    Raises:
        UnsupportedError: this installation lacks the op library, or has that of another version.
    """
    handler = library.attach().gradlane_xla_push_pull
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform="cpu")


def run(call: Call, arrays: list[Any], weight: Any | None) -> list[Any]:
    """Reduces `arrays` into new ones; `weight` is a scalar of float32."""
    reduction = call.reduction
    outputs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    # The side effect keeps XLA from repeating the call or from leaving it out.
    reduce = jax.ffi.ffi_call(TARGET, outputs, has_side_effect=True)
    reduced = reduce(
        *arrays,
        *([] if weight is None else [weight]),
        names="\n".join(call.names),
        structure_name=call.structure[0],
        structure_len=np.int64(call.structure[1]),
        op=reduction.op,
        codec=reduction.codec,
        root=np.int64(reduction.root),
        priority=np.int64(reduction.priority),
        timeout_ms=np.int64(reduction.timeout_ms),
    )
    return list(reduced)
