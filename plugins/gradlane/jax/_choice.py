"""Chooses which code runs a call: XLA's custom call of the op library, or a Python function that XLA calls back."""

from __future__ import annotations

from typing import Any

import jax

from gradlane._framework import is_native
from gradlane.jax import _fallback, _native
from gradlane.jax._call import Call

SETTING = "GRADLANE_JAX_CALL"


def run(call: Call, arrays: list[Any], weight: Any | None) -> list[Any]:
    """Reduces arrays, which may be tracers, into new arrays; `weight` is a scalar of float32.

    Raises:
        InvalidArgumentError: an array cannot be reduced.
        UnavailableError: the native call is asked for, and does not load.
    """
    dtypes = call.dtypes(arrays)
    # The custom call is one of the CPU.
    if is_native(SETTING, _native.register) and jax.default_backend() == "cpu":
        return _native.run(call, arrays, weight)
    return _fallback.run(call, dtypes, arrays, weight)
