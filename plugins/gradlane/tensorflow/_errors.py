"""Our exceptions instead of those that TensorFlow makes of them when a graph runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import tensorflow as tf

from gradlane._framework import Failures, translated
from gradlane.errors import Error
from gradlane.tensorflow import _native
from gradlane.tensorflow._autograph import unconverted

T = TypeVar("T")

_failures = Failures()


def python_function(function: Callable[..., T]) -> Callable[..., T]:
    """A function for `tf.numpy_function` whose errors `typed_errors` finds again; AutoGraph leaves it alone."""

    def remembering(*arguments: Any) -> T:
        try:
            return function(*arguments)
        except Error as error:
            _failures.keep(error)
            raise

    return unconverted(remembering)


def typed_errors() -> AbstractContextManager[None]:
    """Inside, errors of graphs are exceptions of `gradlane.errors`.

    TensorFlow turns what happens while a `tf.function` runs into exceptions of its own. Their text has the class and
    the message of ours, but no fields:

        with gl.typed_errors():
            train_step(batch)
    """
    return translated(tf.errors.OpError, _typed)


def _typed(error: tf.errors.OpError) -> Error | None:
    return _native.typed_error(error) or _failures.find(error.message)
