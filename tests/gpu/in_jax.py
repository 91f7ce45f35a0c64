"""JAX on a GPU: its arrays go through host memory, eagerly and in compiled programs."""

from __future__ import annotations

import importlib.util
import statistics
import time

import gradlane.torch as gl
from places import IS_SHORT
from telling import figure, passed, skipped

LENS = (1, 5, 1 << 20)
SIZES = (4 << 10, 1 << 20) if IS_SHORT else (4 << 10, 1 << 20, 64 << 20)
"""Bytes of what is timed."""


def jax_sums() -> None:
    """Sums and gradients of arrays that lie on the device, against what they must be."""
    if importlib.util.find_spec("jax") is None:
        skipped("JAX is not installed")
        return
    import gradlane.jax as gl_jax
    import jax
    import jax.numpy as jnp

    place = jax.devices()[0]
    if place.platform != "gpu":
        skipped(f"JAX computes on {place.platform}: no JAX for CUDA is installed")
        return
    whole = sum(range(1, gl.size() + 1))

    def summed(array: jax.Array, name: str) -> jax.Array:
        return gl_jax.push_pull(array * (gl.rank() + 1), name, op=gl_jax.Sum) * 2

    for dtype in ("float32", "bfloat16", "float16", "int32"):
        for count in LENS:
            # Small whole numbers: exact in every type.
            array = (jnp.arange(count) % 4).astype(dtype)
            for form, function in (("eager", summed), ("compiled", jax.jit(summed, static_argnums=1))):
                found = function(array, f"{form} {dtype} {count}")
                wrong = int((found != array * (2 * whole)).sum())
                assert found.devices() == {place} and wrong == 0, f"{form}, {dtype}: {wrong} of {count} are wrong"
    passed("sums of arrays on the device are exact, eager and compiled, and come back to it")

    def loss(weights: jax.Array, inputs: jax.Array) -> jax.Array:
        return gl_jax.push_pull((inputs * weights).sum(), "loss", op=gl_jax.Sum)

    gradient = jax.jit(jax.grad(loss))(jnp.ones(1000), jnp.full(1000, gl.rank() + 1.0))
    assert bool((gradient == (gl.rank() + 1.0) * gl.size()).all()), "a gradient through a sum is wrong"
    passed("a compiled gradient through a sum is right")

    for size in SIZES:
        array, seconds = jnp.ones(size // 4), []
        step = jax.jit(summed, static_argnums=1)
        for _ in range(4 if IS_SHORT else 20):
            begun = time.perf_counter()
            jax.block_until_ready(step(array, f"timed {size}"))
            seconds.append(time.perf_counter() - begun)
        figure(f"a compiled sum of {size >> 10} KiB through a server", statistics.median(seconds[2:]) * 1e3, "ms")
