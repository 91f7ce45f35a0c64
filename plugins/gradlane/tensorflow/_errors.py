"""Our exceptions instead of those that TensorFlow makes of them when a graph runs."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

from gradlane.errors import Error
from gradlane.tensorflow import _native
from gradlane.tensorflow._autograph import unconverted

T = TypeVar("T")

_FAILURES_MAX = 16

_failures: collections.deque[Error] = collections.deque(maxlen=_FAILURES_MAX)
"""What Python functions in graphs have raised."""


def python_function(function: Callable[..., T]) -> Callable[..., T]:
    """A function for `tf.numpy_function` whose errors `typed_errors` finds again; AutoGraph leaves it alone."""

    def remembering(*arguments: Any) -> T:
        try:
            return function(*arguments)
        except Error as error:
            _failures.append(error)
            raise

    return unconverted(remembering)


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Inside, errors of graphs are exceptions of `gradlane.errors`.

    TensorFlow turns what happens while a `tf.function` runs into exceptions of its own. Their text has the class and
    the message of ours, but no fields:

        with gl.typed_errors():
            train_step(batch)
    """
    try:
        yield
    except tf.errors.OpError as error:
        typed = _native.typed_error(error) or _remembered(error)
        if typed is None:
            raise
        raise typed from error


def _remembered(error: Any) -> Error | None:
    return next((failure for failure in reversed(_failures) if str(failure) in error.message), None)
