"""Our exceptions instead of those that JAX makes of them when a compiled function runs."""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax

from gradlane import _ending
from gradlane._framework import Failures, translated
from gradlane._op_library import error_of_code
from gradlane.errors import Error, MismatchError
from gradlane.jax import _native
from gradlane.jax._names import STRUCTURE

_failures = Failures()

_OUTSIDE = "this process takes part in no job; call gradlane.init() first"


def typed_errors() -> AbstractContextManager[None]:
    """Inside, errors of compiled functions are exceptions of `gradlane.errors`.

    Under `jax.jit` an error is raised where somebody first needs a result, as a `JaxRuntimeError` with our text:

        with gl.typed_errors():
            params = jax.block_until_ready(train_step(params, batch))
    """
    return translated(jax.errors.JaxRuntimeError, _typed)


def remember(error: Error) -> None:
    """Keeps an error that a Python function raises, so that `typed_errors` finds it again."""
    _failures.keep(error)


def _typed(error: Exception) -> Error | None:
    text = str(error)
    if _OUTSIDE in text:
        return error_of_code(9, _OUTSIDE)
    return _in_words(_failures.find(text) or _native.library.error_of(text))


def _of_uncaught(error: BaseException) -> Error | None:
    return _typed(error) if isinstance(error, jax.errors.JaxRuntimeError) else None


_ending.translate(_of_uncaught)


def _in_words(error: Error | None) -> Error | None:
    """The same error, but one about the paths of a tree without the lengths that stand for them."""
    if not isinstance(error, MismatchError) or not (error.tensor or "").removesuffix(", backward").endswith(STRUCTURE):
        return error
    name = str(error.tensor).partition(STRUCTURE)[0]
    first, second = error.ranks
    who = f"worker {first} and worker {second} give" if first != second else f"two calls of worker {first} give"
    return MismatchError(
        f"tensor {name}: {who} trees with other paths; give all workers the same tree, and each call of the program a "
        "name of its own",
        tensor=name,
        field="tree",
        first=(first, None),
        second=(second, None),
    )
