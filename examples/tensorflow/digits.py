"""Trains a small convolutional net on scikit-learn's handwritten digits with a loop of TensorFlow, on any
number of workers.

python digits.py --steps 100
gradlane run -n 2 -s 2 -- python digits.py --steps 100 --check

All workers draw the same global batch and take their share of it, so any number of workers does the same training.
`--check` makes the accuracy a condition of success.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import gradlane.tensorflow as gl
import keras
import numpy as np
import tensorflow as tf

ACCURACY_MIN = 0.95
TEST_SAMPLES = 360
LINES = 10
"""How many progress lines are printed."""


def main() -> int:
    options = arguments()
    gl.init()
    keras.utils.set_random_seed(1000 + gl.rank())  # different on purpose: rank 0 is broadcast
    (inputs, labels), test = digits()
    model = network(options.seed)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
    gl.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(images, training=True))
        tape = gl.DistributedGradientTape(tape)  # the only change
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    drawn = np.random.default_rng(options.seed).integers(len(inputs), size=(options.steps, options.batch))
    before, started = gl.metrics(), time.perf_counter()
    for number, batch in enumerate(drawn):
        mine = batch[gl.rank() :: gl.size()]
        loss = step(tf.constant(inputs[mine]), tf.constant(labels[mine]))
        if gl.rank() == 0 and number % max(1, options.steps // LINES) == 0:
            print(f"step {number + 1:4} of {options.steps}   loss {float(loss):.4f}", flush=True)
    seconds = time.perf_counter() - started

    reached = float(np.mean(np.argmax(model(test[0]), 1) == test[1]))
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        np.savez(options.save / f"rank{gl.rank()}.npz", *model.get_weights())
    if gl.rank() == 0:
        moved = {name: gl.metrics()[name] - before[name] for name in ("push_bytes", "pull_bytes")}
        print(f"workers         {gl.size()}")
        print(f"test accuracy   {reached:.1%}")
        print(f"time            {1000 * seconds / options.steps:.2f} ms a step")
        print(f"moved by rank 0 {moved['push_bytes'] / 1e6:.2f} MB pushed, {moved['pull_bytes'] / 1e6:.2f} MB pulled")
    gl.shutdown()
    return 1 if options.check and reached < ACCURACY_MIN else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (default 100)")
    parser.add_argument("--batch", type=int, default=128, help="samples a step over all workers (default 128)")
    parser.add_argument("--seed", type=int, default=1, help="of initial weights and batches (default 1)")
    parser.add_argument("--save", type=Path, help="folder for the final weights of each rank")
    parser.add_argument("--check", action="store_true", help=f"fail if the test accuracy is below {ACCURACY_MIN:.0%}")
    return parser.parse_args()


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test set: standardised images of 8x8x1 and their labels. The split is fixed."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = data.images.astype("float32")[..., None]
    images = (images - images.mean()) / images.std()
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[TEST_SAMPLES:], order[:TEST_SAMPLES]
    return (images[train], data.target[train]), (images[test], data.target[test])


def network(seed: int) -> keras.Model:
    """The net. `seed` determines the weights of rank 0; those of the others do not matter.

    It is smooth on purpose. Where ReLU bends, the last bit of a sum decides which way a gradient goes; trainings that
    differ only by rounding would then drift apart, and could not be compared to five digits.
    """
    if gl.rank() == 0:
        keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="gelu"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Conv2D(32, 3, padding="same", activation="gelu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
