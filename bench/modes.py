"""What modes of parameters cost beside a sum, and what is left of a job with a slow worker.

gradlane run -n 2 -s 1 -- python bench/modes.py time                  64 MiB and 4 KB, each mode beside the sum
gradlane run -n 4 -s 1 -- python bench/modes.py slow                  worker 0 is five times slower than the others
... --steps 3                                                           tries it out

With GRADLANE_LOCAL_REDUCE=off the sum goes through the server too, as the parameters do.

`time` takes all ways in turns, and checks each result. A row tells the median time, and its share of the sum's time in the same
turn: the median, and what four of five turns lie between. `slow` has steps that rest without the processor, five times as long
on worker 0. A row tells the steps that all have done, as a number of fast workers, and the largest lead over the slowest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import gradlane
import numpy as np
from gradlane import modes, parameters, rules

SIZES = {"64 MiB": 16 << 20, "4 KB": 1024}
"""Elements of float32."""


def main() -> int:
    options = arguments()
    gradlane.init()
    {"time": times, "slow": slow}[options.what](options)
    gradlane.shutdown()
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["time", "slow"])
    parser.add_argument("--steps", type=int, default=15, help="turns; in `slow`, steps of a fast worker (default 15)")
    parser.add_argument("--rest", type=float, default=0.05, help="seconds of a step in `slow` (default 0.05)")
    return parser.parse_args()


def times(options: argparse.Namespace) -> None:
    for size, elements in SIZES.items():
        turns = options.steps if elements > 1 << 20 else 20 * options.steps
        ways = {"sum": summed(elements), "async": at_once(elements, None)}
        ways |= {"async adamw": at_once(elements, rules.AdamW())}
        ways |= {"sync": in_rounds(elements, modes.Sync()), "ssp": in_rounds(elements, modes.SSP(1))}
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(-1, turns):
            for way, step in ways.items():
                gradlane.barrier(f"{size} {way}")
                began = time.perf_counter()
                step(turn + 1)
                if turn >= 0:
                    taken[way].append(time.perf_counter() - began)
        if gradlane.rank() == 0:
            for way, seconds in taken.items():
                shares = sorted(mine / of_sum for mine, of_sum in zip(seconds, taken["sum"], strict=True))
                middle, tenth = statistics.median(shares), len(shares) // 10
                spread = f"{shares[tenth]:.2f}-{shares[-1 - tenth]:.2f}"
                milliseconds = 1e3 * statistics.median(seconds)
                print(f"{size:7} {way:12} {milliseconds:9.3f} ms, {middle:.2f} of the sum ({spread})", flush=True)


def summed(elements: int):
    values = np.ones(elements, np.float32)

    def step(turn: int) -> None:
        values.fill(1)
        gradlane.push_pull(values, f"sum {elements}", op=gradlane.Sum)
        assert values[0] == values[-1] == gradlane.size()

    return step


def at_once(elements: int, rule: rules.Rule | None):
    name, update = f"at once {elements} {rule}", "add" if rule is None else "step"
    change, values = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    parameters.init(name, values, rule=rule)

    def step(turn: int) -> None:
        version = parameters.push_pull(name, change, out=values, update=update)
        # Its own changes are in it; those of others may come in between two parts.
        assert version >= turn + 2 and (rule is not None or min(values[0], values[-1]) >= turn + 1)

    return step


def in_rounds(elements: int, mode: modes.Mode):
    name = f"{mode} {elements}"
    clock = parameters.Clock(name, mode)
    gradient, values = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    parameters.init(name, values, rule=rules.SGD(lr=1.0), mode=clock)

    def step(turn: int) -> None:
        if modes.has_rounds(mode):
            parameters.push(name, gradient, update="step")
            assert clock.tick().round == turn + 1
            parameters.pull(name, values)
            assert values[0] == values[-1] == -(turn + 1.0)
        else:
            parameters.push_pull(name, gradient, out=values, update="step")
            clock.tick()

    return step


def slow(options: argparse.Namespace) -> None:
    size = gradlane.size()
    for way in (modes.Sync(), modes.SSP(4), modes.Backup(max(1, size - 1)), modes.Async()):
        name = f"slow {way}"
        clock = None if isinstance(way, modes.Async) else parameters.Clock(name, way)
        weights = np.zeros(1000, np.float32)
        parameters.init(name, weights, rule=rules.SGD(lr=1e-3), mode=clock or way)
        gradlane.barrier(f"{name} begins")
        began, steps, lead = time.perf_counter(), 0, 0
        while time.perf_counter() - began < options.steps * options.rest:
            time.sleep(options.rest * (5 if gradlane.rank() == 0 else 1))
            gradient = np.ones(1000, np.float32)
            if modes.has_rounds(way):
                parameters.push(name, gradient, update="step")
                tick = clock.tick()
                parameters.pull(name, weights)
                steps += tick.fate == "accepted"
            else:
                parameters.push_pull(name, gradient, out=weights, update="step")
                lead = max(lead, clock.tick().ahead) if clock else 0
                steps += 1
        if clock:
            clock.leave()
        seconds = time.perf_counter() - began
        done = np.array([steps / seconds * options.rest, lead], np.float64)
        worst = done.copy()
        gradlane.push_pull(done, f"{name} done", op=gradlane.Sum)
        gradlane.push_pull(worst, f"{name} lead", op=gradlane.Max)
        if gradlane.rank() == 0:
            print(f"{way!s:10} {done[0]:.2f} of {size} workers, a lead of {worst[1]:.0f} rounds", flush=True)


if __name__ == "__main__":
    sys.exit(main())
