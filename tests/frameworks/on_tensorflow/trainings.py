"""Small trainings whose distributed and single-process results can be compared."""

from __future__ import annotations

import hashlib

import gradlane.tensorflow as gl
import keras
import numpy as np
import tensorflow as tf

TOLERANCE = 1e-6
"""Relative to the largest weight of each variable. In float64 only the order of sums differs, far below it."""

BATCH = 16
STEPS = 50


def mlp(dtype="float64", seed=7):
    """A model whose weights follow from `seed`; `dtype` may be a policy of mixed precision."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((64,), dtype="float64" if dtype == "float64" else "float32"),
            keras.layers.Dense(32, activation="relu", dtype=dtype),
            keras.layers.Dense(10, dtype=dtype),
        ]
    )


def embedder(dtype="float64", seed=7):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(50, 8, dtype=dtype),
            keras.layers.Flatten(dtype=dtype),
            keras.layers.Dense(10, dtype=dtype),
        ]
    )


def samples(count=BATCH * 4, dtype="float64", seed=3):
    """Inputs with labels that can be learned; the same on all workers."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((count, 64)).astype(dtype)
    return inputs, (inputs @ random.standard_normal((64, 10))).argmax(1)


def words(count=BATCH * 4, seed=3):
    random = np.random.default_rng(seed)
    inputs = random.integers(0, 50, (count, 4)).astype("int32")
    return inputs, inputs.sum(1) % 10


def batches(data, steps=STEPS):
    """Batches in turn."""
    inputs, labels = data
    for step in range(steps):
        start = step * BATCH % len(inputs)
        yield inputs[start : start + BATCH], labels[start : start + BATCH]


def mine(batch):
    """This worker's share of a batch; all shares are of one size, so the mean of means is the mean."""
    return tuple(array[gl.rank() :: gl.size()] for array in batch)


def share(data):
    """This worker's share of all batches, for `fit` with batches of BATCH // size."""
    pairs = [mine(batch) for batch in batches(data, len(data[0]) // BATCH)]
    return tuple(np.concatenate(arrays) for arrays in zip(*pairs, strict=True))


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam():
    return keras.optimizers.Adam(3e-3)


OPTIMIZERS = [sgd, adam]


def loss_of(model, inputs, labels):
    losses = keras.losses.sparse_categorical_crossentropy(labels, model(inputs, training=True), from_logits=True)
    return tf.reduce_mean(losses)


def custom_loop(model, optimizer, data, tape=None, steps=STEPS, eager=False):
    """Trains in a loop of its own; `tape` wraps gradient tapes."""

    def step(inputs, labels):
        with tf.GradientTape() as recorded:
            loss = loss_of(model, inputs, labels)
        recorded = tape(recorded) if tape else recorded
        gradients = recorded.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    optimizer.build(model.trainable_variables)
    run = step if eager else tf.function(step, reduce_retracing=True)
    return [float(run(tf.constant(inputs), tf.constant(labels))) for inputs, labels in data]


def compiled(model, optimizer, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, **{"jit_compile": False} | options)
    return model


def deviation(model, reference):
    """The largest difference of a weight, relative to the largest weight of its variable."""
    pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
    return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs)


def assert_equal_everywhere(model, name):
    """The model is bit for bit the same on all workers."""
    digest = hashlib.sha256(b"".join(weights.tobytes() for weights in model.get_weights())).hexdigest()
    digests = gl.allgather(digest, f"digest {name}", plain=True)
    assert len(set(digests)) == 1, digests
