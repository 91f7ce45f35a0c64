"""Measures what averaging adds to a training step: Keras' `fit` over TensorFlow, with native operations and with Python
functions, and PyTorch's optimizer on an equal model.

python bench/frameworks.py                               needs TensorFlow, Keras and PyTorch
python bench/frameworks.py --torch-python PATH           PyTorch in another environment
python bench/frameworks.py --short                       tries it out

Two workers train in each turn, as many processes as without Gradlane, so that all contend for the same cores. Rows
"alone" do the same without sums. The turns of all rows alternate. Each row has the median of the medians of its turns,
their smallest and largest, and the ratio to "alone" of the same framework. After each turn the weights of both workers
must be the same, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

WIDTH, LAYERS, BATCH = 256, 8, 32
"""512 thousand weights in 16 variables, and some more for the last layer."""
WARM_UP = 20
ROWS = {
    "Keras, alone": ("keras", "alone", "auto"),
    "Keras, native operations": ("keras", "summed", "native"),
    "Keras, Python functions": ("keras", "summed", "fallback"),
    "PyTorch, alone": ("torch", "alone", "auto"),
    "PyTorch": ("torch", "summed", "auto"),
}
TURN_TIMEOUT = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5, help="turns of each row (default 5)")
    parser.add_argument("--steps", type=int, default=200, help="measured steps in a turn (default 200)")
    parser.add_argument("--transport", choices=["local", "quic"], default="quic", help="what the sums travel through")
    parser.add_argument("--torch-python", default=sys.executable, help="the interpreter that has PyTorch")
    parser.add_argument("--short", action="store_true", help="one turn of few steps")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(*options.work, options.steps)
    turns, steps = (1, 10) if options.short else (options.turns, options.steps)
    times: dict[str, list[float]] = {row: [] for row in ROWS}
    for _ in range(turns):
        for row in ROWS:
            times[row].append(turn(row, steps, options))
            print(f"{row}: {times[row][-1]:.3f} ms", file=sys.stderr, flush=True)
    print(f"2 workers, {options.transport}, {turns} turns of {steps} steps; ms a step")
    print(f"{'':26} {'median':>8} {'min':>8} {'max':>8} {'/ alone':>8}")
    alone: dict[str, float] = {}
    for row, (framework, _, _) in ROWS.items():
        median = statistics.median(times[row])
        alone.setdefault(framework, median)
        ratio = median / alone[framework]
        print(f"{row:26} {median:8.3f} {min(times[row]):8.3f} {max(times[row]):8.3f} {ratio:8.2f}", flush=True)
    return 0


def turn(row: str, steps: int, options: argparse.Namespace) -> float:
    """One training on two workers; the median of the slower worker, in ms."""
    framework, kind, operations = ROWS[row]
    python = options.torch_python if framework == "torch" else sys.executable
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--"]
    command += [python, __file__, "--work", framework, kind, "--steps", str(steps)]
    env = os.environ | {
        "GRADLANE_TENSORFLOW_OP": operations,
        "GRADLANE_LOCAL_REDUCE": "auto" if options.transport == "local" else "off",
        "GRADLANE_TRANSPORT": "quic",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONPATH": str(Path(__file__).parents[1] / "plugins"),
    }
    ended = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", timeout=TURN_TIMEOUT, check=False)
    medians = [json.loads(line)["median_ms"] for line in ended.stdout.splitlines() if line.startswith('{"median_ms"')]
    if ended.returncode != 0 or len(medians) != 2:
        sys.exit(f"{row} failed:\n{ended.stdout}{ended.stderr}")
    return max(medians)


def work(framework: str, kind: str, steps: int) -> int:
    """What a worker of a turn does."""
    train = keras_training if framework == "keras" else torch_training
    durations = train(kind == "summed", WARM_UP + steps)[WARM_UP:]
    line = json.dumps({"median_ms": 1000 * statistics.median(durations)})
    os.write(1, f"{line}\n".encode())
    return 0


def keras_training(is_summed: bool, steps: int) -> list[float]:
    import gradlane.keras as gl
    import keras
    import numpy as np

    gl.init()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(gl.DistributedOptimizer(optimizer) if is_summed else optimizer, loss=loss, jit_compile=False)
    inputs = np.random.default_rng(gl.rank()).standard_normal((BATCH * steps, WIDTH)).astype("float32")
    clock = Clock(keras)
    labels = np.arange(len(inputs)) % 10
    model.fit(inputs, labels, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[clock.callback])
    check(is_summed, b"".join(weights.tobytes() for weights in model.get_weights()))
    return clock.durations


class Clock:
    """The times of the batches of `fit`."""

    def __init__(self, keras):
        self.durations, self._begun = [], 0.0
        self.callback = keras.callbacks.LambdaCallback(on_train_batch_begin=self._begin, on_train_batch_end=self._end)

    def _begin(self, batch, logs):
        self._begun = time.perf_counter()

    def _end(self, batch, logs):
        self.durations.append(time.perf_counter() - self._begun)


def torch_training(is_summed: bool, steps: int) -> list[float]:
    import gradlane.torch as gl
    import torch
    from torch import nn

    gl.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if is_summed:
        optimizer = gl.DistributedOptimizer(optimizer, model.named_parameters())
    draw = torch.Generator().manual_seed(gl.rank())
    inputs, durations = torch.randn(steps, BATCH, WIDTH, generator=draw), []
    for step in range(steps):
        begun = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[step]), torch.arange(BATCH) % 10).backward()
        optimizer.step()
        durations.append(time.perf_counter() - begun)
    check(is_summed, b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    return durations


def check(is_summed: bool, weights: bytes) -> None:
    """Both workers must have the same weights exactly if gradients were averaged."""
    import hashlib

    import gradlane

    digests = gradlane.allgather(hashlib.sha256(weights).hexdigest(), "weights", plain=True)
    assert (len(set(digests)) == 1) == is_summed, digests


if __name__ == "__main__":
    sys.exit(main())
