"""Our exceptions instead of those that JAX makes of them when a compiled function runs."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator

import jax

from gradlane._op_library import error_of_code
from gradlane.errors import Error
from gradlane.jax import _native

_FAILURES_MAX = 16

_failures: collections.deque[Error] = collections.deque(maxlen=_FAILURES_MAX)
"""What Python functions have raised that XLA called."""

_OUTSIDE = "this process takes part in no job; call gradlane.init() first"


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Inside, errors of compiled functions are exceptions of `gradlane.errors`.

    Under `jax.jit` an error is raised where somebody first needs a result, as a `JaxRuntimeError` with our text:

        with gl.typed_errors():
            params = jax.block_until_ready(train_step(params, batch))
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        typed = _typed(str(error))
        if typed is None:
            raise
        raise typed from error


def remember(error: Error) -> None:
    """Keeps an error that a Python function raises, so that `typed_errors` finds it again."""
    _failures.append(error)


def _typed(text: str) -> Error | None:
    if _OUTSIDE in text:
        return error_of_code(9, _OUTSIDE)
    remembered = next((failure for failure in reversed(_failures) if str(failure) in text), None)
    return remembered or _native.library.error_of(text)
