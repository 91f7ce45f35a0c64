"""The demonstration of `make demo`: trains on two workers and two servers, and in one process, and compares both.

Trains on handwritten digits with the framework of `--framework`: on two workers, then in a single process on the same
batches, and holds three things:

1. The replicas of the two workers are bitwise equal.
2. Their weights are within 1e-5, relative to the largest weight of each tensor, of the single process'.
3. The test accuracy exceeds 95 %.

Exits with 0 only if all hold. Draws the losses of both trainings in the terminal, and into a picture.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WORKERS, SERVERS = 2, 2
DEVIATION_MAX = 1e-5
LAUNCH_TIMEOUT = 300.0
TOGETHER, ALONE = f"{WORKERS} workers, {SERVERS} servers", "a single process"
ABOUT_TIMES = f"""
A step of the {WORKERS} workers takes longer here, and that is expected. The net has 10,000 weights, so there is next to nothing to compute
and nothing to gain from more workers. All {WORKERS + SERVERS} processes share the cores of this host, and each gradient goes through
encrypted network connections, as between machines. `gradlane bench` and bench/results show how fast sums are."""
EXAMPLES = Path(__file__).parent
TRAININGS = {"torch": EXAMPLES / "digits.py", "fsdp": EXAMPLES / "fsdp.py"} | {
    framework: EXAMPLES / framework / "digits.py" for framework in ("tensorflow", "keras", "jax")
}
"""By framework: a script that takes `--steps`, `--check` and `--save`, the folder for the final weights of each rank."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--framework", choices=TRAININGS, default="torch", help="what trains (default torch)")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--picture", type=Path, default=Path("demo.png"), help="of both losses (default demo.png)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradlane-demo-") as folder:
        together, alone = Path(folder, "together"), Path(folder, "alone")
        training = [sys.executable, str(TRAININGS[options.framework]), "--steps", str(options.steps), "--check"]
        launcher = [sys.executable, "-m", "gradlane", "run", "-n", str(WORKERS), "-s", str(SERVERS), "--"]

        print(f"== 1 of 2: {WORKERS} workers and {SERVERS} servers (about 10 s)", flush=True)
        accurate = run([*launcher, *training, "--save", str(together)])
        print("\n== 2 of 2: the same batches in a single process (about 5 s)", flush=True)
        accurate &= run([*training, "--save", str(alone)])

        replicas = [load(together, rank) for rank in range(WORKERS)]
        reference = load(alone, 0)
        losses = {TOGETHER: load_losses(together, WORKERS), ALONE: load_losses(alone, 1)}
    print(ABOUT_TIMES)
    if all(len(values) for values in losses.values()):
        draw(losses, options.picture)
    print("\n== verdict")
    verdicts = [verdict("test accuracy above 95 % in both trainings", accurate)]
    if reference and all(replicas):
        equal = all(same_bits(replicas[0], replica) for replica in replicas[1:])
        verdicts.append(verdict("replicas bitwise equal", equal))
        deviation = max(relative_deviation(replicas[0][name], reference[name]) for name in reference)
        close = deviation <= DEVIATION_MAX
        verdicts.append(
            verdict(f"weights as in a single process: off by {deviation:.1e}, allowed {DEVIATION_MAX:.0e}", close)
        )
    else:
        verdicts.append(verdict("all final weights were saved", False))
    return 0 if all(verdicts) else 1


def run(command: list[str]) -> bool:
    """Runs a training, and returns whether it succeeded. Removes variables of an outer launcher."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRADLANE_JOIN")}
    # Both workers are on this machine and would reduce among themselves, or reach the servers through shared memory. The
    # demo shows servers over a network instead.
    clean["GRADLANE_LOCAL_REDUCE"] = "off"
    clean["GRADLANE_TRANSPORT"] = "quic"
    try:
        return subprocess.run(command, env=clean, timeout=LAUNCH_TIMEOUT, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"no end after {LAUNCH_TIMEOUT:.0f} s: {' '.join(command)}", file=sys.stderr)
        return False


def load_losses(folder: Path, workers: int) -> np.ndarray:
    """The loss of each step over the whole batch; empty if a worker saved none. Each worker has an equal share of the batch."""
    paths = [folder / f"losses{rank}.npy" for rank in range(workers)]
    return np.mean([np.load(path) for path in paths], axis=0) if all(path.exists() for path in paths) else np.empty(0)


def draw(losses: dict[str, np.ndarray], picture: Path) -> None:
    """Draws the losses by step, on the terminal and into a PNG file."""
    import matplotlib
    import plotext

    plotext.theme("clear")
    plotext.plotsize(min(plotext.terminal_width() or 80, 100), 16)
    plotext.title("loss by step: the curves lie on each other")
    for (name, values), marker in zip(losses.items(), ("braille", "+"), strict=True):
        # Few marks of the second curve, so that the first can be seen behind them.
        steps = range(1, len(values) + 1)[:: 1 if marker == "braille" else 5]
        plotext.plot(steps, [values[step - 1] for step in steps], label=name, marker=marker)
    print("\n" + plotext.uncolorize(plotext.build()))

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (name, values), style in zip(losses.items(), ("-", "--"), strict=True):
        axes.plot(range(1, len(values) + 1), values, style, label=name)
    axes.set(xlabel="step", ylabel="loss (cross entropy)", title="Handwritten digits: the same training, two ways")
    axes.legend()
    figure.savefig(picture, dpi=120)
    print(f"the same as a picture: {picture.resolve()}")


def load(folder: Path, rank: int) -> dict[str, np.ndarray]:
    """The final weights of a rank; empty if it saved none."""
    path = folder / f"rank{rank}.npz"
    return dict(np.load(path)) if path.exists() else {}


def same_bits(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> bool:
    """Whether two models are equal bit by bit, which -0.0 and 0.0 are not."""
    return ours.keys() == theirs.keys() and all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def relative_deviation(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest weight."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def verdict(claim: str, holds: bool) -> bool:
    print(f"{'PASS' if holds else 'FAIL'}  {claim}")
    return holds


if __name__ == "__main__":
    sys.exit(main())
