"""How long a checkpoint takes, beside a copy of the same bytes, and what is left of the traffic meanwhile.

gradlane run -n 1 -s 2 -- python bench/checkpoints.py runs/bench              1 GiB, in 7 turns
... --mib 64 --turns 2                                                          tries it out

Each turn saves a checkpoint and copies its files (cp, fsync) to the same file system, one after the other, and then saves
again while changes of 4 MiB go to the servers. A row tells the median time, and the share of the copy's time in the same turn.
What was saved in the last turn is read again and compared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

import gradlane
import numpy as np
from gradlane import checkpoint, parameters

PART = 16 << 20
"""Elements of float32 of one parameter: 64 MiB."""
CHANGE = 1 << 20
"""Those of the parameter that changes meanwhile."""


def main() -> int:
    options = arguments()
    gradlane.init()
    values = [np.arange(PART, dtype=np.float32) + number for number in range(options.mib // 64)]
    for number, value in enumerate(values):
        parameters.init(f"w{number}", value)
    change = np.ones(CHANGE, np.float32)
    parameters.init("changes", change)
    taken: dict[str, list[float]] = {"save": [], "copy": [], "rate while saving": []}
    alone = rate(change, lambda: False, 1.0)
    for turn in range(-1, options.turns):
        seconds = {}
        began = time.perf_counter()
        saved = checkpoint.save(options.path, keep=1)
        seconds["save"] = time.perf_counter() - began
        began = time.perf_counter()
        copy(saved_in(options.path, saved), Path(options.path) / "copy")
        seconds["copy"] = time.perf_counter() - began
        saving = checkpoint.save(options.path, keep=1, async_=True)
        seconds["rate while saving"] = rate(change, saving.done, 60.0) / rate(change, lambda: False, 0.5)
        saving.wait()
        if turn >= 0:
            for what, of_turn in seconds.items():
                taken[what].append(of_turn)
    reader = checkpoint.Reader(options.path)
    assert all(reader.read(f"w{number}") == value.tobytes() for number, value in enumerate(values))
    shares = sorted(save / cp for save, cp in zip(taken["save"], taken["copy"], strict=True))
    print(f"{options.mib} MiB: copy and fsync {statistics.median(taken['copy']):.2f} s")
    print(f"save {statistics.median(taken['save']):.2f} s, {statistics.median(shares):.2f} of the copy ({shares[0]:.2f}-{shares[-1]:.2f})")
    rates = sorted(taken["rate while saving"])
    middle = statistics.median(rates)
    print(f"changes while saving: {middle:.2f} of those without ({rates[0]:.2f}-{rates[-1]:.2f}), {alone:.0f} MiB/s alone", flush=True)
    gradlane.shutdown()
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", help="an empty directory below checkpoint_dir")
    parser.add_argument("--mib", type=int, default=1024, help="MiB of values, in parameters of 64 MiB (default 1024)")
    parser.add_argument("--turns", type=int, default=7, help="turns (default 7)")
    return parser.parse_args()


def rate(change: np.ndarray, is_over, seconds: float) -> float:
    """MiB of changes a second, until it is over, for at most so many seconds."""
    began, pushed = time.perf_counter(), 0
    while not pushed or (not is_over() and time.perf_counter() - began < seconds):
        parameters.push("changes", change)
        pushed += change.nbytes
    return pushed / (time.perf_counter() - began) / (1 << 20)


def saved_in(path: str, saved: checkpoint.Checkpoint) -> Path:
    return Path(path) / Path(saved.directory).name


def copy(source: Path, target: Path) -> None:
    """Copies all files, and brings them to the disk."""
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        with file.open("rb") as read, (target / file.name).open("wb") as written:
            shutil.copyfileobj(read, written, 1 << 20)
            written.flush()
            os.fsync(written.fileno())


if __name__ == "__main__":
    sys.exit(main())
