"""Python stacks beside the dumps of the flight recorder: on SIGUSR1 and by order, whatever the main thread does."""

import json
import os
import re
import signal
import sys
import time
from contextlib import contextmanager

from processes import SAY, Running, over, run_all

GRADLANE = [sys.executable, "-m", "gradlane"]

STUCK = (
    SAY
    + """
import gradlane, numpy as np

def stuck():
    say(f"at {os.getpid()} stuck")
    return sum(range(10**12))  # in C, with the interpreter lock

def step():
    gradlane.push_pull(np.ones(1000, np.float32), "w")

gradlane.init()
step()
if gradlane.rank() == 1:
    stuck()
say(f"at {os.getpid()} waits")
step()
"""
)


def test_the_stacks_of_a_worker_that_is_stuck_in_c_are_in_its_dump_and_explained(tmp_path):
    flight = tmp_path / "flight"
    with job(tmp_path, STUCK) as (run, env):
        lines = [run.line("at ", timeout=60).split() for _ in range(2)]
        stuck, waits = (next(int(pid) for _, pid, how in lines if how == word) for word in ("stuck", "waits"))
        os.kill(waits, signal.SIGUSR1)
        while not opens(await_(lambda: read(flight, 0), "the dump of worker 0")):
            # It has not submitted its tensor once more.
            (flight / "default-worker-0.flight.json").unlink()
            os.kill(waits, signal.SIGUSR1)
        os.kill(stuck, signal.SIGUSR1)
        dump = await_(lambda: read(flight, 1), "the dump of worker 1")
        assert dump["reason"] == "a signal asked for it"
        assert "in push_pull" in stacks(flight, 0) and "in step" in stacks(flight, 0)
        assert "in stuck" in stacks(flight, 1)
        explained = ran(["explain", str(flight)], env).output
        assert "Worker 1 held the job up." in explained, explained
        place = r"By its Python stacks it was in train\.py:\d+ \(stuck\), called from train\.py:\d+ \(<module>\)\."
        assert re.search(place, explained), explained

        ended = ran(["ctl", "dump"], env)
        assert ended.code == 0, ended
        assert read(flight, 0)["reason"] == read(flight, 1)["reason"] == "an operator asked for it"
        assert "in push_pull" in stacks(flight, 0)
        assert stacks(flight, 1) is None, "nobody could tell, and the older ones would mislead"


def test_the_dump_of_a_failure_has_stacks_too(tmp_path):
    script = """
import gradlane, numpy as np, time

def fails():
    try:
        gradlane.push_pull(np.ones(10, np.float32), "w", timeout=1.0)
    except gradlane.errors.Error:
        time.sleep(100)

gradlane.init()
if gradlane.rank() == 1:
    time.sleep(100)
fails()
"""
    with job(tmp_path, script):
        dump = await_(lambda: read(tmp_path / "flight", 0), "the dump of worker 0")
        assert dump["reason"].startswith("an operation failed: ")
        assert "in fails" in stacks(tmp_path / "flight", 0)


HANDLERS = (
    SAY
    + """
import faulthandler, signal, sys, threading, time
from pathlib import Path
import gradlane, numpy as np

heard = []
kind = sys.argv[1]
others = open(os.devnull, "w")
if kind == "of python":
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(os.getpid()))
elif kind == "of faulthandler":
    faulthandler.register(signal.SIGUSR1, file=others)
gradlane.init()
gradlane.push_pull(np.ones(10, np.float32), "w")
dump = Path(os.environ["GRADLANE_DUMP_DIR"]) / f"flight/default-worker-{gradlane.rank()}.flight.json"

def comes(dump):
    until = time.monotonic() + 30
    while not dump.exists() and time.monotonic() < until:
        pass
    return dump.exists()

def in_child(check):
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)
    return os.waitpid(child, 0)[1]

def raised():
    signal.raise_signal(signal.SIGUSR1)
    return heard

if kind == "of python":
    assert raised() == [os.getpid()] and comes(dump), "both handlers"
    stacks = dump.with_name(dump.name.replace(".flight.json", ".stacks.txt"))
    assert "in raised" in stacks.read_text()
    assert in_child(lambda: len(raised()) == 2) == 0, "in a child, the handler of the program alone"
    dump.unlink()
    threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    assert comes(dump)
    gradlane.shutdown()
    assert len(raised()) == 3, "the handler of the program is back"
elif kind == "of faulthandler":
    raised()
    gradlane.shutdown()
    assert not dump.exists() and faulthandler.unregister(signal.SIGUSR1), "as the program set it"
elif kind == "newer":
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(os.getpid()))
    gradlane.shutdown()
    assert raised() == [os.getpid()], "what the program has set later stays"
else:
    assert in_child(raised) == signal.SIGUSR1, "what the system does by default"
    raised()
    assert comes(dump)
    gradlane.shutdown()
    assert in_child(raised) == signal.SIGUSR1
say(f"done {kind}")
"""
)


