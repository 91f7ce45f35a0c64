"""Chooses who runs operations in graphs: the native operations, or Python functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from gradlane._framework import is_native
from gradlane._reduction import Reduction
from gradlane.tensorflow import _fallback, _native

SETTING = "GRADLANE_TENSORFLOW_OP"


class Operations(Protocol):
    """Starts operations, and waits for them, when a graph runs; `_fallback` says how."""

    def submit(self, tensor: Any, name: str, step: Any, reduction: Reduction) -> Any:
        """Starts an operation, and returns its handle."""

    def wait(self, handles: Sequence[Any], like: Sequence[Any]) -> list[Any]:
        """Waits for operations, and returns their results."""


def operations() -> Operations:
    """The operations that the setting `GRADLANE_TENSORFLOW_OP` asks for: with `auto` the native ones, if they load.

    Raises:
        ConfigError: the setting is none of `auto`, `native` and `fallback`.
        UnavailableError: the native operations are asked for, and do not load; the message says why.
    """
    return cast(Operations, _native if is_native(SETTING, _native.load) else _fallback)
