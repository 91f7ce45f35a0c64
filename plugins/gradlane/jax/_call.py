"""One call: what is reduced, how, and under which names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlane._buffers import ITEM_BYTES
from gradlane._reduction import Reduction
from gradlane.errors import InvalidArgumentError

_BITS = {
    "bool": "uint8",
    "int16": "float16",
    "uint16": "float16",
    "uint32": "int32",
    "uint64": "int64",
    "complex64": "int64",
}
"""Types that can only be broadcast, with the engine's type of the same size, which keeps all bits."""


@dataclass(frozen=True)
class Call:
    """A reduction of several arrays, without the arrays. Hashable, because JAX keeps compiled code by it."""

    names: tuple[str, ...]
    structure: tuple[str, int]
    """A name, and the number of bytes that stands for the tree; see `structure_of`."""
    reduction: Reduction
    """Of all arrays, as `Reduction.at` says for each; without the weight, which is an array."""

    def of_gradients(self, kept: list[int]) -> Call:
        """The same reduction of the gradients of some of its arrays."""
        name, length = self.structure
        return Call(
            names=tuple(f"{self.names[at]}.backward" for at in kept),
            structure=(f"{name}, backward", length),
            reduction=self.reduction.among(kept),
        )

    def dtypes(self, arrays: list[Any]) -> tuple[str, ...]:
        """The engine's types for the arrays.

        Raises:
            InvalidArgumentError: an array cannot be reduced; it is named.
        """
        return tuple(self._dtype(name, str(array.dtype)) for name, array in zip(self.names, arrays, strict=True))

    def _dtype(self, name: str, dtype: str) -> str:
        if dtype in ITEM_BYTES:
            return dtype
        if self.reduction.op == "broadcast" and dtype in _BITS:
            return _BITS[dtype]
        raise InvalidArgumentError(f"{name} is {dtype}, which cannot be reduced; supported: {', '.join(ITEM_BYTES)}")
