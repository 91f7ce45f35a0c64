"""A click model whose embeddings live on the servers: rows for ids out of 10 million, trained without waiting for other workers.

gradlane run -n 2 -s 2 -- python examples/recommender.py --check
... --plot clicks.svg                                       draws what the models have learnt, over the batches

Users click on items by a known rule: each has a hidden vector, and the closer those of a user and an item are, the likelier is a
click. The ids of both are hashed, as those of a real log are. A factorization machine with a deep part (DeepFM,
arXiv:1703.04247) learns the rule from clicks: its rows are in a table on the servers, and its weights in a `ServerOptimizer`. Then
rank 0 trains the same model on the same batches alone, with `nn.Embedding` and PyTorch's optimizers. Prints the area under the
ROC curve (AUC) of both, for pairs that neither has seen. With `--check`, the exit code is 1 unless both have learnt equally well.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import gradlane.torch as gl
import torch
import torch.nn.functional as F
from torch import nn

USERS, ITEMS, HIDDEN = 1000, 300, 2
FIELDS, DIM, BATCH, RATE, ROWS_RATE = 2, 8, 256, 2e-3, 0.2
TESTED = 10_000
"""Pairs that are held out."""
LOOK_EVERY = 50
"""Batches between two looks at them."""
AUC_MIN, DISTANCE_MAX = 0.7, 0.06
"""A coin has 0.5, and the rule itself 0.83. Steps of several workers never come in the same order twice."""
Curve = list[tuple[int, float]]
"""How many batches were trained on, and the AUC then."""


def main() -> int:
    options = arguments()
    gl.init()
    torch.set_num_threads(1)  # the workers share the cores of this host
    torch.sparse.check_sparse_tensor_invariants.disable()
    ids, clicks, chances = log(BATCH * options.steps + TESTED, options.ids)

    torch.manual_seed(1)
    model = Clicks(gl.Embedding(options.ids, DIM, name="rows", rule=gl.rules.Adagrad(lr=ROWS_RATE), scale=0.1))
    # The same for one process, which has no room for a row of each id. So it numbers those that occur.
    used, numbers = torch.unique(ids, return_inverse=True)
    alone = Clicks(nn.Embedding(len(used), DIM, sparse=True))
    alone.load_state_dict(model.state_dict() | {"rows.weight": model.rows.table.look(used)})

    deep = gl.ServerOptimizer(model.deep.named_parameters(), rule=gl.rules.Adam(lr=RATE))
    mine = range(gl.rank(), options.steps, gl.size())
    curves = {"on servers": train(model, [gl.TableOptimizer(model), deep], mine, ids, clicks)}
    gl.barrier("all have trained")
    if gl.rank() != 0:
        return 0
    deep.pull()  # what all have made
    stats = model.rows.table.stats()
    print(f"the table has {stats.rows} rows for {options.ids} ids, in {stats.bytes / 1e6:.1f} MB")
    optimizers = [torch.optim.Adagrad(alone.rows.parameters(), lr=ROWS_RATE), torch.optim.Adam(alone.deep.parameters(), lr=RATE)]
    curves["in one process"] = train(alone, optimizers, range(options.steps), numbers, clicks)

    ours, theirs, rule = auc_of(model, ids, clicks), auc_of(alone, numbers, clicks), area(chances[-TESTED:], clicks[-TESTED:])
    print(f"AUC {ours:.4f} with {gl.size()} workers, {theirs:.4f} in one process, {rule:.4f} by the rule itself")
    if options.plot is not None:
        for curve, last in zip(curves.values(), (ours, theirs), strict=True):
            curve.append((options.steps, last))
        draw(curves, rule, options.plot)
    is_good = min(ours, theirs) >= AUC_MIN and abs(ours - theirs) <= DISTANCE_MAX
    return 1 if options.check and not is_good else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help=f"batches of {BATCH} clicks, over all workers (default 400)")
    parser.add_argument("--ids", type=int, default=10_000_000, help="ids to which users and items are hashed (default 10,000,000)")
    parser.add_argument("--plot", type=Path, help="file for a picture of the AUC over the batches; PNG or SVG, by its ending")
    parser.add_argument("--check", action="store_true", help=f"fail unless the AUC is {AUC_MIN}, and as that of one process")
    return parser.parse_args()


def log(pairs: int, ids: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hashed ids of users and items, of shape (pairs, 2); whether there was a click, and how likely it was, of shape (pairs,)."""
    random = torch.Generator().manual_seed(17)
    of_users, of_items = (torch.randn(count, HIDDEN, generator=random) for count in (USERS, ITEMS))
    users, items = (torch.randint(count, (pairs,), generator=random) for count in (USERS, ITEMS))
    chances = torch.sigmoid(1.5 * (of_users[users] * of_items[items]).sum(1))
    clicks = torch.rand(pairs, generator=random) < chances
    numbers = torch.stack([users, USERS + items], 1)
    return (numbers * 0x9E3779B97F4A7C1 >> 16) % ids, clicks.float(), chances


class Clicks(nn.Module):
    """The chance of a click, before the sigmoid: a number of each id, a product of the rows, and a deep part."""

    def __init__(self, rows: nn.Module) -> None:
        super().__init__()
        self.rows = rows
        self.deep = nn.Sequential(nn.Linear(FIELDS * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.rows(ids)
        user, item = rows.unbind(1)
        return rows[..., 0].sum(1) + (user[:, 1:] * item[:, 1:]).sum(1) + self.deep(rows.flatten(1)).squeeze(1)


def train(model: Clicks, optimizers, batches: range, ids: torch.Tensor, clicks: torch.Tensor) -> Curve:
    """Trains on these batches. Returns what rank 0 has seen of the model meanwhile."""
    curve: Curve = []
    for batch in batches:
        if gl.rank() == 0 and batch % LOOK_EVERY == 0:
            curve.append((batch, auc_of(model, ids, clicks)))
        mine = slice(BATCH * batch, BATCH * (batch + 1))
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(ids[mine]), clicks[mine]).backward()
        for optimizer in optimizers:
            optimizer.step()
    return curve


@torch.no_grad()
def auc_of(model: Clicks, ids: torch.Tensor, clicks: torch.Tensor) -> float:
    """The AUC for what is held out."""
    return area(model(ids[-TESTED:]), clicks[-TESTED:])


def area(scores: torch.Tensor, clicks: torch.Tensor) -> float:
    """How often a pair with a click has a higher score than one without: the area under the ROC curve."""
    with_click = int(clicks.sum())
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1.0, 1 + len(scores), dtype=torch.float64)
    above = ranks[clicks > 0].sum().item() - with_click * (with_click + 1) / 2
    return above / (with_click * (len(scores) - with_click))


def draw(curves: dict[str, Curve], rule: float, picture: Path) -> None:
    """Draws the AUC over the batches."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.axhline(rule, color="gray", linewidth=0.8, linestyle=":", label=f"the rule itself: {rule:.3f}")
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=f"{name}: {curve[-1][1]:.3f}", marker="o", markersize=3, linewidth=1.2)
    axes.set(xlabel=f"batches of {BATCH} clicks, over all workers", ylabel="AUC of held-out pairs", title=f"Clicks; {gl.size()} workers")
    axes.legend(loc="lower right")
    figure.savefig(picture)
    print(f"the AUC over the batches: {picture.resolve()}")


if __name__ == "__main__":
    sys.exit(main())
