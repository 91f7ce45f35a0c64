"""The ops `GradlaneSubmit` and `GradlaneWait` of the native library, for eager code and inside `tf.function`.

A contribution is lent to the engine where TensorFlow has it, and the result is received into the memory of the output:
nothing is copied. Submitting never blocks. One wait takes the handles of a whole step, because a wait for each tensor
could occupy all of TensorFlow's threads before the other tensors are submitted. So a program whose Python threads reduce
at once needs more threads for operations than these, by `tf.config.threading.set_inter_op_parallelism_threads`.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from gradlane import _session
from gradlane._framework import translated
from gradlane._op_library import OpLibrary, error_of_code
from gradlane._operations import check_name
from gradlane._reduction import AVERAGE, Reduction
from gradlane.errors import Error, UnsupportedError

_library = OpLibrary("libgradlane_tensorflow_op.so")
_lock = threading.Lock()
_ops: Any = None

_OURS = re.compile(r"Gradlane(Submit|Wait)")
_DECORATION = re.compile(r".*\n\n|\{\{.*?\}\}\s*|\s*(; NodeDef:|\[Op:|\[\[).*", re.DOTALL)
"""What TensorFlow puts around the text of an op's error: the node and its place in the program."""


def load() -> Any:
    """Loads the native ops, once, and returns their module.

    Raises:
        UnsupportedError: they cannot be used; the message says why.
    """
    global _ops
    with _lock:
        if _ops is None:
            _ops = _loaded()
        return _ops


def submit(tensor: tf.Tensor, name: str, step: tf.Tensor | int, reduction: Reduction = AVERAGE) -> tf.Tensor:
    """Starts a reduction and returns its handle, a scalar of int64, for `wait` in the same step.

    An error of the engine is raised by `wait`, also one about these arguments.

    Args:
        tensor: dense, any shape; float16, bfloat16, float32, float64, int32, int64, int8 or uint8; in host memory, or
            on a device that TensorFlow copies it from.
        name: equal on all workers; its first use fixes dtype and shape.
        step: inside `tf.function` a tensor that is not constant, such as a variable that counts steps. TensorFlow takes
            the reduction of a constant for a constant otherwise, and runs it only once.
        reduction: how it is reduced; among all workers.
    Raises:
        NotInitializedError: before `init()`.
        UnsupportedError: the library cannot be used; the message says why.
    """
    ops = load()
    _session.session()
    with typed_errors():
        return ops.gradlane_submit(
            tensor=tensor,
            step=tf.cast(step, tf.int64),
            weight=tf.cast(reduction.weight, tf.float64),
            tensor_name=check_name(name),
            reduction=reduction.op,
            root=reduction.root,
            priority=reduction.priority,
            codec=reduction.codec,
            timeout_ms=reduction.timeout_ms,
        )


def wait(handles: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Waits for all operations, and returns their results in the order of the handles.

    Args:
        handles: what `submit` has returned, each once.
        like: the contributions, or anything with their dtypes and shapes.
    Raises:
        Error: the exception of the first operation that failed. Inside `tf.function` TensorFlow raises one of its own
            with the same text when the function runs; `typed_errors` turns that into ours.
    """
    ops = load()
    if not handles:
        return []
    with typed_errors():
        sums = ops.gradlane_wait(handles=list(handles), Tout=[tensor.dtype for tensor in like])
    for total, tensor in zip(sums, like, strict=True):
        total.set_shape(tensor.shape)
    return list(sums)


def typed_errors() -> AbstractContextManager[None]:
    """Raises the exceptions of `gradlane.errors` instead of those that TensorFlow makes of them in graphs."""
    return translated(tf.errors.OpError, typed_error)


def typed_error(error: tf.errors.OpError) -> Error | None:
    """The exception of `gradlane.errors` for an error that one of the ops has reported; None for any other error."""
    typed = _library.error_of(error.message)
    if typed is None and _OURS.search(error.message):
        return error_of_code(error.error_code, _DECORATION.sub("", error.message))
    return typed


def _loaded() -> Any:
    _library.check_present()
    try:
        ops = tf.load_op_library(str(_library.path))
    except (tf.errors.OpError, RuntimeError) as error:
        raise UnsupportedError(f"TensorFlow cannot load {_library.path}: {error}") from error
    library = _library.attach()
    ask = library.gradlane_op_why_not
    ask.restype = ctypes.c_char_p
    reason = ask()
    if reason is not None:
        raise UnsupportedError(f"TensorFlow {tf.__version__}: {reason.decode()}")
    return ops
