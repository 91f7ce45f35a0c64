"""Asynchronous SGD with NumPy: every worker changes weights that live on a server, and waits for no other worker.

gradlane run -n 2 -s 1 -- python examples/parameters/async_sgd.py --check

Trains a logistic regression on a synthetic set, of which each worker holds every n-th sample. In each step a worker
sends the change that its gradient asks for and gets the weights with the changes of all workers, in one exchange. A
slow worker delays nobody; its gradients are of older weights. With `--check`, rank 0 exits with 1 unless the weights
classify well and every change was counted once.
"""

import argparse
import sys

import gradlane
import numpy as np
from gradlane import parameters

SAMPLES, FEATURES, BATCH, STEPS, RATE = 2000, 20, 50, 400, 0.5
ACCURACY_MIN = 0.9  # about 0.97 without noise; asynchronous steps never come in the same order twice


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--check", action="store_true", help="exit with 1 unless the weights classify well")
    check = options.parse_args().check

    gradlane.init()
    inputs, labels = data_set()
    mine = slice(gradlane.rank(), None, gradlane.size())
    train(inputs[mine], labels[mine])

    gradlane.barrier("trained")  # the only wait for other workers: rank 0 judges what all have learnt
    if gradlane.rank() != 0:
        return 0
    weights = np.empty(FEATURES)
    version = parameters.pull("weights", weights)
    accuracy = np.mean((inputs @ weights > 0) == labels)
    changes = version - 1  # the first version is that of init
    print(f"{gradlane.size()} workers: accuracy {accuracy:.1%} after {changes} changes")
    is_good = accuracy >= ACCURACY_MIN and changes == STEPS * gradlane.size()
    return 1 if check and not is_good else 0


def train(inputs: np.ndarray, labels: np.ndarray) -> None:
    random = np.random.default_rng(gradlane.rank())
    weights = np.zeros(FEATURES)
    parameters.init("weights", weights)
    parameters.pull("weights", weights)
    for _ in range(STEPS):
        batch = random.integers(len(inputs), size=BATCH)
        predicted = 1 / (1 + np.exp(-inputs[batch] @ weights))
        gradient = inputs[batch].T @ (predicted - labels[batch]) / BATCH
        parameters.push_pull("weights", -RATE / gradlane.size() * gradient, out=weights)


def data_set():
    random = np.random.default_rng(17)
    inputs = random.normal(size=(SAMPLES, FEATURES))
    return inputs, inputs @ random.normal(size=FEATURES) > 0


if __name__ == "__main__":
    sys.exit(main())
