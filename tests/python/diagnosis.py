"""Jobs that something slows down, and what is said of them: by `gradlane top`, the page, the report and `gradlane explain`.

    python tests/python/diagnosis.py                        # all experiments (5 minutes), with a table
    python tests/python/diagnosis.py "a slow link" healthy  # some

Each job has two servers. Most have three workers, which reduce alone, over QUIC; in some the workers of a machine reduce among
themselves. The experiments with links run in network namespaces, which need root, iproute2 and nftables; the others run on
loopback. What is planted is far slower than a step, because the machine may be busy with other things too.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from processes import Running, clean_environment, free_port, over

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples"))

from shaped import Machines  # noqa: E402

SERVERS = 2
VICTIM = 1
"""The rank or the machine that is slow."""
SECONDS = 9
"""For so long a job runs before it is looked at, because everything is compared over time."""
PATIENCE = 60.0
GRADLANE = [sys.executable, "-m", "gradlane"]
TESTED_SERVER = [str(ROOT / "target" / "debug" / "gradlane-server")]
"""A server with what tests plant in it. The package that is installed may be a release, which has nothing of it."""
LINK, SLOW_LINK = "200mbit", "20mbit"

TRAIN = """
import json, os, subprocess, sys, time
from pathlib import Path
import gradlane, numpy as np
from gradlane import timeline

fault, stop, size = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
mine = fault if os.environ["GRADLANE_RANK"] == sys.argv[4] else {}
if mine.get("hogs"):
    # In this session, because the kernel shares a core among sessions first.
    os.sched_setaffinity(0, [0])
    hog = "import os; parent = os.getppid()\\nwhile os.getppid() == parent: pass"
    for _ in range(mine["hogs"]):
        subprocess.Popen([sys.executable, "-c", hog])
gradlane.init()
if fault.get("device"):
    sys.path.insert(0, sys.argv[5])
    from fakecuda import Array
    make = lambda: Array(np.ones(size, np.float32))
else:
    make = lambda: np.ones(size, np.float32)
tensors = {f"layer{at}.weight": make() for at in range(4)}

def batches():
    while True:
        time.sleep(mine.get("data", 0))
        yield np.ones(1000)

def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

for step, batch in enumerate(timeline.data(batches())):
    compute(0.01)
    time.sleep(fault.get("pause", 0) + mine.get("sleep", 0))
    handles = [gradlane.push_pull_async(tensor, name, op=gradlane.Max) for name, tensor in tensors.items()]
    for handle in handles:
        handle.wait()
    ends = np.array([float(stop.exists())], np.float32)
    gradlane.push_pull(ends, "ends", op=gradlane.Max)
    os.write(1, f"step {step}\\n".encode())
    if ends[0]:
        break
gradlane.shutdown()
"""
"""A worker: computes, maybe sleeps, and reduces four tensors a step, until there is a file that ends it."""


@dataclass(frozen=True)
class Experiment:
    """A cause that is planted, and what is to be said of it."""

    name: str
    verdict: str
    """A regular expression of the verdict."""
    fault: Mapping[str, float] = field(default_factory=dict)
    """What the victim does, for how long all pause in a step, and on which device the tensors are."""
    elements: int = 50_000
    """Of each tensor."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of all processes."""
    victim_env: Mapping[str, str] = field(default_factory=dict)
    """Of the worker that is the victim."""
    server_env: Mapping[str, str] = field(default_factory=dict)
    """Of the server that is the victim."""
    machines: str = "abc"
    """The machine of each worker, of which there are as many."""
    links: str | None = None
    """Whether the machines have links of their own, and what is wrong with that of the victim."""


EXPERIMENTS = [
    Experiment("healthy", r"nobody is late"),
    Experiment("a rank that sleeps before it submits", r"rank 1 late \(submit\) [^:]*$", fault={"sleep": 0.15}),
    Experiment("a rank with a busy core", r"rank 1 late \(\w+\) .*: its threads wait for a core", fault={"hogs": 6}),
    Experiment(
        "a slow copy from a device",
        r"rank 1 late \(device\)",
        fault={"device": 1},
        env={"FAKECUDA_DEVICES": "1"},
        victim_env={"FAKECUDA_GB_PER_S": "0.004"},
    ),
    Experiment("a link of a tenth", r"rank 1 late \(transfer\) .*: its link is full", elements=100_000, links="slow"),
    Experiment("1 % loss", r"rank 1 late \(transfer\) .*: \d+\.\d % of its packets are lost", elements=400_000, links="loss"),
    Experiment(
        "a slow sum lane",
        r"server 1 is behind with its additions",
        server_env={"GRADLANE_FAILPOINT": "adds:1:slow=20"},
    ),
    Experiment(
        "credit that is too small",
        r"rank 1 late \(credit\)|workers wait for credit",
        elements=400_000,
        env={"GRADLANE_CREDIT_BYTES": "64KiB", "GRADLANE_PARTITION_BYTES": "64KiB"},
        links="even",
    ),
    Experiment("healthy workers of one machine", r"nobody is late", fault={"pause": 0.2}, machines="aa"),
    Experiment(
        "a rank that sleeps on the only machine",
        r"rank 1 late \(submit\)",
        fault={"sleep": 0.15},
        machines="aaa",
    ),
    Experiment(
        "a rank that sleeps on a machine with another one",
        r"rank 1 late \(submit\)",
        fault={"sleep": 0.15},
        machines="abab",
    ),
    Experiment(
        "a data loader that stalls",
        r"rank 1 late \(submit\) .*: its training waits for its data loader",
        fault={"data": 0.15},
    ),
]


