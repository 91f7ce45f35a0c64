"""How much of a training is left when a worker is killed every 30 seconds, and the same with torchft over Gloo beside it.

python bench/goodput.py                                  three workers, two minutes for each row
python bench/goodput.py --seconds 60 --every 10          more faults in less time
python bench/goodput.py --torchft PYTHON                 with torchft, from the environment of this interpreter
python bench/goodput.py --short                          tries it out

Every system trains the same model twice for as long: once in peace, and once while a worker gets SIGKILL every so often and
another process is started in its place. Goodput is the steps with faults divided by those without. Only steps that changed
the weights count: what is given up and done again counts once. A step computes for `--compute` seconds without the processor,
as on an accelerator, and then has real gradients of a small network. Workers write down a checksum of their weights after each
step; a row also tells behind how many steps these differed. torchft has the times of its own introduction.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

PLACE = Path(__file__).resolve()
PLUGINS = PLACE.parents[1] / "plugins"
OURS, TORCHFT = "gradlane", "torchft over Gloo"
PATIENCE = 120.0
"""Seconds that a job may take until all its workers train."""


def model_and_optimizer():
    """The network, the same on all workers, and its optimizer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [module for _ in range(4) for module in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(512, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def gradients(model, wrapped, step: int, rank: int, compute: float) -> None:
    """One forward and backward pass over this worker's data of a step."""
    import torch

    time.sleep(compute)
    inputs = torch.randn(16, 512, generator=torch.Generator().manual_seed(1000 * step + rank))
    wrapped(inputs).square().mean().backward()


def note(folder: Path) -> Callable[..., None]:
    """What writes down that this process has done so many steps, and the weights behind them."""
    log = os.open(folder / str(os.getpid()), os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def write(steps: int, model) -> None:
        weights = zlib.crc32(b"".join(weight.detach().numpy().tobytes() for weight in model.parameters()))
        os.write(log, f"{time.monotonic()} {steps} {weights}\n".encode())

    return write


def train_ours(folder: Path, compute: float) -> None:
    """A worker of Gradlane. It trains until it is told to leave."""
    sys.path.insert(0, str(PLUGINS))
    import gradlane.torch as gl
    from gradlane import elastic

    write = note(folder)
    model, optimizer = model_and_optimizer()
    gl.init()
    wrapped = gl.DistributedDataParallel(model)
    state = elastic.State(model=model, optimizer=optimizer)

    def endlessly():
        while True:
            yield state.step

    for step in elastic.steps(state, endlessly()):
        optimizer.zero_grad()
        gradients(model, wrapped, step, elastic.world().index, compute)
        optimizer.step()
        write(step + 1, model)
    gl.shutdown()


def train_torchft(folder: Path, compute: float) -> None:
    """A worker of torchft, which is a replica group of one process. It trains until it is killed."""
    from torch import distributed
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    write = note(folder)
    model, optimizer = model_and_optimizer()
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(saved: dict) -> None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"worker-{os.getpid()}-",
    )
    wrapped, managed = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    while True:
        before = manager.current_step()
        managed.zero_grad()
        gradients(model, wrapped, before, os.getpid() % 1000, compute)
        managed.step()
        if manager.current_step() > before:
            write(manager.current_step(), model)


class Job:
    """A training of one system, and what its workers wrote down."""

    def __init__(self, system: str, arguments: argparse.Namespace, folder: Path) -> None:
        """Starts it."""
        self.arguments, self.folder, self.system = arguments, folder, system
        self.processes: dict[int, subprocess.Popen] = {}
        self.lighthouse = self.launcher = None
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        if system == OURS:
            run = [sys.executable, "-m", "gradlane", "run", "-n", str(arguments.workers), "-s", "1"]
            elastic = ["--elastic", f"1:{arguments.workers}", "--restarts", "10000", "--"]
            self.environment = environment | {"PYTHONPATH": str(PLUGINS), "GRADLANE_TRANSPORT": arguments.transport}
            self.launcher = self.start([*run, *elastic, *self.worker(sys.executable)])
            return
        script = (
            "import sys, time; from torchft.coordination import LighthouseServer; "
            "server = LighthouseServer(bind='127.0.0.1:0', min_replicas=1, join_timeout_ms=10_000, quorum_tick_ms=100); "
            "print(server.address(), flush=True); sys.stdin.read()"
        )
        with open(folder.with_suffix(".lighthouse.log"), "ab") as log:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self.lighthouse = subprocess.Popen([arguments.torchft, "-c", script], encoding="utf-8", env=environment, **pipes)
        assert self.lighthouse.stdout is not None
        port = self.lighthouse.stdout.readline().strip().rsplit(":", 1)[1]
        self.environment = environment | {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        for _ in range(arguments.workers):
            self.start_worker()

    def worker(self, python: str) -> list[str]:
        """The command line of a worker."""
        place = [str(PLACE), "--worker", self.system, "--folder", str(self.folder)]
        return [python, *place, "--compute", str(self.arguments.compute)]

    def start(self, command: list[str]) -> subprocess.Popen:
        with open(self.folder.with_suffix(".log"), "ab") as log:
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)

    def start_worker(self) -> None:
        process = self.start(self.worker(self.arguments.torchft))
        self.processes[process.pid] = process

    def steps(self) -> dict[int, dict[int, tuple[float, str]]]:
        """By process and step: when it was done, and the weights behind it."""
        found: dict[int, dict[int, tuple[float, str]]] = {}
        for file in self.folder.iterdir():
            # A line of a process that was killed may be cut.
            lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
            found[int(file.name)] = {int(step): (float(at), weights) for at, step, weights in lines}
        return found

    def alive(self) -> list[int]:
        """The workers that have done a step and live."""
        return sorted(pid for pid, steps in self.steps().items() if steps and not has_ended(pid))

    def wait_for_all(self) -> None:
        """Waits until all workers train."""
        until = time.monotonic() + PATIENCE
        while len(self.alive()) < self.arguments.workers:
            if time.monotonic() > until:
                raise SystemExit(f"{self.system}: not all workers train after {PATIENCE:.0f} s; see {self.folder.with_suffix('.log')}")
            time.sleep(0.1)

    def kill_one(self, chance: random.Random) -> None:
        """Kills a worker. The launcher starts another one; where there is none, this does."""
        if victims := self.alive():
            victim = chance.choice(victims)
            os.kill(victim, signal.SIGKILL)
            if process := self.processes.pop(victim, None):
                process.wait()
                self.start_worker()

    def stop(self) -> None:
        """Ends all processes."""
        if self.launcher is not None:
            self.launcher.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launcher.wait(40)
            self.launcher.kill()
            self.launcher.wait()
        for process in self.processes.values():
            process.kill()
            process.wait()
        if self.lighthouse is not None:
            self.lighthouse.kill()
            self.lighthouse.wait()


def has_ended(pid: int) -> bool:
    """Whether a process has ended, perhaps without that anybody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


@dataclass
class Row:
    """What became of a training."""

    rate: float
    """Steps a second."""
    killed: int
    """Workers."""
    differ: int
    """Steps behind which workers had other weights than others."""


def run(system: str, arguments: argparse.Namespace, faults: bool, chance: random.Random, folder: Path) -> Row:
    """Trains for a while."""
    folder.mkdir()
    job, killed = Job(system, arguments, folder), 0
    try:
        job.wait_for_all()
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < arguments.seconds:
            if faults and passed >= arguments.every * (killed + 0.5):
                job.kill_one(chance)
                killed += 1
            time.sleep(0.05)
        end = time.monotonic()
    finally:
        job.stop()
    done: dict[int, set[str]] = defaultdict(set)
    for steps in job.steps().values():
        for step, (at, weights) in steps.items():
            if begun <= at <= end:
                done[step].add(weights)
    return Row(len(done) / (end - begun), killed, sum(len(weights) > 1 for weights in done.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each row trains")
    parser.add_argument("--every", type=float, default=30.0, help="seconds from one fault to the next")
    parser.add_argument("--compute", type=float, default=0.1, help="seconds that a step computes")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--transport", default="shm", help="of Gradlane: shm or quic")
    parser.add_argument("--torchft", help="an interpreter with torchft and PyTorch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a few seconds, one fault")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        (train_ours if arguments.worker == OURS else train_torchft)(arguments.folder, arguments.compute)
        return 0
    if arguments.short:
        arguments.seconds, arguments.every, arguments.compute = 6.0, 6.0, 0.02
    systems = [OURS, *([TORCHFT] if arguments.torchft else [])]
    rows: dict[tuple[str, bool], list[Row]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
        for turn in range(arguments.turns):
            for system in systems:
                for faults in (False, True):
                    place = Path(folder) / f"{turn}-{systems.index(system)}-{faults}"
                    rows[system, faults].append(run(system, arguments, faults, random.Random(arguments.seed + turn), place))
    print(f"{arguments.workers} workers on {socket.gethostname()}, a worker killed every {arguments.every:g} s, "
          f"{arguments.seconds:g} s a row, {arguments.turns} turns")
    for system in systems:
        calm, faulty = rows[system, False], rows[system, True]
        shares = [with_faults.rate / without.rate for without, with_faults in zip(calm, faulty, strict=True)]
        rates = [statistics.median(row.rate for row in half) for half in (calm, faulty)]
        print(f"{system:20} {rates[0]:6.2f} steps/s, with {sum(row.killed for row in faulty)} faults {rates[1]:6.2f}: "
              f"goodput {statistics.median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%}), "
              f"weights differed behind {sum(row.differ for row in calm + faulty)} steps")
    return 1 if any(row.differ for faults in (False, True) for row in rows[OURS, faults]) else 0


if __name__ == "__main__":
    sys.exit(main())
