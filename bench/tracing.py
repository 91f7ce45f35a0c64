"""Measures what a timeline costs: training steps while one is recorded, beside steps without.

python bench/tracing.py                      two workers of this machine, which reduce among themselves
python bench/tracing.py --transport quic     through a server
python bench/tracing.py --short              tries it out

Both kinds of steps run in turns in the same processes, over one engine and one model. A pair is a turn of each, and the
order within a pair changes. A turn's figure is the median step of the slower worker. `cost` is the figure with a timeline
divided by the figure without, less one: the median over the pairs, the smallest and the largest. Two loads compute
nothing, so that almost all of a step is sums; the third one is a training that computes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PLACE = Path(__file__).resolve()
sys.path[:0] = [str(PLACE.parents[1] / "plugins"), str(PLACE.parent)]

import gradlane.torch as gl  # noqa: E402
import torch  # noqa: E402
from doors import LOADS, SHORT, Layers, Step, run_here, sgd, trained  # noqa: E402
from gradlane import start_timeline, stop_timeline  # noqa: E402
from torch import nn  # noqa: E402

BATCH, WIDTH = 64, 1024


def given(shapes: list[tuple[int, ...]]) -> Callable[[], Step]:
    """Steps that compute nothing, with gradients of these shapes."""
    return lambda: trained(gl.DistributedDataParallel(Layers(shapes)))


def perceptron() -> Step:
    """Steps of a training that computes: four layers, 3.2 M weights, batches of 64."""
    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, WIDTH) if number % 2 == 0 else nn.ReLU() for number in range(6)]
    model = gl.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 10)))
    optimizer = sgd(model)
    inputs, labels = torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,))

    def once(step: int) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return once


def loads(is_short: bool) -> dict[str, Callable[[], Step]]:
    if is_short:
        return {name: given(shapes) for name, shapes in SHORT.items()}
    chosen = list(LOADS.items())[:2]
    return {name: given(shapes) for name, shapes in chosen} | {"four layers that compute, 3.2 M weights": perceptron}


def turn(once: Step, steps: int, folder: Path | None) -> float:
    """The median step of the slower worker, ms; with a timeline in this folder."""
    gl.barrier("turn")
    if folder is not None:
        start_timeline(folder)
    durations = []
    for step in range(steps + 1):
        begun = time.perf_counter()
        once(step)
        durations.append(time.perf_counter() - begun)
    if folder is not None:
        stop_timeline()
    return 1000 * max(gl.allgather_object(statistics.median(durations[1:]), "durations"))


def check(folder: Path, load: str) -> None:
    """Raises an error if the timeline in this folder shows no sums."""
    [file] = folder.rglob("*.json")
    text = file.read_text(encoding="utf-8")
    if not any(stage in text for stage in ("ALL_REDUCE", "PUSH")):
        raise SystemExit(f"{load}: the timeline has no sums")


def measure(options: argparse.Namespace) -> int:
    """Runs one worker; the first one prints."""
    torch.set_num_threads(1)
    gl.init()
    misses = []
    for load, make in loads(options.short).items():
        if options.only not in load:
            continue
        once = make()
        turn(once, options.steps, None)
        without, recorded = [], []
        for pair in range(options.pairs):
            with tempfile.TemporaryDirectory() as folder:
                for is_recorded in (False, True) if pair % 2 == 0 else (True, False):
                    place = Path(folder) if is_recorded else None
                    (recorded if is_recorded else without).append(turn(once, options.steps, place))
                check(Path(folder), load)
        costs = [after / before - 1 for before, after in zip(without, recorded, strict=True)]
        if gl.rank() == 0:
            cost = statistics.median(costs)
            print(
                f"{load}: {statistics.median(without):.2f} ms a step without, {statistics.median(recorded):.2f} with; "
                f"cost {cost:+.1%} ({min(costs):+.1%} to {max(costs):+.1%}, {len(costs)} pairs)",
                flush=True,
            )
            if options.expect is not None and cost > options.expect:
                misses.append(f"{load}: a timeline costs {cost:.1%}, not at most {options.expect:.1%}")
    print("\n".join(misses), end="", file=sys.stderr)
    gl.shutdown()
    return 1 if misses else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transport", choices=["local", "shm", "quic"], default="local", help="what sums go through")
    parser.add_argument("--only", default="", help="only the loads whose names contain this, such as compute")
    parser.add_argument("--pairs", type=int, default=15, help="pairs of turns for each load (default 15)")
    parser.add_argument("--steps", type=int, default=20, help="measured steps in a turn (default 20)")
    parser.add_argument("--expect", type=float, help="fail if a timeline costs more than this share, such as 0.05")
    parser.add_argument("--short", action="store_true", help="few small gradients")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return measure(options)
    worker = [sys.executable, str(PLACE), "--worker", *sys.argv[1:]]
    return run_here(worker, options.transport, {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    sys.exit(main())
