"""`gradlane ctl`, and the keys of `gradlane top`: orders to a job of two workers and two servers that runs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from gradlane import timeline
from processes import SAY, Running, clean_environment, free_port, kill_group, over, run_all

GRADLANE = [sys.executable, "-m", "gradlane"]

TRAIN = (
    SAY
    + """
import sys, time
from pathlib import Path
import gradlane, numpy as np
from gradlane import Sum, modes, parameters, rules

stop = Path(sys.argv[1])
gradlane.init()
rank = gradlane.rank()
say(f"rank {rank}")
clock = parameters.Clock("c", modes.Sync())
value = np.zeros(100_000, np.float32)
parameters.init("p", value, rule=rules.SGD(lr=1.0), mode=clock)
parameters.init("free", np.zeros(10, np.float32), rule=rules.SGD(lr=1.0))
step = 0
while True:
    contribution = np.random.default_rng([rank, step]).standard_normal(50_000).astype(np.float32)
    gradlane.push_pull(contribution, "w", op=Sum)
    parameters.push("p", np.full_like(value, -1.0), update="step")
    clock.tick()
    step += 1
    parameters.pull("p", value)
    assert np.all(value == value[0]), "all parts on all servers have the same rate"
    say(f"step {step} {value[0]}")
    ends = np.array([float(stop.exists())], np.float32)
    gradlane.push_pull(ends, "ends", op=Sum)
    if ends[0]:
        break
    time.sleep(0.02)