@dataclass
class Said:
    """The verdicts on a job."""

    top: str
    page: str
    report: str
    explain: str

    def of(self) -> dict[str, str]:
        return {"top": self.top, "page": self.page, "report": self.report, "explain": self.explain}


class Job:
    """The processes of an experiment."""

    def __init__(self, experiment: Experiment, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        workers = len(experiment.machines)
        self._machines = None
        if experiment.links is not None:
            self._machines = stack.enter_context(Machines(workers + SERVERS, LINK))
            if experiment.links == "slow":
                self._machines.shape(VICTIM, SLOW_LINK)
            if experiment.links == "loss":
                for server in range(SERVERS):
                    self._machines.lose(workers + server, sender=VICTIM, one_of=100)
        self._stack = stack
        self.port = free_port()
        self.env = over("quic") | {
            "GRADLANE_STATE_DIR": str(folder / "state"),
            "GRADLANE_DUMP_DIR": str(folder),
            "GRADLANE_REPORT": str(folder / "report"),
            **experiment.env,
        }
        if experiment.fault.get("device"):
            from fakecuda import LIBRARY

            self.env["GRADLANE_CUDA_LIB"] = LIBRARY
        join = {"GRADLANE_JOIN_FILE": str(folder / "join")}
        host = "127.0.0.1" if self._machines is None else Machines.address(None)
        roles = ["coordinator", "-n", str(workers), "-s", str(SERVERS), "--bind", f"{host}:{free_port()}"]
        roles += ["--join-file", str(folder / "join"), "-o", f"metrics_bind=127.0.0.1:{self.port}"]
        self._coordinator = self._start(None, [*GRADLANE, *roles], {})
        self._servers = []
        for index in range(SERVERS):
            planted = experiment.server_env if index == VICTIM else {}
            command = [*(TESTED_SERVER if planted else GRADLANE), "server", "-o", f"server_index={index}"]
            self._servers.append(self._start(workers + index, command, join | planted))
        self.stop = folder / "stop"
        arguments = [json.dumps(dict(experiment.fault)), str(self.stop), str(experiment.elements), str(VICTIM)]
        train = [sys.executable, "-c", TRAIN, *arguments, str(Path(__file__).parent)]
        self._workers = []
        for rank, machine in enumerate(experiment.machines):
            is_victim = rank == VICTIM
            env = join | {"GRADLANE_RANK": str(rank), "GRADLANE_SIZE": str(workers)}
            if len(set(experiment.machines)) < workers:
                env |= {"GRADLANE_LOCAL_REDUCE": "auto", "GRADLANE_TRANSPORT": "auto", "GRADLANE_MACHINE": machine}
            env |= experiment.victim_env if is_victim else {}
            self._workers.append(self._start(rank, train, env))
        for worker in self._workers:
            worker.line("step 2", timeout=PATIENCE)

    def runs(self, seconds: float) -> None:
        """Waits until the job has run for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._workers[0].line("step ", timeout=PATIENCE)

    def said(self) -> Said:
        """What is said of the job now; ends it."""
        top = _find(r"^VERDICT (.*)$", self._gradlane("top"))
        page = self._fetch(f"http://127.0.0.1:{self.port}/")
        self._gradlane("ctl", "dump")
        explain = self._gradlane("explain", str(self._folder / "flight"))
        self.stop.touch()
        for process in [*self._workers, *self._servers, self._coordinator]:
            ended = process.end(PATIENCE)
            assert ended.code == 0, ended
        [report] = (self._folder / "report").glob("*.json")
        return Said(top, _find(r"verdict: ([^<]*)", page), json.loads(report.read_text())["verdict"], explain)

    def _start(self, machine: int | None, command: Sequence[str], env: Mapping[str, str]) -> Running:
        return self._stack.enter_context(Running([*self._enter(machine), *command], env=self.env | dict(env)))

    def _gradlane(self, *words: str) -> str:
        return self._ask([*GRADLANE, *words])

    def _fetch(self, address: str) -> str:
        fetch = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"
        return self._ask([sys.executable, "-c", fetch, address])

    def _ask(self, command: Sequence[str]) -> str:
        """What a command prints on the machine of the coordinator."""
        line, env = [*self._enter(None), *command], clean_environment() | self.env
        ended = subprocess.run(line, env=env, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False)
        assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def _enter(self, machine: int | None) -> list[str]:
        return [] if self._machines is None else self._machines.enter(machine)


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    assert found is not None, f"no {pattern!r} in:\n{text}"
    return found[1].strip()


def examine(experiment: Experiment, folder: Path) -> Said:
    """Runs the job of an experiment, and returns what is said of it."""
    with ExitStack() as stack:
        job = Job(experiment, folder, stack)
        job.runs(SECONDS)
        return job.said()


def wrong(experiment: Experiment, said: Said) -> list[str]:
    """Who does not say what is to be said."""
    return [f"{who}: {what}" for who, what in said.of().items() if not re.search(experiment.verdict, what, re.MULTILINE)]


def main(names: Sequence[str]) -> int:
    """Prints a table of the experiments; fails if one of them is not understood."""
    chosen = [experiment for experiment in EXPERIMENTS if not names or experiment.name in names]
    failed = 0
    for experiment in chosen:
        with tempfile.TemporaryDirectory() as folder:
            said = examine(experiment, Path(folder))
        complaints = wrong(experiment, said)
        failed += bool(complaints)
        print(f"| {experiment.name} | {said.report} | {'; '.join(complaints) or 'all four'} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main(sys.argv[1:]))
