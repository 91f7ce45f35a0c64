"""Trains a small convolutional net on scikit-learn's handwritten digits with JAX and optax, on any number of workers.

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
from typing import Any

import gradlane.jax as gl
import jax
import jax.numpy as jnp
import numpy as np
import optax

ACCURACY_MIN = 0.95
TEST_SAMPLES = 360


def main() -> int:
    options = arguments()
    gl.init()
    (inputs, labels), test = digits()
    params = gl.broadcast(network(options.seed + gl.rank()), root_rank=0)  # all start with the weights of rank 0
    optimizer = optax.chain(gl.push_pull_gradients(), optax.sgd(0.05, momentum=0.9))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, inputs: Any, labels: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(params, inputs, labels)
        updates, state = optimizer.update(gradients, state, params)  # averages the gradients over all workers
        return optax.apply_updates(params, updates), state, loss

    drawn = np.random.default_rng(options.seed).integers(len(inputs), size=(options.steps, options.batch))
    before, started = gl.metrics(), time.perf_counter()
    for batch in drawn[:, gl.rank() :: gl.size()]:
        with gl.typed_errors():  # the exceptions of gradlane.errors instead of JAX's
            params, state, loss = jax.block_until_ready(step(params, state, inputs[batch], labels[batch]))
    seconds = time.perf_counter() - started

    reached = float((outputs_of(params, test[0]).argmax(1) == test[1]).mean())
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
        np.savez(options.save / f"rank{gl.rank()}.npz", **named)
    if gl.rank() == 0:
        moved = {name: gl.metrics()[name] - before[name] for name in ("push_bytes", "pull_bytes")}
        print(f"JAX {jax.__version__} on {jax.default_backend()}, last loss {float(loss):.4f}")
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


def digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Training and test set: standardised images of 8x8x1 and their labels. The split is fixed."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = data.images.astype("float32")[..., None]
    images = (images - images.mean()) / images.std()
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[TEST_SAMPLES:], order[:TEST_SAMPLES]
    return (images[train], data.target[train]), (images[test], data.target[test])


def network(seed: int) -> dict[str, Any]:
    """The parameters of the net: two convolutions and a dense layer.

    The net is smooth on purpose. Where ReLU bends, the last bit of a sum decides which way a gradient goes; trainings
    that differ only by rounding would then drift apart, and could not be compared to five digits.
    """
    shapes = {"first": (3, 3, 1, 16), "second": (3, 3, 16, 32), "dense": (4 * 4 * 32, 10)}
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return {
        name: {"kernel": jax.random.normal(key, shape) / np.prod(shape[:-1]) ** 0.5, "bias": jnp.zeros(shape[-1])}
        for (name, shape), key in zip(shapes.items(), keys, strict=True)
    }


def outputs_of(params: dict[str, Any], images: Any) -> Any:
    def convolved(images: Any, layer: dict[str, Any]) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        whole = jax.lax.conv_general_dilated(images, layer["kernel"], (1, 1), "SAME", dimension_numbers=layout)
        return jax.nn.gelu(whole + layer["bias"])

    hidden = convolved(images, params["first"])
    pooled = hidden.reshape(-1, 4, 2, 4, 2, 16).mean((2, 4))
    flat = convolved(pooled, params["second"]).reshape(-1, 4 * 4 * 32)
    return flat @ params["dense"]["kernel"] + params["dense"]["bias"]


def loss_of(params: dict[str, Any], images: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs_of(params, images), labels).mean()


if __name__ == "__main__":
    sys.exit(main())
