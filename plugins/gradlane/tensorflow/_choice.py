"""Chooses who runs operations in graphs: the native operations, or Python functions."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any, Protocol, cast

from gradlane.errors import ConfigError, UnavailableError
from gradlane.tensorflow import _fallback

SETTING = "GRADLANE_TENSORFLOW_OP"


class Operations(Protocol):
    """Starts operations, and waits for them, when a graph runs; `_fallback` says how."""

    def submit(self, tensor: Any, name: str, step: Any, **reduction: Any) -> Any:
        """Starts an operation, and returns its handle."""

    def wait(self, handles: Sequence[Any], like: Sequence[Any]) -> list[Any]:
        """Waits for operations, and returns their results."""


def operations() -> Operations:
    """The operations that the setting `GRADLANE_TENSORFLOW_OP` asks for: with `auto` the native ones, if they load.

    Raises:
        ConfigError: the setting is none of `auto`, `native` and `fallback`.
        UnavailableError: the native operations are asked for, and do not load; the message says why.
    """
    return _chosen(os.environ.get(SETTING) or "auto")


@functools.cache
def _chosen(asked: str) -> Operations:
    if asked not in ("auto", "native", "fallback"):
        raise ConfigError(f"setting {SETTING}: {asked!r} is none of auto, native and fallback", knob=SETTING)
    fallback = cast(Operations, _fallback)
    if asked == "fallback":
        return fallback
    native, why_not = _native()
    if native is None and asked == "native":
        raise UnavailableError(f"{SETTING}=native, but the native operations do not load: {why_not}; unset it")
    return native or fallback


def _native() -> tuple[Operations | None, str]:
    try:
        module = importlib.import_module("gradlane.tensorflow._native")
    except ModuleNotFoundError as error:
        return None, str(error)
    return (cast(Operations, module), "") if module.load() is not None else (None, module.why_not())
