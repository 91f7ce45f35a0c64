"""Averages the gradients of Keras variables, for each of Keras' backends."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from gradlane._averaging import Averaging
from gradlane.errors import UnsupportedError

Average = Callable[[Sequence[Any], Sequence[Any], str, Averaging], list[Any]]
"""Averages gradients (None where there is none) of variables, under a prefix of all names."""

_MODULES = {
    "tensorflow": "gradlane.tensorflow.gradients",
    "torch": "gradlane.keras._torch",
    "jax": "gradlane.keras._jax",
}


def average_of_backend() -> Average:
    """The function for the backend that Keras uses.

    Raises:
        UnsupportedError: Gradlane does not know the backend.
    """
    name = keras.backend.backend()
    if name not in _MODULES:
        raise UnsupportedError(f"Keras' backend {name!r} is unknown; use {', '.join(_MODULES)}")
    average: Average = importlib.import_module(_MODULES[name]).average
    return average
