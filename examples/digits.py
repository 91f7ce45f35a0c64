"""Trains a small convolutional net on scikit-learn's handwritten digits, on any number of workers.

python digits.py --steps 100
gradlane run -n 2 -s 2 -- python digits.py --steps 100 --check

All workers draw the same global batch and take their share of it, so any number of workers does the same training.
With `-o on_worker_loss=continue`, a worker that gets SIGTERM leaves at the end of its step, and the others train on.
`--check` makes the accuracy a condition of success.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import gradlane.torch as gl
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ACCURACY_MIN = 0.95
TEST_SAMPLES = 360
LINES = 10
"""How many progress lines are printed where there is no terminal."""


def main() -> int:
    options = arguments()
    (inputs, labels), test = digits()
    gl.init()  # after what takes long: the others wait for one that comes later
    torch.set_num_threads(1)  # the workers share the cores of this host
    torch.manual_seed(gl.rank())  # different on purpose: the wrapper broadcasts rank 0
    model = gl.DistributedDataParallel(network(options.seed))
    before = gl.metrics()
    seconds, losses = train(model, inputs, labels, options)
    if gl.elastic.has_left():
        return 0

    reached = accuracy(model, *test)
    if options.save:
        save(options.save, model.module.state_dict().values(), losses)
    if gl.elastic.world().index == 0:
        report(options.steps, seconds, reached, before, gl.metrics())
    gl.shutdown()
    return 1 if options.check and reached < ACCURACY_MIN else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (default 100)")
    parser.add_argument("--batch", type=int, default=128, help="samples a step over all workers (default 128)")
    parser.add_argument("--seed", type=int, default=1, help="of initial weights and batches (default 1)")
    parser.add_argument("--save", type=Path, help="folder for the final weights and the losses of each rank")
    parser.add_argument("--check", action="store_true", help=f"fail if the test accuracy is below {ACCURACY_MIN:.0%}")
    return parser.parse_args()


def digits() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Training and test set: standardised images of 1x8x8 and their labels. The split is fixed."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[TEST_SAMPLES:], order[:TEST_SAMPLES]
    return (images[train], labels[train]), (images[test], labels[test])


def network(seed: int) -> nn.Module:
    """The net. `seed` determines the weights of rank 0; those of the others do not matter.

    It is smooth on purpose. Where ReLU bends, and where two pixels tie in a max pool, the last bit of a sum decides
    which way a gradient goes; trainings that differ only by rounding would then drift apart, and could not be compared
    to five digits.
    """
    if gl.rank() == 0:
        torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, options: argparse.Namespace
) -> tuple[float, list[float]]:
    """Trains on this worker's share of each batch. Returns the seconds that it took, and this worker's loss at each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    draw = torch.Generator().manual_seed(options.seed)
    # What a worker gets that comes later, in place of one that was lost.
    state = gl.elastic.State(model=model, optimizer=optimizer)

    def batches() -> Iterator[torch.Tensor]:
        """The samples of each step over all workers, which all of them draw alike."""
        for step in range(options.steps):
            batch = torch.randint(len(inputs), (options.batch,), generator=draw)
            if step == state.step:  # the others have done those before
                yield batch

    losses = []
    started = time.perf_counter()
    with Progress(options.steps, is_shown=gl.rank() == 0) as progress:
        for samples in gl.elastic.steps(state, batches()):
            world = gl.elastic.world()
            batch = samples[world.index :: world.size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            progress.advance(state.step, losses[-1])
    return time.perf_counter() - started, losses


def save(folder: Path, weights: Iterable[torch.Tensor], losses: list[float]) -> None:
    """Writes this worker's weights, and its loss at each step."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"rank{gl.rank()}.npz", *[tensor.numpy() for tensor in weights])
    np.save(folder / f"losses{gl.rank()}.npy", losses)


@torch.no_grad()
def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of samples that the model classifies correctly."""
    model.eval()
    return (model(inputs).argmax(1) == labels).float().mean().item()


def report(steps: int, seconds: float, reached: float, before: dict, after: dict) -> None:
    """Prints the results of the training. Bytes are those of this worker, counted after construction."""
    moved = {name: after[name] - before[name] for name in ("push_bytes", "pull_bytes")}
    print(f"workers         {gl.size()}")
    print(f"test accuracy   {reached:.1%}")
    print(f"time            {1000 * seconds / steps:.2f} ms a step")
    print(f"moved by rank 0 {moved['push_bytes'] / 1e6:.2f} MB pushed, {moved['pull_bytes'] / 1e6:.2f} MB pulled")


class Progress:
    """A progress bar on a terminal, else a few plain lines."""

    def __init__(self, steps: int, *, is_shown: bool) -> None:
        self._steps, self._bar = steps, None
        self._every = max(1, steps // LINES) if is_shown else None
        if is_shown and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar, self._every = tqdm(total=steps, unit="step"), None

    def advance(self, step: int, loss: float) -> None:
        """Records that step number `step` is done."""
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            self._bar.update()
        elif self._every and (step % self._every == 0 or step == self._steps - 1):
            print(f"step {step + 1:4} of {self._steps}   loss {loss:.4f}", flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


if __name__ == "__main__":
    sys.exit(main())
