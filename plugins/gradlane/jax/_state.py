"""How arrays of JAX travel to a worker that comes to an elastic job."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradlane._parts import InOnePiece, Part, digest_of


def part_of_jax(value: jax.Array) -> Part:
    """How this array travels."""
    return _Array(value)


class _Array(InOnePiece):
    """An array, or a key of random numbers. It cannot be written, so another one takes its place, where it was."""

    kind = "array of JAX"

    def __init__(self, value: jax.Array) -> None:
        self._value = value

    def form(self) -> list[list[Any]]:
        return [["array", str(self._value.dtype), list(self._value.shape)]]

    def digest(self) -> str:
        if jnp.issubdtype(self._value.dtype, jax.dtypes.prng_key):
            pickle.dumps(self._value)  # an error costs the newcomer its start now, and no donor its training later
            return ""  # each worker may have keys of its own
        return digest_of([np.asarray(self._value).tobytes()])

    def sent(self) -> Any:
        return self._value  # JAX pickles it with all that its type is, and its bits

    def taken(self, received: Any) -> Any:
        fresh = jnp.asarray(received)
        return jax.device_put(fresh, self._value.sharding) if self._value.committed else fresh  # committed: it was put on a device