def test_a_handler_of_the_program_is_not_taken_away(tmp_path):
    for kind in ("of python", "of faulthandler", "newer", "none"):
        folder = tmp_path / kind.replace(" ", "-")
        folder.mkdir()
        with job(folder, HANDLERS, kind) as (run, _):
            ended = run.end(60)
        assert ended.code == 0 and ended.output.count(f"done {kind}") == 2, ended
        assert ("SIGUSR1 does not dump" in ended.output) == (kind == "of faulthandler"), ended


def test_without_a_directory_a_signal_does_what_it_did_before_and_a_dump_by_order_has_stacks(tmp_path):
    script = (
        SAY
        + """
import gradlane, numpy as np, pathlib, signal
gradlane.init()
gradlane.push_pull(np.ones(10, np.float32), "w")
child = os.fork()
if child == 0:
    signal.raise_signal(signal.SIGUSR1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == signal.SIGUSR1
status = pathlib.Path("/proc/self/status").read_text()
caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
assert not caught >> (signal.SIGUSR1 - 1) & 1
say("runs ")
while gradlane.push_pull(np.full(1, pathlib.Path("stop").exists(), np.float32), "w2")[0] == 0:
    pass
"""
    )
    with job(tmp_path, script, dump_dir=False) as (run, env):
        for _ in range(2):
            run.line("runs ", timeout=60)
        assert ran(["ctl", "dump", "--directory", "look"], env).code == 0
        assert all("train.py" in stacks(tmp_path / "look", rank) for rank in range(2))
        (tmp_path / "stop").touch()
        ended = run.end(60)
        assert ended.code == 0, ended


BESIDE = (
    SAY
    + """
import contextlib, resource, signal, threading, time
from pathlib import Path
import gradlane, numpy as np
from gradlane import _stacks

flight = Path(os.environ["GRADLANE_DUMP_DIR"]) / "flight"

def in_child():
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGUSR1)
        os._exit(0)
    return os.waitpid(child, 0)[1]

def clear():
    for file in flight.glob("beside*"):
        file.unlink(missing_ok=True)

def dumped(*members):
    clear()
    signal.raise_signal(signal.SIGUSR1)
    await_(*members)

def runs(server):
    try:
        return bool(server.join)
    except gradlane.errors.FailedPreconditionError:
        return False

def without_descriptors(call):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    opened = []
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    call()
    for one in opened:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)

def await_(*members):
    until = time.monotonic() + 30
    while not all((flight / f"beside-{member}.flight.json").exists() for member in members):
        assert time.monotonic() < until, (members, list(flight.glob("*")))
        time.sleep(0.02)

with gradlane.Server(workers=1, job="beside") as server:
    dumped("coordinator")
    gradlane.init(coordinator=server.join, config={"job": "beside"})
    gradlane.push_pull(np.ones(10, np.float32), "w")
    dumped("worker-0", "server-0", "coordinator")
    assert "in dumped" in (flight / "beside-worker-0.stacks.txt").read_text()
    with gradlane.Server(workers=1, job="beside2"):
        dumped("worker-0", "server-0", "coordinator")
    clear()
    signal.raise_signal(signal.SIGUSR1)
    with gradlane.Server(workers=1, job="beside2"):
        await_("worker-0", "server-0")  # what the signal told just before is not lost
    dumped("worker-0", "server-0")
    without_descriptors(_stacks._watch)
    dumped("worker-0", "server-0", "coordinator")  # as before
    ending = threading.Thread(target=server.stop, args=(60.0,))
    ending.start()
    while runs(server):
        time.sleep(0.02)
    dumped("worker-0", "server-0", "coordinator")  # while the servers wait until the worker has left
    gradlane.shutdown()
    ending.join()

with gradlane.Server(workers=1, job="beside") as server:
    dumped("coordinator")
    assert in_child() == signal.SIGUSR1, "a child has no members"
say("done")
signal.raise_signal(signal.SIGUSR1)
"""
)


def test_a_signal_dumps_the_coordinator_and_the_servers_that_a_python_process_runs(tmp_path):
    (tmp_path / "train.py").write_text(BESIDE)
    env = over("quic") | {"GRADLANE_STATE_DIR": str(tmp_path / "state"), "GRADLANE_DUMP_DIR": str(tmp_path)}
    [ended] = run_all([([sys.executable, "train.py"], env)], timeout=120, cwd=tmp_path)
    assert "done" in ended.output and ended.code == -signal.SIGUSR1, ended


