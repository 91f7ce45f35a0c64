"""One call: what is reduced under which names, and which code runs it.

`native` is XLA's custom call of the op library; `fallback` is a Python function that XLA calls back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from gradlane._framework import is_native
from gradlane._reduction import NativeOp
from gradlane.errors import InvalidArgumentError
from gradlane.jax import _fallback, _native

SETTING = "GRADLANE_JAX_CALL"

_BITS = {
    "bool": "uint8",
    "int16": "float16",
    "uint16": "float16",
    "uint32": "int32",
    "uint64": "int64",
    "complex64": "int64",
}
"""Types that can only be broadcast, with the engine's type of the same size, which keeps all bits."""

_TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8")


@dataclass(frozen=True)
class Call:
    """A reduction of several arrays, without the arrays. Hashable, because JAX keeps compiled code by it."""

    names: tuple[str, ...]
    structure: tuple[str, int]
    """A name, and the number of bytes that stands for the tree; see `structure_of`."""
    op: NativeOp
    root: int = 0
    priority: int = 0
    codec: str = "none"
    timeout: float | None = None

    def of_gradients(self, kept: list[int]) -> Call:
        """The same reduction of the gradients of some of its arrays."""
        name, length = self.structure
        return replace(
            self, names=tuple(f"{self.names[at]}.backward" for at in kept), structure=(f"{name}, backward", length)
        )

    def dtypes(self, arrays: list[Any]) -> tuple[str, ...]:
        """The engine's types for the arrays.

        Raises:
            InvalidArgumentError: an array cannot be reduced; it is named.
        """
        return tuple(self._dtype(name, str(array.dtype)) for name, array in zip(self.names, arrays, strict=True))

    def run(self, arrays: list[Any], weight: Any | None) -> list[Any]:
        """Reduces arrays, which may be tracers, into new arrays.

        Raises:
            InvalidArgumentError: an array cannot be reduced.
            UnavailableError: the native call is asked for, and does not load.
        """
        dtypes = self.dtypes(arrays)
        if _is_native():
            return _native.run(self, arrays, weight)
        return _fallback.run(self, dtypes, arrays, weight)

    def _dtype(self, name: str, dtype: str) -> str:
        if dtype in _TYPES:
            return dtype
        if self.op == "broadcast" and dtype in _BITS:
            return _BITS[dtype]
        raise InvalidArgumentError(f"{name} is {dtype}, which cannot be reduced; supported: {', '.join(_TYPES)}")


def _is_native() -> bool:
    """Whether XLA's custom call is used: on the CPU, as the setting says."""
    return is_native(SETTING, _native.register) and jax.default_backend() == "cpu"
