"""Logistic regression as in ps-lite's example, with NumPy alone: weights on servers, in each mode, and local SGD.

gradlane run -n 3 -s 2 -- python examples/parameters/logreg.py --check

Each worker has an equal share of a set whose labels follow from known weights. Prints for each mode the loss and the accuracy of
the shared weights on the whole set. With `--check`, the exit code is 1 unless `sync` has the weights of a single process with the
whole set, and each other mode reaches nearly the loss of it.
"""

import argparse
import sys
import time
from collections import Counter

import gradlane
import numpy as np
from gradlane import modes, parameters, rules

SAMPLES, FEATURES, STEPS, RATE = 24_000, 20, 100, 1.0
EVERY = 10
"""Steps between two exchanges of local SGD."""
TOLERANCE = 1e-6
LOSS_MAX = 1.02
"""Of the loss of the single process. Where nobody waits, the last steps may all be those of one share. At the best weights of a
share, the loss of the whole set is higher by about FEATURES / 2 * (1 / len(share) - 1 / SAMPLES): by 1 % with 8 workers."""


def main() -> int:
    options = arguments()
    gradlane.init()
    rank, size = gradlane.rank(), gradlane.size()
    inputs, labels = data_set(SAMPLES - SAMPLES % size)
    share = inputs[rank::size], labels[rank::size]
    on_servers = {
        "sync": modes.Sync(),
        "async": modes.Async(max_staleness=8 * size),
        "ssp": modes.SSP(4, max_staleness=8 * size),
        "backup": modes.Backup(k=max(1, size - 1)),
    }
    alone = np.zeros(FEATURES)
    for _ in range(STEPS):
        alone -= RATE * gradient(alone, inputs, labels)
    is_good = True
    for way in [options.mode] if options.mode else [*on_servers, "local"]:
        gradlane.barrier(f"{way} begins")
        started = time.perf_counter()
        weights, fates, lag = train_locally(*share) if way == "local" else train(way, on_servers[way], *share)
        gradlane.barrier(f"{way} ends")
        seconds = time.perf_counter() - started
        if way != "local":
            parameters.pull(way, weights)  # what all have made
        told = gradlane.allgather((fates, lag), f"{way} told")
        lost = sum(fates["discarded_stale"] + fates["dropped_late"] for fates, _ in told)
        loss, distance = loss_of(weights, inputs, labels), np.abs(weights - alone).max()
        is_good &= bool(distance <= TOLERANCE if way == "sync" else loss <= LOSS_MAX * loss_of(alone, inputs, labels))
        if rank == 0:
            accuracy = np.mean((inputs @ weights > 0) == labels)
            print(
                f"{way:6} loss {loss:.4f}, accuracy {accuracy:.1%}, {seconds:.2f} s, {distance:.0e} from a single process; "
                f"{lost} gradients discarded or dropped, largest lag {max(lag for _, lag in told)}"
            )
    return 1 if options.check and not is_good else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mode", choices=["sync", "async", "ssp", "backup", "local"], help="one of them (default: all in turn)")
    parser.add_argument("--check", action="store_true", help="fail unless the weights are as good as those of one process")
    return parser.parse_args()


def train(name: str, mode: modes.Mode, inputs, labels) -> tuple[np.ndarray, Counter, int]:
    """Trains weights on the servers. Returns what this worker has read, what became of its gradients, and the largest lag."""
    weights, fates, lag, step = np.zeros(FEATURES), Counter(), 0, 0
    clock = None if isinstance(mode, modes.Async) else parameters.Clock(name, mode)
    parameters.init(name, weights, rule=rules.SGD(lr=RATE), mode=clock or mode)
    while step < STEPS:
        pushed = parameters.push(name, gradient(weights, inputs, labels), update="step")
        tick = clock.tick() if clock else None
        parameters.pull(name, weights)
        fates[tick.fate if tick and pushed.fate == "kept" else pushed.fate] += 1
        # A worker that was late in a mode with rounds goes on behind those that the others have closed.
        lag, step = max(lag, pushed.lag), tick.round if tick else step + 1
    return weights, fates, lag


def train_locally(inputs, labels) -> tuple[np.ndarray, Counter, int]:
    """Trains weights of this worker's own, and takes the mean of all workers' every few steps."""
    weights = np.zeros(FEATURES)
    for step in range(STEPS):
        weights -= RATE * gradient(weights, inputs, labels)
        if (step + 1) % EVERY == 0:
            gradlane.push_pull(weights, "local weights")
    return weights, Counter(), 0


def gradient(weights, inputs, labels) -> np.ndarray:
    return inputs.T @ (sigmoid(inputs @ weights) - labels) / len(inputs)


def loss_of(weights, inputs, labels) -> float:
    outputs = inputs @ weights
    return float(np.mean(np.logaddexp(0, outputs) - labels * outputs))


def sigmoid(outputs) -> np.ndarray:
    return 1 / (1 + np.exp(-outputs))


def data_set(samples: int):
    """Normal inputs; a label is 1 with the probability that the known weights give it."""
    random = np.random.default_rng(17)
    inputs, known = random.normal(size=(samples, FEATURES)), random.normal(size=FEATURES)
    return inputs, random.random(samples) < sigmoid(inputs @ known)


if __name__ == "__main__":
    sys.exit(main())