gradlane.shutdown()
"""
)


class Job:
    """The processes of a job, and what orders to it come to."""

    def __init__(self, folder: Path, transport: str, stack: ExitStack, **settings: str) -> None:
        self.folder, join = folder, folder / "join"
        self.env = over(transport) | {
            "GRADLANE_STATE_DIR": str(folder / "state"),
            "GRADLANE_CHECKPOINT_DIR": str(folder),
            "GRADLANE_DUMP_DIR": str(folder),
            "GRADLANE_PARTITION_BYTES": "64KiB",
        }
        self.env |= {f"GRADLANE_{name.upper()}": value for name, value in settings.items()}
        self.member = self.env | {"GRADLANE_JOIN_FILE": str(join)}

        def start(command: list[str], env: dict[str, str]) -> Running:
            return stack.enter_context(Running(command, env=env))

        roles = ["coordinator", "-n", "2", "-s", "2", "--bind", f"127.0.0.1:{free_port()}", "--join-file", str(join)]
        self.coordinator = start([*GRADLANE, *roles], self.env)
        self.servers = [start([*GRADLANE, "server", "-o", f"server_index={index}"], self.member) for index in range(2)]
        self.stop = folder / "stop"
        train = [sys.executable, "-c", TRAIN, str(self.stop)]
        ranks = [{"GRADLANE_RANK": str(rank), "GRADLANE_SIZE": "2"} for rank in range(2)]
        self.workers = [start(train, self.member | rank) for rank in ranks]
        for worker in self.workers:
            worker.line("step 2 ", timeout=60)

    def ctl(self, *words: str, code: int = 0, env: dict[str, str] | None = None) -> str:
        """Gives an order, and returns what is printed."""
        [ended] = run_all([([*GRADLANE, "ctl", *words], self.env if env is None else env)], timeout=60)
        assert ended.code == code, f"{words}: {ended}"
        return ended.output

    def values(self, rank: int = 0) -> dict[int, float]:
        """The value of the parameter after each step so far."""
        lines = [line.split() for line in self.workers[rank].output.splitlines() if line.startswith("step ")]
        return {int(step): float(value) for _, step, value in lines}

    def step(self) -> int:
        return max(self.values())

    def comes_to(self, step: int) -> None:
        for worker in self.workers:
            worker.line(f"step {step} ", timeout=60)

    def ends(self) -> None:
        self.stop.touch()
        for process in [*self.workers, *self.servers, self.coordinator]:
            ended = process.end(30)
            assert ended.code == 0, ended


@contextmanager
def job(folder, transport, **settings):
    with ExitStack() as stack:
        yield Job(folder, transport, stack, **settings)


def contribution(rank: int, round: int) -> np.ndarray:
    return np.random.default_rng([rank, round]).standard_normal(50_000).astype(np.float32)


@pytest.mark.over("quic", "shm")
def test_each_order_reaches_a_job_that_goes_on(tmp_path, transport):
    with job(tmp_path, transport) as it:
        every_stats(it)
        the_log_of_one_process(it)
        a_rate_from_a_step_on(it)
        a_rate_at_once(it)
        a_checkpoint(it)
        a_dump(it)
        a_timeline(it)
        what_is_refused(it)
        it.ends()


def every_stats(it: Job) -> None:
    text = it.ctl("stats")
    for label in ('worker_submissions_total{rank="0"}', 'worker_submissions_total{rank="1"}'):
        assert f"gradlane_{label}" in text, text
    for label in ('server="0"', 'server="1"', 'job_name="default"'):
        assert label in text, text
    one = json.loads(it.ctl("stats", "worker-1", "--json"))
    assert one["worker-1"]["submissions"] > 0 and list(one) == ["worker-1"]
    everybody = ["coordinator", "server-0", "server-1", "worker-0", "worker-1"]
    assert sorted(json.loads(it.ctl("stats", "--json"))) == everybody


def the_log_of_one_process(it: Job) -> None:
    def lines(process: Running) -> int:
        return sum(" TRACE " in line or " DEBUG " in line for line in process.output.splitlines())

    everybody = [*it.servers, *it.workers, it.coordinator]
    for member, process in (("server-0", it.servers[0]), ("worker-1", it.workers[1]), ("coordinator", it.coordinator)):
        before = {other: lines(other) for other in everybody}
        assert it.ctl("log", "trace", "--member", member) == f"{member} logs trace\n"
        it.comes_to(it.step() + 5)
        assert it.ctl("log", "warn", "--member", member) == f"{member} logs warn\n"
        assert lines(process) > before[process], process.output
        assert all(lines(other) == before[other] for other in everybody if other is not process)
        # What was on its way when the level changed.
        it.comes_to(it.step() + 2)
        quiet = lines(process)
        it.comes_to(it.step() + 5)
        assert lines(process) == quiet
    refused = it.ctl("log", "a=b=c", "--member", "server-0", code=2)
    assert "is no filter" in refused


def a_rate_from_a_step_on(it: Job) -> None:
    """Each gradient is -1, so the value grows by the rate of each step. All numbers are exact."""
    first = it.step() + 30
    assert it.ctl("set", "p", "lr=0.25", "--at", str(first)) == f"the rate changes at step {first}\n"
    second = first + 20
    assert json.loads(it.ctl("set", "p", "lr=2", "--at", str(second), "--json")) == {"step": second}
    it.comes_to(second + 3)
    values = it.values()
    steps = range(1, second + 3)
    rates = [1.0 if step < first else 0.25 if step < second else 2.0 for step in steps]
    assert [values[step] for step in steps] == np.cumsum(rates).tolist()
    closed = it.ctl("set", "p", "lr=1", "--at", "3", code=1)
    assert "step 3 of the parameter p is closed" in closed
    # Without a step, it is the next one that no server has closed.
    said = it.ctl("set", "p", "lr=0.5")
    now = int(said.split()[-1])
    it.comes_to(now + 2)
    values = it.values()
    assert values[now] - values[now - 1] == 0.5 and values[now - 1] - values[now - 2] == 2.0


def a_rate_at_once(it: Job) -> None:
    assert "with the next change" in it.ctl("set", "free", "lr=0.5")
    assert "has no clock" in it.ctl("set", "free", "lr=0.5", "--at", "9", code=1)
    for wrong in ("nan", "inf", "-1"):
        assert "a learning rate of" in it.ctl("set", "free", f"lr={wrong}", code=2)
    assert "is no number" in it.ctl("set", "free", "lr=much", code=2)
    missing = it.ctl("set", "nothing", "lr=1", code=1)
    assert "the parameter nothing is not there; the first parameters of this job are free, p" in missing
    assert "is not there" in it.ctl("set", "w", "lr=1", code=1), "a sum has no rate"


def a_checkpoint(it: Job) -> None:
    assert "saved nightly/checkpoint-1: 2 parameters" in it.ctl("save", "nightly", "--keep", "2", "--timeout", "50s")
    assert (it.folder / "nightly" / "checkpoint-1" / "manifest.json").exists()
    saved = json.loads(it.ctl("save", "nightly", "--json"))
    assert (saved["checkpoint"], saved["tensors"]) == (2, 2)
    assert "leads out of its directory" in it.ctl("save", "../elsewhere", code=2)


def a_dump(it: Job) -> None:
    at = it.step() + 30
    order = ("--worker", "1", "--directory", "look")
    files = it.ctl("dump", "w", "--round", str(at), *order, "--timeout", "30s").split()[3:]
    assert [Path(file).parent for file in files] == [it.folder.resolve() / "look"] * 3
    described = json.loads(Path(files[2]).read_text())
    assert described["dtype"] == "float32" and described["shape"] == [50_000] and described["round"] == at
    ours = np.fromfile(files[0], "<f4")
    assert ours.tobytes() == contribution(1, at).tobytes()
    both = contribution(0, at).astype(np.float32) + contribution(1, at)
    assert np.fromfile(files[1], "<f4").tobytes() == both.tobytes()
    assert "has begun" in it.ctl("dump", "w", "--round", "1", *order, code=1)
    assert "is not there" in it.ctl("dump", "nothing", "--round", "1", *order, code=1)
    far = str(it.step() + 10_000)
    outside = ("--worker", "1", "--directory", "../x")
    assert "leads out of its directory" in it.ctl("dump", "w", "--round", far, *outside, code=2)
    assert "dump: no answer from worker-1" in it.ctl("dump", "w", "--round", far, *order, "--timeout", "1s", code=75)


def a_timeline(it: Job) -> None:
    first = it.step() + 40
    said = it.ctl("timeline", "--all", "--from-step", str(first), "--steps", "3").splitlines()
    assert said[-1] == f"4 of 4 members record steps {first} to {first + 2}"
    files = [it.folder.resolve() / "timeline" / name / "comm.json" for name in ("0", "1", "server-0", "server-1")]
    assert sorted(line.split(": ")[1] for line in said[:-1]) == sorted(map(str, files))
    twice = it.ctl("timeline", "--member", "worker-0", code=1)
    assert "worker-0: " in twice and "a timeline is being recorded already" in twice
    it.comes_to(first + 10)
    until = time.monotonic() + 60
    while not all(file.read_text().endswith("]\n") for file in files):
        assert time.monotonic() < until, "all files are completed without a further order"
    merged = it.folder / "timeline" / "all.json"
    assert timeline.merge(*files, out=merged).violations == ()
    events = [event for event in json.loads(merged.read_text()) if event["ph"] == "X"]
    wanted = [(rank, round) for rank in range(2) for round in range(first, first + 3)]
    parts = 4  # of 64 KiB
    pushes = [event for event in events if event["name"] == "PUSH" and event["args"]["tensor"] == "w"]
    # Each worker begins with the first tensor of the first step, and ends with what it had begun in the last one.
    assert sorted((event["pid"] // 2, event["args"]["round"]) for event in pushes) == sorted(wanted * parts)
    keys = {event["args"]["key"] for event in pushes}
    sums = [event["args"]["round"] for event in events if event["name"] == "SUM" and event["args"]["key"] in keys]
    assert sorted(sums) == sorted([round for rank, round in wanted if rank == 0] * parts)

    for member in ("worker-0", "server-1"):
        assert "leads out of its directory" in it.ctl("timeline", "--member", member, "--directory", "../x", code=2)
        (it.folder / "file").touch()
        assert "file" in it.ctl("timeline", "--member", member, "--directory", "file/below", code=1)
    past = json.loads(it.ctl("timeline", "--all", "--from-step", "1", "--steps", "1", "--json", code=1).splitlines()[-1])
    assert past["files"] == {} and sorted(past["errors"]) == ["worker-0", "worker-1"] and "step 1 has begun" in past["errors"]["worker-0"]
    assert "4 of 4 members record no timeline" in it.ctl("timeline", "--all", "--stop")
    assert it.ctl("timeline", "--member", "server-0").splitlines()[-1].startswith("1 of 1 members record a timeline until")
    assert "1 of 1 members record no timeline" in it.ctl("timeline", "--member", "server-0", "--stop")
    it.ctl("timeline", code=2)
    it.ctl("timeline", "--all", "--steps", "3", code=2)
    assert "timeline is no order for coordinator" in it.ctl("timeline", "--member", "coordinator", code=2)
    it.comes_to(it.step() + 3)


def what_is_refused(it: Job) -> None:
    everybody = "the job has coordinator, worker-0, worker-1, server-0, server-1"
    assert everybody in it.ctl("log", "info", "--member", "server-7", code=1)
    assert "drain is no order for worker-0" in it.ctl("drain", "--member", "worker-0", code=2)
    assert "is none of coordinator, worker-N, server-N" in it.ctl("stats", "boss", code=2)
    refused = it.ctl("stats", env=it.member, code=77)
    assert "needs an admin token" in refused and "gradlane token new --role admin" in refused
    admin = it.folder / "admin.join"
    made = [*GRADLANE, "token", "new", "--role", "admin", "--uses", "1", "--join-file", str(admin)]
    [ended] = run_all([(made, it.env)], timeout=30)
    assert ended.code == 0, ended
    elsewhere = {"GRADLANE_JOIN_FILE": str(admin), "GRADLANE_STATE_DIR": str(it.folder / "none")}
    assert "gradlane_coordinator_orders_total" in it.ctl("stats", "coordinator", env=elsewhere)
    assert "is used up" in it.ctl("stats", "coordinator", env=elsewhere, code=77)
    assert "none runs here" in it.ctl("stats", env={"GRADLANE_STATE_DIR": str(it.folder / "none")}, code=75)


class Top:
    """`gradlane top` in a terminal of its own. Leaving the context kills what is left of it."""

    def __init__(self, env: dict[str, str]) -> None:
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("4H", 40, 200, 0, 0))
        options = {"env": clean_environment() | env, "stdin": inside, "stdout": inside, "stderr": inside}
        self._process = subprocess.Popen([*GRADLANE, "top"], start_new_session=True, **options)
        os.close(inside)
        self._shown = ""

    def sees(self, expected: str, since: int = 0) -> None:
        """Waits until the screen shows this."""
        until = time.monotonic() + 60
        while expected not in self._shown[since:]:
            assert time.monotonic() < until, f"no {expected} in {self._shown[since:]!r}"
            if select.select([self._terminal], [], [], 1.0)[0]:
                self._shown += os.read(self._terminal, 65_536).decode(errors="replace")

    def press(self, key: str, expected: str) -> None:
        """Presses a key, and waits until the screen shows this."""
        since = len(self._shown)
        os.write(self._terminal, key.encode())
        self.sees(expected, since)

    def quits(self) -> int:
        os.write(self._terminal, b"q")
        return self._process.wait(30)

    def __enter__(self) -> Top:
        return self

    def __exit__(self, *error: object) -> None:
        kill_group(self._process)
        os.close(self._terminal)


@pytest.mark.over("quic", "shm")
def test_keys_of_top_record_all_members_and_dump_what_they_did(tmp_path, transport):
    with job(tmp_path, transport) as it, Top(it.env) as top:
        top.sees("VERDICT")
        top.sees("exposed")
        top.press("T", "4 of 4 members record a timeline until")
        it.comes_to(it.step() + 5)
        top.press("T", "4 of 4 members record no timeline any more")
        files = [it.folder / "timeline" / name / "comm.json" for name in ("0", "1", "server-0", "server-1")]
        until = time.monotonic() + 60
        while not all(file.read_text().endswith("]\n") for file in files):
            assert time.monotonic() < until, "all files are completed"
        recorded = [{event["name"] for event in json.loads(file.read_text())} for file in files]
        assert all("PUSH" in names for names in recorded[:2]) and all("SUM" in names for names in recorded[2:]), recorded

        top.press("d", "5 of 5 members have written")
        dumps = sorted(path.name for path in (it.folder / "flight").iterdir())
        assert len([name for name in dumps if name.endswith(".flight.json")]) == 5, dumps
        assert len([name for name in dumps if name.startswith("default-20")]) == 2, f"a report and its page: {dumps}"
        assert top.quits() == 0
        it.ends()


def test_top_says_that_the_coordinator_does_not_answer_and_goes_on_when_it_does(tmp_path):
    with job(tmp_path, "shm") as it, Top(it.env) as top:
        top.sees("VERDICT")
        it.coordinator.interrupt(signal.SIGSTOP)
        try:
            top.sees("NO ANSWER the coordinator has not answered for")
        finally:
            it.coordinator.interrupt(signal.SIGCONT)
        top.press("d", "5 of 5 members have written")
        assert top.quits() == 0
        it.ends()


@pytest.mark.parametrize("member", ["server-1", "worker-1"])
def test_a_member_that_is_stopped_is_named_and_the_job_goes_on_with_it(tmp_path, member):
    # On a busy host, an order takes some seconds.
    with job(tmp_path, "shm", dead_timeout="60s") as it:
        process = {"server-1": it.servers[1], "worker-1": it.workers[1]}[member]
        process.interrupt(signal.SIGSTOP)
        try:
            began = time.monotonic()
            said = it.ctl("stats", member, "--timeout", "1s", code=75)
            assert f"stats: no answer from {member}" in said and time.monotonic() - began < 20
            all_others = it.ctl("stats", "--timeout", "1s", code=75)
            assert f"{member}: stats: no answer" in all_others and 'server="0"' in all_others
            recorded = it.ctl("timeline", "--all", "--timeout", "1s", code=75)
            assert f"{member}: timeline: no answer" in recorded and "3 of 4 members record a timeline" in recorded
        finally:
            process.interrupt(signal.SIGCONT)
        assert it.ctl("stats", member)
        assert "4 of 4 members record no timeline" in it.ctl("timeline", "--all", "--stop")
        it.comes_to(it.step() + 3)
        it.ends()


def test_a_server_that_drains_ends_in_order_and_its_job_hears_why(tmp_path):
    with job(tmp_path, "shm") as it:
        assert it.ctl("drain", "--member", "server-1") == "server-1 drains\n"
        ended = it.servers[1].end(30)
        assert ended.code == 0, ended
        failed = it.workers[0].end(60)
        assert failed.code != 0 and "server 1" in failed.output, failed.output


def test_a_job_of_the_launcher_takes_orders_of_its_user(tmp_path):
    """Its coordinator keeps no authority on disk, and also no join string for others."""
    env = over("shm") | {"GRADLANE_STATE_DIR": str(tmp_path / "state")}
    stop = tmp_path / "stop"
    launch = [*GRADLANE, "run", "-n", "2", "-s", "2", "--", sys.executable, "-c", TRAIN, str(stop)]
    with Running(launch, env=env) as launched:
        launched.line("step 2 ", timeout=60)
        [ended] = run_all([([*GRADLANE, "ctl", "stats", "--json"], env)], timeout=60)
        assert ended.code == 0 and len(json.loads(ended.output)) == 5, ended
        stop.touch()
        assert launched.end(30).code == 0
