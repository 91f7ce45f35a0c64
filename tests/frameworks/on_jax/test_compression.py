"""Which arrays of a tree travel with which codec, by the bytes that each worker pushes."""

import gradlane.jax as gl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradlane.errors import InvalidArgumentError

pytestmark = [pytest.mark.quick, pytest.mark.workers(2), pytest.mark.over("quic")]

BLOCKS = 64 * 64 + 64 * 64 // 256 * 4
"""Bytes of a matrix of 64 by 64 in int8, with a scale for each block of 256."""
PLAIN = 4 * (64 * 2 + 64)
"""Bytes of the other arrays."""
STRUCTURE = 1021
"""At most so many bytes compare the trees of the workers."""


def gradients():
    return {"large": jnp.full((64, 64), 1.0 + gl.rank()), "norm": jnp.ones(64), "small": jnp.full((64, 2), 3.0)}


def pushed_by(compression, name):
    """The bytes that a compiled step pushes, and its averages."""
    optimizer = gl.push_pull_gradients(name, compression=compression)
    step = jax.jit(lambda tree: optimizer.update(tree, optimizer.init(tree))[0])
    before = gl.metrics()["push_bytes"]
    averages = jax.block_until_ready(step(gradients()))
    return gl.metrics()["push_bytes"] - before, averages


def assert_averaged(averages):
    for name, expected in {"large": 1.5, "norm": 1.0, "small": 3.0}.items():
        np.testing.assert_allclose(averages[name], expected, rtol=0.01)


def test_a_codec_of_a_model_leaves_out_vectors_and_small_arrays(call):
    pushed, averages = pushed_by(gl.Compression.int8, f"by rule {call}")
    assert 0 <= pushed - (BLOCKS + PLAIN) <= STRUCTURE
    assert_averaged(averages)


def test_a_function_chooses_for_each_array(call):
    asked = {}

    def choose(name, shape):
        asked[name] = shape
        return gl.Compression.int8 if name == "['small']" else gl.Compression.none

    pushed, averages = pushed_by(choose, f"chosen {call}")
    assert asked == {"['large']": (64, 64), "['norm']": (64,), "['small']": (64, 2)}
    assert 0 <= pushed - (4 * 64 * 64 + 4 * 64 + 64 * 2 + 4) <= STRUCTURE
    assert_averaged(averages)


def test_what_a_function_gives_must_be_a_compressor(call):
    with pytest.raises(InvalidArgumentError, match="'int8' for .*large.*no compressor"):
        pushed_by(lambda name, shape: "int8", f"wrong {call}")
