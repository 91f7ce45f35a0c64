"""Trains a small convolutional net on scikit-learn's handwritten digits with Keras' `fit`, on any number of workers.

python digits.py --steps 100
gradlane run -n 2 -s 2 -- python digits.py --steps 100 --check

All workers draw the same global batch and take their share of it, so any number of workers does the same training.
`--check` makes the accuracy a condition of success. KERAS_BACKEND=torch or jax runs the same script on other backends.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import gradlane.keras as gl
import keras
import numpy as np

ACCURACY_MIN = 0.95
TEST_SAMPLES = 360


def main() -> int:
    options = arguments()
    gl.init()
    keras.utils.set_random_seed(1000 + gl.rank())  # different on purpose: the callback broadcasts rank 0
    (inputs, labels), test = digits()
    model = network(options.seed)
    model.compile(
        optimizer=gl.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # XLA cannot wait for other workers
    )

    drawn = np.random.default_rng(options.seed).integers(len(inputs), size=(options.steps, options.batch))
    mine = drawn[:, gl.rank() :: gl.size()].ravel()
    callbacks = [gl.callbacks.BroadcastGlobalVariablesCallback(0), gl.callbacks.MetricAverageCallback()]
    before, started = gl.metrics(), time.perf_counter()
    history = model.fit(
        inputs[mine],
        labels[mine],
        batch_size=options.batch // gl.size(),
        shuffle=False,
        callbacks=callbacks,
        verbose=0,
    )
    seconds = time.perf_counter() - started

    _, reached = model.evaluate(*test, verbose=0)
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        np.savez(options.save / f"rank{gl.rank()}.npz", *model.get_weights())
    if gl.rank() == 0:
        moved = {name: gl.metrics()[name] - before[name] for name in ("push_bytes", "pull_bytes")}
        print(f"Keras {keras.__version__} on {keras.backend.backend()}, loss {history.history['loss'][0]:.4f}")
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
