"""Keeps TensorFlow's AutoGraph from rewriting this package's functions inside of `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])


def unconverted(function: F) -> F:
    """`function` as it is written, with all that it calls."""
    same: F = tf.autograph.experimental.do_not_convert(function)
    return same
