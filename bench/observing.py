"""What it costs to see a job: the flight recorder, timelines, and requests for metrics.

python bench/observing.py                       all rows, 20 turns each (15 minutes)
python bench/observing.py --only shm --turns 20
python bench/observing.py --asks 1000           with somebody who asks all the time
python bench/observing.py --short               tries it out

Jobs that differ in nothing but what they record reduce the same gradients in place, in turns within one run: two workers and a server, all
processes of this host, and 16 tensors of 4 KiB or of 4 MiB each. Each turn starts all jobs anew, because where the system puts the threads and the
memory of a job makes a difference of some percent as long as it runs, and each of them starts first in turn. A turn's figure is the median of five repetitions, and that of a repetition
the median sum of the slower worker. `ratio` is that figure divided by the figure of the job that records nothing, turn by turn: the median, and
below which value the median is with a probability of 95 %, as the order of the ratios tells.

`asked` shows its metrics, and each of its four processes is asked for them 50 times a second (`--asks`), or as often as it answers. It is asked
before each repetition already, until its exporters have used up what they had saved. Behind its row stands how many requests each process answered,
and which part of a core its exporter took. Whoever asks takes time of the same cores, which is in the ratio too.

Every element of every sum is checked, outside of what is timed. The exit code is 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from recovery import PATIENCE, Failed, Job, is_wanted, turn

WORKERS = 2
SIZES = {"4KiB": 1 / 16, "4MiB": 64.0}
"""The gradients of a worker in MiB, by the size of each of the 16."""
SUMS = {"4KiB": 200, "4MiB": 3}
"""Sums of a repetition."""
REPETITIONS = 5
"""Of each job in a turn."""
NOTHING = {"GRADLANE_RECORDER_EVENTS": "0"}
ASKS_OF_A_THREAD = 250
"""A second. More of them need more threads, because each waits for its answer."""
LEAD = 0.5
"""Seconds for which a job is asked before a repetition. What exporters save between them lasts for a few tenths."""
ASKING = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Asker:
    """Asks all processes of a job for their metrics while it is in the context, each so many times a second."""

    def __init__(self, job: Job, first_port: int, asks: int) -> None:
        self._pids = [member.process.pid for member in job.members]
        self._ends = threading.Event()
        threads = math.ceil(asks / ASKS_OF_A_THREAD)
        ports = [first_port + number for number in range(len(self._pids))] * threads
        self._threads = [threading.Thread(target=self._ask, args=(port, threads / asks), daemon=True) for port in ports]
        self._counts = list[int]()
        self.answers, self.seconds, self.cpu_seconds = 0, 0.0, 0.0

    def _ask(self, port: int, pause: float) -> None:
        due, answers = time.monotonic(), 0
        while not self._ends.wait(max(0.0, due - time.monotonic())):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(ASKING)
                text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
                answers += text.startswith(b"HTTP/1.1 200 ")
            due = max(due + pause, time.monotonic() - pause)
        self._counts.append(answers)

    def __enter__(self) -> Asker:
        self.seconds, self.cpu_seconds = -time.monotonic(), -exporters_cpu(self._pids)
        for thread in self._threads:
            thread.start()
        time.sleep(LEAD)
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic()
        self.cpu_seconds += exporters_cpu(self._pids)
        self._ends.set()
        for thread in self._threads:
            thread.join()
        self.answers = sum(self._counts)


def exporters_cpu(pids: list[int]) -> float:
    """The processor time in seconds that the exporters of these processes have taken."""
    seconds = []
    for thread in (thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()):
        with contextlib.suppress(OSError):  # one that has ended
            if (thread / "comm").read_text(encoding="utf-8") == "gl-metrics\n":
                seconds.append(int((thread / "schedstat").read_text(encoding="utf-8").split()[0]) / 1e9)
    if len(seconds) != len(pids):
        raise Failed(f"{len(seconds)} of {len(pids)} processes show their metrics")
    return sum(seconds)


def free_ports(count: int) -> int:
    """The first of so many ports that nobody uses now, below those that Linux gives out by itself."""
    while True:
        first = random.SystemRandom().randrange(10_000, 30_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def upper(ratios: list[float]) -> float:
    """A value that the median exceeds with a probability of at most 5 %."""
    count, below = len(ratios), 0.0
    for place, ratio in enumerate(sorted(ratios)):
        # The probability that at most so many of the ratios are below the median.
        below += math.comb(count, place) / 2**count
        if below >= 0.95:
            return ratio
    return max(ratios)


def measure(way: str, size: str, turns: int, asks: int, folder: Path) -> None:
    """Prints the rows of a way and a size."""
    kinds = {
        "nothing": NOTHING,
        "recorder": {},
        "timeline": NOTHING | {"GRADLANE_TIMELINE": str(folder / "timeline")},
        "asked": NOTHING,
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    askers = []
    for number in range(turns):
        port = free_ports(WORKERS + 2)
        with contextlib.ExitStack() as jobs:
            started = {}
            names = list(kinds)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                bind = port if name == "asked" else None
                place = folder / f"{number}-{name}"
                started[name] = jobs.enter_context(Job(place, "cost", SIZES[size], WORKERS, 1, way, kinds[name], bind))
            for job in started.values():
                for worker in job.workers:
                    worker.hear("is_there", job.until)
                turn(job, SUMS[size])
            of_turn: dict[str, list[float]] = {name: [] for name in kinds}
            for repetition in range(REPETITIONS):
                for name in list(started) if repetition % 2 == 0 else list(reversed(started)):
                    with contextlib.ExitStack() as asking:
                        if name == "asked":
                            askers.append(asking.enter_context(Asker(started[name], port, asks)))
                        of_turn[name].append(turn(started[name], SUMS[size]))
            for job in started.values():
                job.finish()
        for name, values in of_turn.items():
            took[name].append(statistics.median(values))
    answers, seconds, cpu_seconds = (sum(getattr(asker, what) for asker in askers) for what in ("answers", "seconds", "cpu_seconds"))
    if answers == 0:
        raise Failed("nobody has answered with metrics")
    processes = WORKERS + 2
    exporters = f"   {answers / seconds / processes:.0f} answers a second, {100 * cpu_seconds / seconds / processes:.2f} % of a core"
    for name, values in took.items():
        ratios = [value / base for value, base in zip(values, took["nothing"], strict=True)]
        median, bound = statistics.median(ratios), upper(ratios)
        row = f"{way:6}{size:6}{name:10}{len(values):6}{1000 * statistics.median(values):10.3f}   {median:.3f} (95 %: {bound:.3f})"
        print(row + (exporters if name == "asked" else ""), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=20, help="of each job (default 20)")
    parser.add_argument("--only", default="shm,quic", help="rows with these words, such as 'shm 4KiB'")
    parser.add_argument("--asks", type=int, default=50, help="requests a second to each process of the job that is asked (default 50)")
    parser.add_argument("--short", action="store_true", help="two turns")
    arguments = parser.parse_args()
    turns = 2 if arguments.short else arguments.turns
    rows = [(way, size) for way in ("shm", "quic") for size in SIZES if is_wanted(f"{way} {size}", arguments.only)]
    if turns < 1 or arguments.asks < 1 or not rows:
        parser.error("--turns and --asks are at least 1, and --only names a row such as 'shm 4KiB'")
    print(f"{WORKERS} workers and a server on {socket.gethostname()}; milliseconds of 16 sums, a turn waits for {PATIENCE:.0f} s at most")
    print(f"{'over':6}{'each':6}{'records':10}{'turns':>6}{'median':>10}   ratio", flush=True)
    for way, size in rows:
        with tempfile.TemporaryDirectory(prefix="observing-") as folder:
            try:
                measure(way, size, turns, arguments.asks, Path(folder))
            except Failed as error:
                print(f"FAILED: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
