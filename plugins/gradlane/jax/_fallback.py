"""The same call as a Python function that XLA calls back, in the order of the program: for devices other than the CPU,
and for platforms without the op library.

XLA copies the results into its own memory, and arrays of other devices also out of it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from gradlane import _buffers
from gradlane._groups import submit_all
from gradlane._operations import submit
from gradlane._reduction import Reduction
from gradlane.errors import Error
from gradlane.jax._call import Call
from gradlane.jax._errors import remember

_Array = np.ndarray[Any, Any]


def run(call: Call, dtypes: tuple[str, ...], arrays: list[Any], weight: Any | None) -> list[Any]:
    """Reduces `arrays` into new ones; `dtypes` are the engine's, `weight` is a scalar of float32."""
    outputs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    reduced = io_callback(
        functools.partial(_reduce, call, dtypes),
        outputs,
        np.float32(1.0) if weight is None else weight,
        *arrays,
        ordered=True,
    )
    return list(reduced)


def _reduce(call: Call, dtypes: tuple[str, ...], weight: Any, *arrays: Any) -> list[_Array]:
    sources = [np.ascontiguousarray(array).reshape(array.shape) for array in arrays]  # the former makes scalars vectors
    results = [np.empty_like(source) for source in sources]
    structure_name, structure_len = call.structure
    structure = _buffers.locate(bytearray(structure_len), writable=True)
    whole = Reduction("max", priority=call.reduction.priority + 1, timeout=call.reduction.timeout)
    try:
        agreement = submit(structure_name, structure, structure, whole, result=None)
        reduction = submit_all(
            call.names,
            dtypes,
            tuple(tuple(source.shape) for source in sources),
            [source.ctypes.data for source in sources],
            [result.ctypes.data for result in results],
            replace(call.reduction, weight=float(weight)),
            owner=(sources, results),
            result=results,
        )
        try:
            agreement.wait()
        except Error:
            reduction.cancel()  # the others have the same error, and cancel, too
            raise
        return reduction.wait()
    except Error as error:
        remember(error)
        raise
