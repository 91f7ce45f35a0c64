"""Logistic regression with NumPy alone: gradients are averaged by `gradlane.push_pull`.

gradlane run -n 4 -s 2 -- python logistic_regression.py

Trains on a synthetic set of which each worker holds every n-th sample, and checks on rank 0 that the weights equal
those of a single process on the whole set, and that they classify well. Exits with 1 if not.
"""

import sys

import gradlane
import numpy as np

SAMPLES, FEATURES, STEPS, RATE = 2000, 20, 200, 1.0
ACCURACY_MIN = 0.95
TOLERANCE = 1e-9  # float64: a few roundings per step, because samples are summed in another order


def main() -> int:
    gradlane.init()
    inputs, labels = data_set()
    rank, size = gradlane.rank(), gradlane.size()
    mine = slice(rank, None, size)
    weights = train(inputs[mine], labels[mine], average)
    if rank != 0:
        return 0

    accuracy = np.mean((inputs @ weights > 0) == labels)
    distance = np.abs(weights - train(inputs, labels, lambda gradient, count: gradient / count)).max()
    print(f"{size} workers: accuracy {accuracy:.1%}, at most {distance:.1e} from the weights of one process")
    return 0 if accuracy >= ACCURACY_MIN and distance <= TOLERANCE else 1


def average(gradient: np.ndarray, count: int) -> np.ndarray:
    """The mean gradient per sample over all workers; each share counts by its size, as sizes may differ."""
    mean = gradient / count
    return gradlane.push_pull(mean, "gradient", op=gradlane.WeightedAverage, weight=float(count))


def train(inputs, labels, reduce):
    weights = np.zeros(FEATURES)
    for _ in range(STEPS):
        predicted = 1 / (1 + np.exp(-inputs @ weights))
        weights -= RATE * reduce(inputs.T @ (predicted - labels), len(inputs))
    return weights


def data_set():
    random = np.random.default_rng(17)
    inputs = random.normal(size=(SAMPLES, FEATURES))
    return inputs, inputs @ random.normal(size=FEATURES) > 0


if __name__ == "__main__":
    sys.exit(main())
