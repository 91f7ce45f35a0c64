"""How soon workers have the next whole sum when a process is killed, and what it costs to be ready for that.

python bench/recovery.py                              all rows, 20 trials each, gradients of 256 MiB
python bench/recovery.py --only worker,server --trials 100
python bench/recovery.py --only cost --mib 64         what elastic jobs cost while nothing is lost
python bench/recovery.py --short                      tries it out

**Losses.** Each trial is a job of its own: a coordinator, servers and workers, all processes of this host, which no launcher
watches. In one of its steps the worker of rank 0 submits less than half of its gradients, waits for a random share of the time of a step, and
sends SIGKILL to itself or to a server. Then it submits the rest. So some sums of the step are there, some are on their way, and nobody
can have all of them. The time is that from the kill until all workers that are left have them.

A row tells who notices the loss. `shm`: all processes share memory. `quic`: rank 0 shares memory with the servers of its
machine, and the others reach them over QUIC. `unseen`: nobody shares memory, as if the machine was gone; then the loss is noticed
after `dead_timeout`. A loss of a worker is measured with gradients of 1 MiB, because that is about noticing it; in a
loss of a server, all gradients (`--mib`) have to come from somewhere.

**Cost.** Jobs that differ in nothing but their settings reduce the same gradients in place, in turns within one run, as the
gradients of a model. A turn's figure is the median sum of the slower worker. `ratio` is that figure divided by the figure of the job
that ends with a loss, turn by turn: the median, the smallest and the largest.

Rank r contributes 4^r v, where v is 1, 2 or 4 by step and element. So in base 4, sum / v says how often each rank was counted.
Every element of every sum is checked, outside of what is timed. The exit code is 1 if one is wrong, or if a process ends otherwise
than it should.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

PLACE = Path(__file__).resolve()
PLUGINS = PLACE.parents[1] / "plugins"
TENSORS = 16
"""The gradients of a worker, in so many tensors of equal size."""
SMALL_MIB = 1
"""The gradients with which the loss of a worker is measured."""
BEFORE, AFTER = 3, 3
"""Steps of a trial before the one with the kill, and behind it."""
PATIENCE = 180.0
"""Seconds that a trial, or a turn, may take."""
HERE = {"GRADLANE_MACHINE": "here"}
WAYS = {
    "shm": {"GRADLANE_TRANSPORT": "shm"},
    "quic": {"GRADLANE_TRANSPORT": "auto"},
    "unseen": {"GRADLANE_TRANSPORT": "quic"},
}
"""By who notices a loss: how workers reach servers."""
CONTINUE = {"GRADLANE_ON_WORKER_LOSS": "continue", "GRADLANE_ON_SERVER_LOSS": "continue"}
COSTS = {
    "ends with any loss": {},
    "outlives workers": {"GRADLANE_ON_WORKER_LOSS": "continue"},
    "outlives workers and servers": CONTINUE,
}
"""What a job is ready for, and its settings. The first one is what the others are divided by."""


class Failed(Exception):
    """A sum is wrong, or a process ended otherwise than it should."""


# What workers do.


class Gradients:
    """The gradients of one worker, and what their sums have to be."""

    def __init__(self, mib: float, rank: int, size: int) -> None:
        import numpy

        self.rank, self.everybody = rank, sum(4**other for other in range(size))
        length = int(mib * 2**20) // 4 // TENSORS
        # A step begins elsewhere in it, so that what is left of an older step is seen.
        self.values = numpy.random.default_rng(1).choice(numpy.array([1, 2, 4], "float32"), length + 97)
        self.tensors = [numpy.empty(length, "float32") for _ in range(TENSORS)]

    def fill(self, step: int) -> None:
        """Makes the contribution of this worker."""
        import numpy

        for number, tensor in enumerate(self.tensors):
            numpy.multiply(self.of(step, number), numpy.float32(4**self.rank), out=tensor)

    def of(self, step: int, number: int):
        """The values v of a tensor."""
        begin = (31 * step + number) % 97
        return self.values[begin : begin + len(self.tensors[number])]

    def check(self, step: int, lost_in: int | None) -> None:
        """Raises an error unless each element counts each rank once; rank 0 until this step, in which parts may have it or not."""
        counts = {self.everybody} if lost_in is None or step <= lost_in else set[int]()
        if lost_in is not None and step >= lost_in:
            counts.add(self.everybody - 1)
        for number, tensor in enumerate(self.tensors):
            tensor /= self.of(step, number)
            is_right = sum(tensor == count for count in counts)
            if not is_right.all():
                wrong = sorted(set(tensor[is_right == 0][:1000].tolist()))[:5]
                raise AssertionError(f"wrong sum in step {step}, tensor {number}: {wrong} times v in place of {counts}")


def work(role: str, mib: float, size: int, victim: int) -> None:
    """A worker. What it has measured goes to standard output, a line each."""
    sys.path.insert(0, str(PLUGINS))
    import gradlane

    gradlane.init()
    rank = gradlane.rank()
    gradients = Gradients(mib, rank, size)

    def submit(numbers: range) -> list[gradlane.Handle]:
        tensors = [(number, gradients.tensors[number]) for number in numbers]
        return [gradlane.push_pull_async(tensor, f"gradient {number}", op=gradlane.Sum) for number, tensor in tensors]

    def reduce(step: int, is_last: bool = False) -> float:
        """All sums of a step, checked. Returns when the last one was there, and how long that took."""
        gradients.fill(step)
        begun = time.monotonic()
        handles = []
        if is_last and rank == 0:
            # Each server has a share of the other half, too.
            handles = submit(range(chance.randrange(TENSORS // 2)))
            time.sleep(chance.uniform(0, durations[-1]))
            tell(killed=time.monotonic())
            os.kill(victim or os.getpid(), signal.SIGKILL)
        for handle in handles + submit(range(len(handles), TENSORS)):
            handle.wait()
        ended = time.monotonic()
        durations.append(ended - begun)
        gradients.check(step, BEFORE if role == "worker" else None)
        return ended

    def tell(**what: object) -> None:
        os.write(1, (json.dumps(what) + "\n").encode())

    durations, chance = list[float](), random.SystemRandom()
    if role == "cost":
        steps = 0
        tell(is_there=True)
        for line in sys.stdin:
            durations.clear()
            for _ in range(int(line)):
                gradlane.barrier("turn")
                reduce(steps)
                steps += 1
            tell(took=statistics.median(durations))
    else:
        for step in range(BEFORE):
            reduce(step)
        tell(peace=durations[-1])
        tell(whole=reduce(BEFORE, is_last=True))
        for step in range(BEFORE + 1, BEFORE + 1 + AFTER):
            reduce(step)
        gradlane.barrier("end")
    gradlane.shutdown()


# What measures.


@dataclass
class Member:
    """A process of a job."""

    name: str
    process: subprocess.Popen
    output: Path
    told: dict[str, float] = field(default_factory=dict)
    unread: bytes = b""

    def hear(self, key: str, until: float) -> float:
        """What the process has told by this name. Waits for it."""
        pipe: IO[bytes] | None = self.process.stdout
        assert pipe is not None
        while key not in self.told:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise Failed(f"{self.name} has not told {key!r} in time{self.words()}")
            text = os.read(pipe.fileno(), 4096)
            if not text:
                raise Failed(f"{self.name} has ended before it told {key!r}{self.words()}")
            *lines, self.unread = (self.unread + text).split(b"\n")
            for line in lines:
                self.told |= json.loads(line)
        return self.told.pop(key)

    def words(self) -> str:
        """The end of what it has written."""
        return ":\n" + self.output.read_text(encoding="utf-8", errors="replace")[-2000:]


class Job:
    """A coordinator, servers and workers. Leaving the context kills what is left of them."""

    def __init__(
        self,
        folder: Path,
        role: str,
        mib: float,
        workers: int,
        servers: int,
        way: str,
        settings: dict[str, str],
        metrics_port: int | None = None,
    ) -> None:
        """`metrics_port` is the first of the ports at which its processes show their metrics."""
        folder.mkdir()
        self.folder, self.members, self.metrics_port = folder, list[Member](), metrics_port
        self.until = time.monotonic() + PATIENCE
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GRADLANE_")}
        self.environment = clean | {"PYTHONPATH": str(PLUGINS), "GRADLANE_STATE_DIR": str(folder / "state")}
        self.environment |= {"GRADLANE_LOCAL_REDUCE": "off", "OMP_NUM_THREADS": "1"} | WAYS[way] | settings
        join = folder / "join"
        roles = ["coordinator", "-n", str(workers), "-s", str(servers), "--bind", "127.0.0.1:0", "--join-file", str(join)]
        self.coordinator = self.start("coordinator", [sys.executable, "-m", "gradlane", *roles], self.shown(0))
        while not join.exists():
            if self.coordinator.process.poll() is not None or time.monotonic() > self.until:
                raise Failed(f"the coordinator does not start{self.coordinator.words()}")
            time.sleep(0.01)
        self.environment["GRADLANE_JOIN_FILE"] = str(join)
        server = [sys.executable, "-m", "gradlane", "server"]
        self.servers = [self.start(f"server {number}", server, HERE | self.shown(1 + number)) for number in range(servers)]
        victim = 0 if role == "worker" else random.SystemRandom().choice(self.servers).process.pid
        worker = [sys.executable, str(PLACE), "--worker", role, "--mib", str(mib), "--workers", str(workers), "--victim", str(victim)]
        self.workers = []
        for rank in range(workers):
            is_here = way == "shm" or (way == "quic" and rank == 0)
            place = HERE if is_here else {"GRADLANE_MACHINE": f"apart-{rank}"}
            # A worker that no launcher tells its rank on its host adds nothing to the port.
            place = place | self.shown(1 + servers + rank)
            self.workers.append(self.start(f"worker {rank}", worker, place | {"GRADLANE_RANK": str(rank), "GRADLANE_SIZE": str(workers)}))
        self.victim = next((server for server in self.servers if server.process.pid == victim), self.workers[0])

    def shown(self, number: int) -> dict[str, str]:
        """Where a process shows its metrics."""
        return {} if self.metrics_port is None else {"GRADLANE_METRICS_BIND": f"127.0.0.1:{self.metrics_port + number}"}

    def start(self, name: str, command: list[str], more: dict[str, str]) -> Member:
        output = self.folder / name
        with output.open("wb") as file:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            if name.startswith("worker"):
                pipes |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = subprocess.Popen(command, env=self.environment | more, start_new_session=True, **pipes)
        self.members.append(Member(name, process, output))
        return self.members[-1]

    def finish(self, lost: Member | None = None) -> None:
        """Waits for the end of all processes. Raises an error if one has another code than 0, but for the one that was killed."""
        for worker in self.workers:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        for member in [*self.workers, *self.servers, self.coordinator]:
            try:
                code = member.process.wait(max(0.0, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failed(f"{member.name} does not end{member.words()}") from None
            if code != (-signal.SIGKILL if member is lost else 0):
                raise Failed(f"{member.name} ended with {code}{member.words()}")

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGKILL)
            member.process.wait()


@dataclass
class Losses:
    """A row about losses."""

    times: list[float] = field(default_factory=list)
    """Of each trial, seconds from the kill until the last worker has the sums of that step."""
    peace: list[float] = field(default_factory=list)
    """Of each trial, seconds of a step before it."""


def lose(what: str, way: str, arguments: argparse.Namespace, folder: Path) -> Losses:
    """Kills a worker or a server in each trial."""
    row = Losses()
    for trial in range(arguments.trials):
        mib, servers = (SMALL_MIB, 1) if what == "worker" else (arguments.mib, 2)
        with Job(folder / str(trial), what, mib, arguments.workers, servers, way, CONTINUE) as job:
            killed = job.workers[0].hear("killed", job.until)
            left = [worker for worker in job.workers if worker is not job.victim]
            row.peace.append(max(worker.hear("peace", job.until) for worker in left))
            row.times.append(max(worker.hear("whole", job.until) for worker in left) - killed)
            job.finish(lost=job.victim)
    return row


def turn(job: Job, steps: int) -> float:
    """The median sum of the slower worker in so many steps."""
    job.until = time.monotonic() + PATIENCE
    for worker in job.workers:
        assert worker.process.stdin is not None
        worker.process.stdin.write(f"{steps}\n".encode())
        worker.process.stdin.flush()
    return max(worker.hear("took", job.until) for worker in job.workers)


def cost(way: str, arguments: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Seconds of a step in each turn, by what the job is ready for."""
    with contextlib.ExitStack() as jobs:
        started = {}
        for number, (name, settings) in enumerate(COSTS.items()):
            place = folder / str(number)
            started[name] = jobs.enter_context(Job(place, "cost", arguments.mib, arguments.workers, 1, way, settings))

        for job in started.values():
            for worker in job.workers:
                worker.hear("is_there", job.until)
            turn(job, 2)
        took: dict[str, list[float]] = {name: [] for name in started}
        for number in range(arguments.trials):
            order = list(started) if number % 2 == 0 else list(reversed(started))
            for name in order:
                took[name].append(turn(started[name], arguments.steps))
        for job in started.values():
            job.until = time.monotonic() + PATIENCE
            job.finish()
    return took


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def is_wanted(row: str, only: str) -> bool:
    return any(all(word in row.split() for word in words.split()) for words in only.split(","))


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Prints each row when it is there."""
    what = [(loss, way) for loss in ("worker", "server") for way in WAYS]
    rows = [(loss, way) for loss, way in what if is_wanted(f"{loss} {way}", arguments.only)]
    if rows:
        print("milliseconds from a kill until all others have the next whole sum, and of a sum before")
        print(f"{'killed':8}{'noticed':9}{'MiB':>5}{'trials':>8}{'before':>9}{'median':>9}{'p99':>9}{'largest':>9}", flush=True)
    for loss, way in rows:
        place = folder / f"{loss}-{way}"
        place.mkdir()
        row = lose(loss, way, arguments, place)
        figures = [statistics.median(row.peace), statistics.median(row.times), percentile(row.times, 0.99), max(row.times)]
        mib = SMALL_MIB if loss == "worker" else arguments.mib
        cells = "".join(f"{1000 * figure:9.1f}" for figure in figures)
        print(f"{loss:8}{way:9}{mib:5.0f}{len(row.times):8}{cells}   all sums right", flush=True)
    ways = [way for way in ("shm", "quic") if is_wanted(f"cost {way}", arguments.only)]
    if ways:
        print(f"\nmilliseconds of a sum of {arguments.mib:.0f} MiB in place while nothing is lost; {arguments.steps} sums a turn")
        print(f"{'over':6}{'a job that':30}{'turns':>6}{'median':>9}   ratio", flush=True)
    for way in ways:
        place = folder / f"cost-{way}"
        place.mkdir()
        took = cost("shm" if way == "shm" else "unseen", arguments, place)
        base = took[next(iter(COSTS))]
        for name, values in took.items():
            ratios = [value / other for value, other in zip(values, base, strict=True)]
            spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            print(f"{way:6}{name:30}{len(values):6}{1000 * statistics.median(values):9.1f}   {spread}   all sums right", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=20, help="kills in each row, and turns of each job (default 20)")
    parser.add_argument("--mib", type=float, default=256, help="gradients of a worker (default 256)")
    parser.add_argument("--workers", type=int, default=3, help="of each job, 2 to 11 (default 3)")
    parser.add_argument("--steps", type=int, default=3, help="sums in a turn (default 3)")
    everything = "worker,server,cost"
    parser.add_argument("--only", default=everything, help="rows with these words, such as 'worker' or 'server quic,cost shm'")
    parser.add_argument("--short", action="store_true", help="one trial of each row with little in it, and none that waits for a timeout")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--victim", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not 2 <= arguments.workers <= 11 or arguments.mib <= 0 or arguments.trials < 1 or arguments.steps < 1:
        parser.error("--workers is 2 to 11, and --trials and --steps are at least 1")
    if arguments.worker:
        work(arguments.worker, arguments.mib, arguments.workers, arguments.victim)
        return 0
    if arguments.short:
        arguments.trials, arguments.mib, arguments.steps = 1, 4, 1
        arguments.only = "worker shm,worker quic,server shm,server quic,cost"
    names = [f"{loss} {way}" for loss in ("worker", "server") for way in WAYS] + ["cost shm", "cost quic"]
    if not all(any(is_wanted(name, words) for name in names) for words in arguments.only.split(",")):
        parser.error(f"--only {arguments.only!r} names no row; there are {', '.join(names)}")
    print(f"{arguments.workers} workers on {socket.gethostname()}")
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        try:
            measure(arguments, Path(folder))
        except Failed as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
