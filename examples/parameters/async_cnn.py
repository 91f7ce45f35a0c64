"""Handwritten digits with one slow worker: averaged gradients against an optimizer on the servers, in each of its modes.

gradlane run -n 3 -s 1 -- python examples/parameters/async_cnn.py --check
... --picture async_cnn.svg                                            draws the accuracy over time, of each way

Trains the same small net in several ways, each time until it classifies 97 % of the test images, and prints how long that took
and how many steps each worker made. Worker 0 is slow: it rests in each step, as a machine does that is shared with others.
Where gradients are averaged, all wait for it, and in mode `Sync` too. In mode `Async` nobody waits, in mode `SSP` all are at most
4 steps ahead of it, and in mode `Backup` a step has the gradients of all workers but one, which is the slow one. With `--check`,
the exit code is 1 unless all trainings classify 95 % in the end.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import gradlane
import gradlane.torch as gl
import torch
import torch.nn.functional as F
from gradlane import parameters
from torch import nn

ACCURACY, BATCH, RATE = 0.97, 32, 2e-3
ACCURACY_MIN = 0.95
"""What is left of that when the last steps of all workers have come."""
Curve = list[tuple[float, float]]
"""Seconds since the training began, and the accuracy then."""
WAYS = ["averaged", "Sync", "Async", "SSP", "Backup"]
LOOK_EVERY = 20
"""Steps of worker 1 between two looks at the test images."""


def main() -> int:
    options = arguments()
    (inputs, labels), test = digits()
    gl.init()
    torch.set_num_threads(1)  # the workers share the cores of this host
    reached: list[float] = []
    curves: dict[str, Curve] = {}
    but_one = max(1, gl.size() - 1)
    ways = dict(zip(WAYS, [None, gl.Sync(), gl.Async(), gl.SSP(4), gl.Backup(but_one)], strict=True))
    for way in options.only or WAYS:
        mode = ways[way]
        torch.manual_seed(1)
        model = network()
        seconds, steps, accuracy, curve = train(way, mode, model, inputs, labels, test, options)
        counts = gl.allgather_object(steps)
        curves[way] = gl.broadcast_object(curve, watcher())
        reached.append(accuracy)
        if gl.rank() == 0:
            print(f"{way:12} {accuracy:.1%} after {seconds:5.1f} s, steps of the workers {counts}")
    if gl.rank() == 0 and options.picture is not None:
        draw(curves, options)
    return 1 if options.check and min(reached) < ACCURACY_MIN else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rest", type=float, default=0.05, help="seconds that worker 0 rests in a step (default 0.05)")
    parser.add_argument("--steps", type=int, default=2000, help="the most steps of a worker (default 2000)")
    parser.add_argument("--only", action="append", choices=WAYS, help="one of the ways; may be given again")
    parser.add_argument("--picture", type=Path, help="file for a picture of the accuracies over time; PNG or SVG, by its ending")
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


def watcher() -> int:
    """The worker that looks at the test images; not the slow one."""
    return min(1, gl.size() - 1)


def train(way, mode, model, inputs, labels, test, options) -> tuple[float, int, float, Curve]:
    """Trains until one worker has seen the accuracy.

    Returns the seconds, the steps of this worker, what was reached, and what the watcher has seen.
    """
    if mode is None:
        model = gl.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    else:
        optimizer = gl.ServerOptimizer(model.named_parameters(), rule=gl.rules.AdamW(lr=RATE), mode=mode)
    # One of them says when it is enough; the others read it, where they wait for nobody.
    is_over, curve = torch.zeros(1), []
    parameters.init(f"{way} is over", is_over)
    draw = torch.Generator().manual_seed(gl.rank())
    gl.barrier(f"{way} begins")
    started, steps = time.perf_counter(), 0
    while steps < options.steps and not is_over.item():
        if gl.rank() == 0:
            time.sleep(options.rest)
        batch = torch.randint(len(inputs), (BATCH,), generator=draw)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
        steps += 1
        looks = steps % LOOK_EVERY == 0
        if looks and gl.rank() == watcher():
            curve.append((time.perf_counter() - started, accuracy_of(model, test)))
            if curve[-1][1] >= ACCURACY:
                is_over.fill_(1)
                parameters.push(f"{way} is over", is_over, update="assign")
        if mode is None:
            # All must end behind the same step.
            if looks:
                gl.broadcast_(is_over, watcher(), f"{way} is over?")
        else:
            parameters.pull(f"{way} is over", is_over)
    if mode is not None:
        optimizer.leave()  # others may still be at work, and must not wait for this worker
    gl.barrier(f"{way} ends")
    seconds = time.perf_counter() - started
    if mode is not None:
        optimizer.pull()  # takes over what all have made
    return seconds, steps, accuracy_of(model, test), curve


def draw(curves: dict[str, Curve], options: argparse.Namespace) -> None:
    """Draws what the watcher has seen, up to the accuracy that ends a training."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.axhline(100 * ACCURACY, color="gray", linewidth=0.8, linestyle=":")
    for way, curve in curves.items():
        seconds, accuracies = zip(*curve, strict=True)
        label = f"{way}: {seconds[-1]:.1f} s" if accuracies[-1] >= ACCURACY else f"{way}: not in {options.steps} steps"
        [line] = axes.plot(seconds, [100 * accuracy for accuracy in accuracies], label=label, linewidth=1.2)
        axes.plot(seconds[-1], 100 * accuracies[-1], "o", color=line.get_color(), markersize=4)
    slow = f"worker 0 of {gl.size()} rests {1e3 * options.rest:.0f} ms in each step"
    axes.set(xscale="log", xlabel="seconds", ylabel="% of the test images", ylim=(50, 100), title=f"Time to {ACCURACY:.0%}; {slow}")
    axes.legend(loc="lower right")
    figure.savefig(options.picture)
    print(f"the accuracies over time: {options.picture.resolve()}")


@torch.no_grad()
def accuracy_of(model: nn.Module, test: tuple[torch.Tensor, torch.Tensor]) -> float:
    images, labels = test
    return (model(images).argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    sys.exit(main())
