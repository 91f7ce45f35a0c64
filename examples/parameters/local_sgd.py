"""Handwritten digits by local SGD: models that are exchanged every 8 steps, against gradients that are averaged in each.

gradlane run -n 3 -s 1 -- python examples/parameters/local_sgd.py --check

Trains the same small net with gradients that are averaged in each step, and then by each rule of `gl.exchanges`: every worker
trains its own model on its own share of the images. Prints for each what the shared weights reach on the test images, and how
many bytes a worker has sent and received, without those of the beginning and the end. With `--check`, the exit code is 1 unless
all classify 95 %.
"""

from __future__ import annotations

import argparse
import sys

import gradlane.torch as gl
import torch
import torch.nn.functional as F
from torch import nn

EVERY, BATCH, RATE = 8, 32, 2e-3
ACCURACY_MIN = 0.95
RULES = {
    "average": gl.exchanges.Average(),
    "average, alone": gl.exchanges.Average(synchronous=False),
    "elastic": gl.exchanges.Elastic(rate=0.5),
    "geo": gl.exchanges.Geo(),
}


def main() -> int:
    options = arguments()
    (inputs, labels), test = digits()
    # The workers of one machine send what those of several would.
    gl.init(config={"local_reduce": "off"})
    torch.set_num_threads(1)  # the workers share the cores of this host
    mine = slice(gl.rank(), None, gl.size())
    reached, moved_in_each = [], 0
    for way in ("gradients", *RULES):
        torch.manual_seed(1)
        model = network()
        moved, accuracy = train(model, RULES.get(way), inputs[mine], labels[mine], test, options.steps)
        moved_in_each = moved_in_each or moved
        reached.append(accuracy)
        if gl.rank() == 0:
            saved = f", {1 - moved / moved_in_each:4.0%} saved" if moved_in_each else ""
            print(f"{way:15} {accuracy:.1%} with {moved / 1e6:6.2f} MB a worker{saved}")
    return 1 if options.check and min(reached) < ACCURACY_MIN else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="the steps of a worker (default 500)")
    parser.add_argument("--check", action="store_true", help=f"fail unless {ACCURACY_MIN:.0%} are classified")
    return parser.parse_args()


def digits() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Training and test set: standardised images of 1x8x8 and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    images, labels = (images - images.mean()) / images.std(), torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[360:], order[:360]
    return (images[train], labels[train]), (images[test], labels[test])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16 * 4 * 4, 10)
    )


def train(model: nn.Module, rule: gl.exchanges.Exchange | None, inputs, labels, test, steps: int) -> tuple[int, float]:
    """Trains. Returns the bytes that this worker has moved meanwhile, and the accuracy of the shared weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    trained, local = model, None
    if rule is None:
        trained = gl.DistributedDataParallel(model)
    else:
        local = gl.LocalSGD(model.named_parameters(), optimizer, exchange=rule, every=EVERY)
    draw = torch.Generator().manual_seed(gl.rank())
    gl.barrier("all begin")
    before = moved_by_this_worker()
    for _ in range(steps):
        batch = torch.randint(len(inputs), (BATCH,), generator=draw)
        optimizer.zero_grad()
        F.cross_entropy(trained(inputs[batch]), labels[batch]).backward()
        optimizer.step()
        if local is not None:
            local.step()
    moved = moved_by_this_worker() - before
    if local is None:
        return moved, accuracy_of(model, test)
    local.exchange()
    gl.barrier("all have exchanged")
    with local.server_weights():
        return moved, accuracy_of(model, test)


def moved_by_this_worker() -> int:
    return gl.metrics()["push_bytes"] + gl.metrics()["pull_bytes"]


@torch.no_grad()
def accuracy_of(model: nn.Module, test: tuple[torch.Tensor, torch.Tensor]) -> float:
    images, labels = test
    return (model(images).argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    sys.exit(main())
