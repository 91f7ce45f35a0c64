"""Which variables of a model travel with which codec, by the bytes that each worker pushes."""

import gradlane.keras as gk
import gradlane.tensorflow as gl
import keras
import numpy as np
import pytest
import tensorflow as tf
from gradlane.errors import InvalidArgumentError

pytestmark = [
    pytest.mark.quick,
    pytest.mark.over("quic"),
    pytest.mark.workers(2, settings={"step_timeout": "100s"}),
    pytest.mark.usefixtures("implementation"),
]

BOTH = pytest.mark.parametrize("made", [lambda function: function, tf.function], ids=["eager", "graph"])

BLOCKS = 64 * 64 + 64 * 64 // 256 * 4
"""Bytes of a matrix of 64 by 64 in int8, with a scale for each block of 256."""
PLAIN = 4 * (64 * 2 + 64)
"""Bytes of the other variables."""
MARKS = 512
"""At most so many bytes compare which gradients the workers have."""


def variables():
    shapes = {"large": (64, 64), "norm": (64,), "small": (64, 2)}
    return [tf.Variable(tf.ones(shape), name=name) for name, shape in shapes.items()]


def pushed_by_tape(made, compression, name):
    """The bytes that a step pushes, and its averages."""
    weights = variables()

    @made
    def step():
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(weight) for weight in weights) * (1.0 + gl.rank())
        return gl.DistributedGradientTape(tape, compression=compression, name=name).gradient(loss, weights)

    before = gl.metrics()["push_bytes"]
    averages = [average.numpy() for average in step()]
    return gl.metrics()["push_bytes"] - before, averages


@BOTH
def test_a_codec_of_a_model_leaves_out_vectors_and_small_variables(made, request):
    pushed, averages = pushed_by_tape(made, gl.Compression.int8, request.node.name)
    assert 0 <= pushed - (BLOCKS + PLAIN) <= MARKS
    for average in averages:
        np.testing.assert_allclose(average, 1.5, rtol=0.01)


@BOTH
def test_a_function_chooses_for_each_variable(made, request):
    asked = {}

    def choose(name, shape):
        asked[name] = shape
        return gl.Compression.int8 if name.startswith("small") else gl.Compression.none

    pushed, averages = pushed_by_tape(made, choose, request.node.name)
    assert asked == {"large:0": (64, 64), "norm:0": (64,), "small:0": (64, 2)}
    assert 0 <= pushed - (4 * 64 * 64 + 4 * 64 + 64 * 2 + 4) <= MARKS
    for average in averages:
        np.testing.assert_allclose(average, 1.5, rtol=0.01)


@BOTH
def test_what_a_function_gives_must_be_a_compressor(made, request):
    with pytest.raises(InvalidArgumentError, match="'int8' for large.*no compressor"):
        pushed_by_tape(made, lambda name, shape: "int8", request.node.name)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_a_function_chooses_for_each_variable_of_an_optimizer_of_keras(eager):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, name="large"), keras.layers.Dense(2, name="small")])
    asked = {}

    def choose(name, shape):
        asked[name.rpartition("/")[0].rpartition("/")[2], len(shape)] = shape
        return gk.Compression.int8 if len(shape) > 1 and shape[1] == 2 else gk.Compression.none

    optimizer = gk.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=choose)
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=eager, jit_compile=False)
    before = gl.metrics()["push_bytes"]
    model.train_on_batch(np.ones((4, 64), "float32"), np.ones((4, 2), "float32"))
    pushed = gl.metrics()["push_bytes"] - before
    assert asked == {("large", 2): (64, 64), ("large", 1): (64,), ("small", 2): (64, 2), ("small", 1): (2,)}
    assert 0 <= pushed - (4 * (64 * 64 + 64 + 2) + 64 * 2 + 4) <= MARKS
