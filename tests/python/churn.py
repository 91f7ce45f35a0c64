"""An elastic job that trains for hours while its processes are killed, stopped and asked to leave, and others come in their place.

    python tests/python/churn.py --seconds 7200 --every 5 --over shm --seed 1

Every worker writes a line for each step into a file: who is in the sum, and checksums of the sum and of its state. A line is
checked against those of all other workers for the same step, and every element of a sum says how often each worker was
counted. It is an error if two lines differ, if a step is missing, if no step ends for a minute, or if a process ends
otherwise than it should. It is one too if processes have more and more files open: while all members are there, those of each
process are counted, and from its first to its last count there must be no more for each fault that it has lived through.
`make test-churn` runs it; no test does, because it has to last.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from processes import clean_environment, free_port, over

GRADLANE = [sys.executable, "-m", "gradlane"]
WORKERS, WORKERS_MIN, SERVERS = 4, 2, 3
SILENT_AFTER = 60.0
"""Seconds without a step after which the job hangs."""
KEPT = 20_000
"""Steps of which lines are compared: no worker is so far behind another one."""
FILES_A_FAULT_MAX = 0.25
"""Files that a process may have more for each fault that it has lived through, on average: what is open just then differs by a few."""
FAULTS_MIN = 40
"""Faults that processes of a role have to have lived through, all together, before their files are judged."""

WORKER = """
import os, sys, zlib
from pathlib import Path
import numpy
import gradlane
from gradlane import elastic