def test_a_signal_dumps_the_servers_that_the_first_worker_embeds_while_it_joins_and_later(tmp_path):
    script = SAY + """
import gradlane, numpy as np
gradlane.init()
while gradlane.push_pull(np.full(1, os.path.exists("stop"), np.float32), "w")[0] == 0:
    pass
"""
    (tmp_path / "train.py").write_text(script)
    env = over("quic") | {"GRADLANE_STATE_DIR": str(tmp_path / "state"), "GRADLANE_DUMP_DIR": str(tmp_path)}
    env |= {"GRADLANE_JOB": "one", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    places = [{f"OMPI_COMM_WORLD_{name}": str(rank) for name in ("RANK", "LOCAL_RANK")} for rank in range(2)]
    join, flight = tmp_path / "state" / "jobs" / "one" / "join", tmp_path / "flight"

    def start(rank):
        return Running([sys.executable, "train.py"], env=env | places[rank], cwd=tmp_path)

    def dumped(members, when):
        """Sends signals until these members have dumped, each one after the stacks of the one before."""
        def look():
            clear("one-*.stacks.txt")
            os.kill(first.pid, signal.SIGUSR1)
            await_(lambda: [*flight.glob("one-*.stacks.txt")], f"the stacks of worker 0 while it {when}")
            return all((flight / f"one-{member}.flight.json").exists() for member in members)

        clear("one-*.flight.json")
        await_(look, f"the dumps of {members} while worker 0 {when}")

    def clear(names):
        for file in flight.glob(names):
            file.unlink()

    with start(0) as first:
        await_(join.exists, "the join string")
        dumped(["coordinator"], "joins")
        [alone] = flight.glob("one-worker*")
        assert alone.name == f"one-worker-of-pid-{first.pid}.stacks.txt" and "in init" in alone.read_text()
        with start(1) as second:
            dumped(["worker-0", "server-0", "coordinator"], "sums")
            (tmp_path / "stop").touch()
            assert [run.end(60).code for run in (first, second)] == [0, 0]


def test_a_worker_without_a_recorder_writes_its_stacks_alone_and_the_signal_ends_nothing(tmp_path):
    script = SAY + """
import signal, time
from pathlib import Path
import gradlane

stacks = Path(os.environ["GRADLANE_DUMP_DIR"]) / f"flight/default-worker-of-pid-{os.getpid()}.stacks.txt"
gradlane.init()
signal.raise_signal(signal.SIGUSR1)
until = time.monotonic() + 30
while not stacks.exists() and time.monotonic() < until:
    time.sleep(0.02)
assert "in <module>" in stacks.read_text()
gradlane.shutdown()
say(f"done {gradlane.is_initialized()}")
while not os.path.exists("logged"):  # a thread of the package says in the log what it has written
    time.sleep(0.02)
signal.raise_signal(signal.SIGUSR1)
"""
    (tmp_path / "train.py").write_text(script)
    env = {"GRADLANE_DUMP_DIR": str(tmp_path), "GRADLANE_LOG": "warn"}

    def run(command, workers, why):
        with Running(command, env=env, cwd=tmp_path) as run:
            await_(lambda: run.output.count("done False") == workers and run.output.count(why) == workers, (why, run))
            (tmp_path / "logged").touch()
            return run.end(60)

    alone = run([sys.executable, "train.py"], 1, "it is alone in its job")
    assert alone.code == -signal.SIGUSR1, alone
    (tmp_path / "logged").unlink()
    env |= {"GRADLANE_RECORDER_EVENTS": "0", "GRADLANE_STATE_DIR": str(tmp_path / "state")}
    run([*GRADLANE, "run", "-n", "2", "-s", "1", "--", sys.executable, "train.py"], 2, "recorder_events is 0")


def test_the_handler_goes_if_the_job_does_not_form(tmp_path):
    script = """
import os, signal
import gradlane

try:
    gradlane.init(timeout=0.5, config={"dump_dir": os.getcwd()})
except gradlane.errors.NotFormedError:
    signal.raise_signal(signal.SIGUSR1)
"""
    (tmp_path / "train.py").write_text(script)
    env = {"GRADLANE_STATE_DIR": str(tmp_path / "state"), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    env |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    [ended] = run_all([([sys.executable, "train.py"], env)], timeout=60, cwd=tmp_path)
    assert ended.code == -signal.SIGUSR1, ended


@contextmanager
def job(folder, script, *arguments, dump_dir=True):
    """Two workers and a server that run this script, and the environment of what gives them orders."""
    (folder / "train.py").write_text(script)
    env = over("quic") | {"GRADLANE_STATE_DIR": str(folder / "state"), "GRADLANE_STEP_TIMEOUT": "120s"}
    env |= {"GRADLANE_DUMP_DIR": str(folder)} if dump_dir else {}
    command = [*GRADLANE, "run", "-n", "2", "-s", "1", "--", sys.executable, "train.py", *arguments]
    with Running(command, env=env, cwd=folder) as run:
        yield run, env


def ran(words, env):
    return run_all([([*GRADLANE, *words], env)], timeout=60)[0]


def read(flight, rank):
    """The dump of a worker; None if there is none."""
    path = flight / f"default-worker-{rank}.flight.json"
    return json.loads(path.read_text()) if path.exists() else None


def opens(dump):
    return any(one["tensor"] == "w" and one["round"] == 1 for one in dump["open"])


def stacks(flight, rank):
    path = flight / f"default-worker-{rank}.stacks.txt"
    return path.read_text() if path.exists() else None


def await_(look, what):
    until = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < until, what
        time.sleep(0.05)
    return found