log = os.open(sys.argv[1], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
stop = Path(sys.argv[2])
gradlane.init()
state = elastic.State(weights=numpy.zeros(5000))
is_stopped = False

def until_stopped():
    while not is_stopped:
        yield state.step

# Worker r brings 4^r v, where v is 1, 2 or 4 by step and element: in base 4, sum / v says how often each was counted.
def reduce(step, name, length):
    values = 2.0 ** numpy.random.default_rng([step, length]).integers(0, 3, length)
    total = gradlane.push_pull((values * 4.0 ** gradlane.rank()).astype("float32"), name, op=gradlane.Sum)
    counts = set((total / values).tolist())
    assert len(counts) == 1, (step, name, counts)
    count = int(counts.pop())
    digits = [count // 4**rank % 4 for rank in range(11)]
    assert max(digits) == 1 and digits[gradlane.rank()] == 1, (step, name, digits)
    return total, [rank for rank, digit in enumerate(digits) if digit]

for step in elastic.steps(state, until_stopped()):
    large, among = reduce(step, "large", 200_000)
    small, _ = reduce(step, "small", 5000)
    state.weights += small
    is_stopped = bool(gradlane.push_pull(numpy.array([float(stop.exists())]), "stop", op=gradlane.Sum)[0])
    sums = [zlib.crc32(array.tobytes()) for array in (large, small, state.weights)]
    os.write(log, f"{step} {among} {sums}\\n".encode())
gradlane.shutdown()
"""


@dataclass
class Member:
    """A process of the job."""

    role: str
    process: subprocess.Popen
    output: Path
    log: Path | None = None
    read: int = 0  # bytes of the log
    last: int | None = None  # the last step
    codes: tuple[int, ...] = (0,)  # with which it may end now
    stopped_until: float | None = None
    then: signal.Signals = signal.SIGCONT
    files: list[int] = field(default_factory=list)  # that were open, each time when all members were there

    @property
    def is_well(self) -> bool:
        return self.codes == (0,) and self.stopped_until is None

    @property
    def trains(self) -> bool:
        return self.role == "worker" and self.last is not None and self.is_well


@dataclass
class Churn:
    """The job, and what was done to it."""

    folder: Path
    transport: str
    chance: random.Random
    members: list[Member] = field(default_factory=list)
    known: dict[int, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    last_step: int = -1
    progress: float = field(default_factory=time.monotonic)
    longest: float = 0.0
    lines: int = 0
    is_ending: bool = False
    files: dict[str, list[int]] = field(default_factory=lambda: {role: [0, 0] for role in ("coordinator", "server", "worker")})
    """By role, of processes that have ended: by how much their files have grown, and the faults that they had lived through."""

    def __post_init__(self) -> None:
        self.numbers = itertools.count()
        self.env = clean_environment() | over(self.transport) | {"GRADLANE_STATE_DIR": str(self.folder / "state")}
        self.env |= {"GRADLANE_ELASTIC": f"{WORKERS_MIN}:{WORKERS}", "GRADLANE_ON_SERVER_LOSS": "continue"}
        self.env |= {"GRADLANE_DEAD_TIMEOUT": "3s", "GRADLANE_SUSPECT_TIMEOUT": "1s", "GRADLANE_RESUME": "true"}
        # A coordinator that is started while the job forms again waits so long anew for those that were lost meanwhile.
        self.env |= {"GRADLANE_REFORM_TIMEOUT": "15s"}
        self.join, self.stop = self.folder / "join", self.folder / "stop"
        self.address = f"127.0.0.1:{free_port()}"
        self.coordinate()
        while not self.join.exists():
            self.pause()
        for _ in range(SERVERS):
            self.start("server", [*GRADLANE, "server"], self.join)
        for _ in range(WORKERS):
            self.work(self.join)

    def start(self, role: str, command: list[str], join: Path | None, log: Path | None = None) -> None:
        output = self.folder / f"{role}{next(self.numbers)}"
        env = self.env | ({"GRADLANE_JOIN_FILE": str(join)} if join else {})
        with output.open("w") as file:
            process = subprocess.Popen(command, env=env, stdout=file, stderr=file, start_new_session=True)
        self.members.append(Member(role, process, output, log))

    def coordinate(self) -> None:
        counts = ["-n", str(WORKERS), "-s", str(SERVERS)]
        command = [*GRADLANE, "coordinator", *counts, "--bind", self.address, "--join-file", str(self.join)]
        self.start("coordinator", command, None)

    def work(self, join: Path) -> None:
        log = self.folder / f"log{next(self.numbers)}"
        self.start("worker", [sys.executable, "-c", WORKER, str(log), str(self.stop)], join, log)

    def replace(self, role: str) -> None:
        """Starts a process in the place of one that has ended."""
        file = self.folder / f"token{next(self.numbers)}"
        options = ["--role", role, "--uses", "1", "--ttl", "10m", "--join-file", str(file)]
        subprocess.run([*GRADLANE, "token", "new", *options], env=self.env, check=True, capture_output=True, timeout=60)
        if role == "worker":
            self.work(file)
        else:
            self.start(role, [*GRADLANE, role], file)

    def servers(self) -> list[Member]:
        """The servers that are in the job, as the coordinator knows, and to which nothing was done; none while it does not answer."""
        told = subprocess.run([*GRADLANE, "status", "--json"], env=self.env, capture_output=True, check=False, timeout=60)
        members = json.loads(told.stdout).get("members", []) if told.returncode == 0 else []
        there = {member["pid"] for member in members if member["role"] == "server" and member["health"] == "alive"}
        return [member for member in self.members if member.role == "server" and member.is_well and member.process.pid in there]

    def count_files(self) -> None:
        """Counts the open files of all processes. All members are there."""
        for member in self.members:
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                member.files.append(len(os.listdir(f"/proc/{member.process.pid}/fd")))

    def pause(self) -> None:
        """Looks after the processes, and lets some time pass."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.members[0].process.wait(0.02)
        now = time.monotonic()
        for member in list(self.members):
            self.read(member, now)
            if member.stopped_until is not None and member.stopped_until <= now:
                member.stopped_until = None
                os.kill(member.process.pid, member.then)
            if member.process.poll() is not None:
                self.ended(member)
        self.longest = max(self.longest, now - self.progress)
        if now - self.progress > SILENT_AFTER:
            self.fail(f"no step has ended for {SILENT_AFTER:.0f} s after step {self.last_step}")

    def read(self, member: Member, now: float) -> None:
        if member.log is None or not member.log.exists():
            return
        with member.log.open() as file:
            file.seek(member.read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        member.read += len(whole)
        for line in whole.splitlines():
            number, _, content = line.partition(" ")
            step = int(number)
            if member.last is not None and step != member.last + 1:
                self.fail(f"{member.output.name} has step {step} after {member.last}")
            if self.known.setdefault(step, content) != content:
                self.fail(f"step {step}: {member.output.name} has {content}, others {self.known[step]}")
            self.known.pop(step - KEPT, None)
            member.last = step
            self.lines += 1
            if step > self.last_step:
                self.last_step, self.progress = step, now

    def ended(self, member: Member) -> None:
        self.read(member, time.monotonic())
        code = member.process.returncode
        # One that was asked to leave may be killed before it has.
        if code not in member.codes or (code == 0 and member.codes == (0,) and not self.is_ending):
            self.fail(f"{member.output.name} ended with {code}")
        self.members.remove(member)
        if len(member.files) > 1:
            counts = self.files[member.role]
            counts[0] += member.files[-1] - member.files[0]
            counts[1] += len(member.files) - 1
        if self.is_ending:
            return
        if member.role == "coordinator":
            self.coordinate()
        else:
            self.replace(member.role)

    def fail(self, why: str) -> None:
        outputs = [member.output.name + ":\n" + member.output.read_text()[-2000:] for member in self.members]
        sys.exit("\n".join([f"FAILED after {self.lines} sums, {dict(self.faults)}: {why}", *outputs]))

    def disturb(self) -> None:
        """Does something to a process, if the job can bear it now."""
        trains = [member for member in self.members if member.trains]
        servers = self.servers()
        whole = len(trains) == WORKERS
        if whole and len(servers) == SERVERS and all(member.is_well for member in self.members):
            self.count_files()
        kinds = {"pause": 20, "kill the coordinator": 10}
        if whole:
            kinds |= {"kill a worker": 40, "ask a worker to leave": 15, "stop a worker for good": 10}
        if len(servers) > 1:  # one has to be left
            kinds |= {"kill a server": 15, "ask a server to stop": 5, "stop a server for good": 5}
        kind = self.chance.choices(list(kinds), list(kinds.values()))[0]
        victim = {
            "pause": [member for member in self.members if member.is_well],
            "kill the coordinator": [member for member in self.members if member.role == "coordinator"],
        }.get(kind, servers if "server" in kind else trains)
        if not victim or (kind == "pause" and not whole):
            return
        chosen = self.chance.choice(victim)
        self.faults[kind] += 1
        pid = chosen.process.pid
        if kind == "pause":
            os.kill(pid, signal.SIGSTOP)
            chosen.stopped_until = time.monotonic() + self.chance.uniform(0.1, 0.8)
        elif kind.endswith("for good"):
            os.kill(pid, signal.SIGSTOP)
            chosen.stopped_until, chosen.then = time.monotonic() + 6, signal.SIGKILL
            chosen.codes = (-signal.SIGKILL,)
        elif kind == "ask a worker to leave":
            chosen.codes = (0, -signal.SIGKILL)
            os.kill(pid, signal.SIGTERM)
        elif kind == "ask a server to stop":
            chosen.codes = (128 + signal.SIGTERM,)
            os.kill(pid, signal.SIGTERM)
        else:
            chosen.codes = (-signal.SIGKILL,)
            os.kill(pid, signal.SIGKILL)

    def run(self, seconds: float, every: float) -> None:
        begun = time.monotonic()
        while self.last_step < 0:
            self.pause()
        self.longest = 0.0
        due = time.monotonic() + self.chance.expovariate(1 / every)
        while time.monotonic() < begun + seconds:
            self.pause()
            if time.monotonic() >= due:
                self.disturb()
                due = time.monotonic() + self.chance.expovariate(1 / every)
        while not all(member.trains for member in self.members if member.role == "worker"):
            self.pause()
        self.is_ending = True
        self.stop.touch()
        while self.members:
            self.pause()
        for role, (grown, lived) in self.files.items():
            if lived >= FAULTS_MIN and grown > FILES_A_FAULT_MAX * lived:
                self.fail(f"processes with the role {role} have {grown} more open files after {lived} faults")
        print(
            f"{self.transport}: {time.monotonic() - begun:.0f} s, {self.last_step + 1} steps, {self.lines} lines compared, "
            f"{sum(self.faults.values())} faults {dict(self.faults)}, at most {self.longest:.1f} s without a step, "
            f"open files {', '.join(f'{grown:+} over {lived} faults ({role})' for role, (grown, lived) in self.files.items())}"
        )

    def close(self) -> None:
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGKILL)
            member.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--every", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--over", choices=["shm", "quic"], default="shm")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        churn = Churn(Path(folder), chosen.over, random.Random(chosen.seed))
        try:
            churn.run(chosen.seconds, chosen.every)
        finally:
            churn.close()


if __name__ == "__main__":
    main()
