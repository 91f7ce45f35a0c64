"""Jobs that lose servers with the parameters that these keep, form again, and go back to a checkpoint."""

from __future__ import annotations

import random
import sys

import pytest
from processes import SAY, free_port, over, run_all

GRADLANE = [sys.executable, "-m", "gradlane"]
RESTORES = ["-o", "on_server_loss=restore"]

BEGIN = (
    SAY
    + """
import pathlib, signal, sys, threading, time
import numpy as np
import gradlane as gl
from gradlane import checkpoint, modes, parameters, rules

path, STEPS = sys.argv[1], int(sys.argv[2])
KILLS = dict(eval(sys.argv[3]))  # by global step: after how many seconds in it, on the first worker

# The servers that run beside this worker, in the order of their start.
def servers():
    launcher = os.getppid()
    tasks = pathlib.Path(f"/proc/{launcher}/task").glob("*/children")
    children = sorted(int(child) for task in tasks for child in task.read_text().split())
    command = lambda child: pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\\0")
    return [child for child in children if b"server" in command(child)]

def kill_if_due(step):
    if gl.rank() == 0 and step in KILLS:
        after, which = KILLS.pop(step)
        victim = servers()[which % len(servers())]
        threading.Timer(after, os.kill, (victim, signal.SIGKILL)).start()

gl.init()
attempts = 0
"""
)

SIZES = {"large": 300_000, "small": 5, "plain": 70_000}

SYNC = (
    BEGIN
    + f"""
SIZES = {SIZES}
"""
    + """
def gradient(name, step):
    return np.random.default_rng([step, gl.rank(), SIZES[name]]).standard_normal(SIZES[name]).astype(np.float32)

def train():
    global attempts
    attempts += 1
    clock = parameters.Clock("train", modes.Sync())
    rule = {"large": rules.AdamW(lr=0.1), "small": rules.SGD(lr=0.1, momentum=0.9), "plain": rules.SGD(lr=1.0)}
    values = {name: np.full(size, 0.5, np.float32) for name, size in SIZES.items()}
    for name, value in values.items():
        parameters.init(name, value, rule=rule[name], mode=clock)
    found = checkpoint.resume(path)
    # A save that nobody waits for may be of a later round than the one in which it was asked for.
    begin = 0 if found is None else found.step
    say(f"rank {gl.rank()} attempt {attempts}: from {begin} of checkpoint {None if found is None else found.number}")
    saving = None
    for step in range(begin, STEPS):
        kill_if_due(step)
        for name in values:
            parameters.push(name, gradient(name, step), update="step")
        clock.tick()
        if gl.rank() == 0 and step % 3 == 2:
            if saving is not None:
                saving.wait()
            saving = checkpoint.save(path, keep=3, extra=step + 1, async_=True)
    if saving is not None:
        saving.wait()
    import hashlib
    whole = hashlib.sha256()
    for name, value in values.items():
        parameters.pull(name, value)
        whole.update(value.tobytes())
    return whole.hexdigest()[:16]

digest = checkpoint.run(train)
gl.shutdown()
say(f"rank end: {digest} after {attempts}")
"""
)


def launch(script, path, steps, kills, transport, *, servers=2, restarts=None, settings=RESTORES, env=None, timeout=150.0):
    """Two workers and their servers; the kills by step."""
    command = [*GRADLANE, "run", "-n", "2", "-s", str(servers), *settings]
    if restarts is not None:
        command += ["--restarts", str(restarts)]
    command += ["--", sys.executable, "-c", script, str(path), str(steps), repr(kills)]
    here = {"GRADLANE_CHECKPOINT_DIR": str(path.parent), "GRADLANE_DETERMINISTIC": "true"} | over(transport) | (env or {})
    [ended] = run_all([(command, here)], timeout=timeout)
    return ended


def said(ended, start):
    return sorted(line.removeprefix(start) for line in ended.output.splitlines() if line.startswith(start))


def digest_of(ended):
    """What both workers have in the end, and how many attempts they made."""
    assert ended.code == 0, ended.output
    first, second = said(ended, "rank end: ")
    assert first == second, ended.output
    digest, attempts = first.split(" after ")
    return digest, int(attempts)


def assert_same_beginnings(ended):
    """All workers begin each attempt from the same checkpoint."""
    begun = [set(said(ended, f"rank {rank} ")) for rank in range(2)]
    assert begun[0] == begun[1] and begun[0], ended.output


@pytest.mark.over("shm", "quic")
def test_servers_are_killed_at_any_moment_and_the_weights_are_those_of_a_training_without_losses(tmp_path, transport):
    """To the bit. Some kills come while a checkpoint is saved, and some while workers push."""
    undisturbed = launch(SYNC, tmp_path / "calm", 40, {}, transport)
    rng = random.Random(f"restore over {transport}")
    steps = [5, 11, 12, 23, 30, 38]
    kills = {step: (rng.uniform(0, 0.02), rng.randrange(2)) for step in steps}
    disturbed = launch(SYNC, tmp_path / "run", 40, kills, transport)
    digest, attempts = digest_of(disturbed)
    assert (digest, 1) == digest_of(undisturbed), disturbed.output
    assert attempts >= 5 and disturbed.output.count("it is started again") == len(kills), disturbed.output
    assert_same_beginnings(disturbed)


@pytest.mark.over("shm", "quic")
def test_without_a_replacement_the_training_goes_on_with_the_servers_that_are_left(tmp_path, transport):
    undisturbed = launch(SYNC, tmp_path / "calm", 20, {}, transport, servers=3)
    kills = {4: (0.001, 0), 13: (0.002, 1)}
    disturbed = launch(SYNC, tmp_path / "run", 20, kills, transport, servers=3, restarts=0)
    assert digest_of(disturbed) == (digest_of(undisturbed)[0], 3), disturbed.output
    assert_same_beginnings(disturbed)


@pytest.mark.over("shm")
def test_a_training_that_saved_nothing_yet_begins_anew(tmp_path, transport):
    disturbed = launch(SYNC, tmp_path / "run", 4, {1: (0.0, 0)}, transport)
    digest_of(disturbed)
    assert "rank 1 attempt 2: from 0 of checkpoint None" in disturbed.output, disturbed.output


@pytest.mark.over("quic")
def test_the_last_server_may_be_lost_if_another_one_comes(tmp_path, transport):
    undisturbed = launch(SYNC, tmp_path / "calm", 12, {}, transport, servers=1)
    disturbed = launch(SYNC, tmp_path / "run", 12, {7: (0.001, 0)}, transport, servers=1)
    assert digest_of(disturbed) == (digest_of(undisturbed)[0], 2), disturbed.output
    env = {"GRADLANE_REFORM_TIMEOUT": "2s"}
    gone = launch(SYNC, tmp_path / "gone", 12, {7: (0.001, 0)}, transport, servers=1, restarts=0, env=env)
    assert gone.code != 0 and "NotFormedError: the job did not form within 2.0 s: missing a server" in gone.output, gone.output


ASYNC = (
    BEGIN
    + """
# Integers, so that sums are exact in any order.
def train():
    global attempts
    attempts += 1
    parameters.init("sum", np.zeros(200_000, np.float64))
    mine = f"done by {gl.rank()}"
    parameters.init(mine, np.zeros(1))
    for rank in range(gl.size()):
        parameters.init(f"done by {rank}", np.zeros(1))
    found = checkpoint.resume(path)
    out = np.zeros(1)
    parameters.pull(mine, out)
    sums = np.zeros(200_000)
    parameters.pull("sum", sums)
    gl.barrier("all have read")
    # Each change of both is one of a worker, and a save may come between the two.
    total, begin = sums[0], int(out[0])
    everything = [float(value) for value in gl.allgather(out[0], "begins")]
    assert (sums == total).all(), (total, sums)
    assert 0 <= total - sum(everything) <= gl.size(), (total, everything)
    say(f"rank {gl.rank()} attempt {attempts}: from {total:.0f} of checkpoint {None if found is None else found.number}")
    for step in range(begin, STEPS):
        kill_if_due(step)
        parameters.push("sum", np.ones(200_000))
        parameters.push(mine, np.ones(1))
        if step % 10 == 9:
            gl.barrier("a moment at which nobody pushes")
            if gl.rank() == 0:
                checkpoint.save(path, extra=step + 1)
            gl.barrier("it was saved")
    gl.barrier("all have pushed")
    parameters.pull("sum", sums)
    assert (sums == sums[0]).all()
    return f"{sums[0]:.0f}"

total = checkpoint.run(train)
gl.shutdown()
say(f"rank end: {total} after {attempts}")
"""
)


@pytest.mark.over("shm", "quic")
def test_without_rounds_the_sum_is_what_was_saved_and_what_was_pushed_since(tmp_path, transport):
    rng = random.Random(f"async over {transport}")
    kills = {step: (rng.uniform(0, 0.01), rng.randrange(2)) for step in (4, 15, 19, 33, 42)}
    ended = launch(ASYNC, tmp_path / "run", 50, kills, transport)
    total, attempts = digest_of(ended)
    assert total == "100" and attempts >= 5, ended.output
    assert_same_beginnings(ended)


ALONE = (
    BEGIN
    + """
parameters.init("w", np.zeros(1000))
try:
    for step in range(100_000):
        kill_if_due(step)
        parameters.push("w", np.ones(1000))
        gl.push_pull(np.ones(1000), "gradient")
except gl.StateLostError as error:
    assert isinstance(error, gl.PeerLostError) and error.server is not None and error.rank is None
    say(f"rank {gl.rank()}: {error}")
    begun = time.monotonic()
    for call in (
        lambda: parameters.push("w", np.ones(1000)),
        lambda: gl.push_pull(np.ones(1000), "gradient"),
        lambda: gl.barrier("after"),
        lambda: checkpoint.save(path),
        lambda: checkpoint.load(path),
    ):
        try:
            call()
        except gl.StateLostError:
            continue
        raise AssertionError("it goes on")
    assert time.monotonic() - begun < 5
    sys.exit(3)
"""
)


@pytest.mark.over("shm", "quic")
def test_a_worker_that_does_not_go_back_is_told_which_server_was_lost_and_what_to_do(tmp_path, transport):
    ended = launch(ALONE, tmp_path / "run", 0, {30: (0.001, 1)}, transport, restarts=0, timeout=60)
    # The launcher tells of the process that failed first, the server.
    assert ended.code == 128 + 9, ended.output
    for rank in range(2):
        [told] = said(ended, f"rank {rank}: lost server 1 on ")
        assert "killed by signal 9 (SIGKILL); what it kept is gone, and the job forms again" in told, ended.output
        assert "gradlane.checkpoint.run" in told


@pytest.mark.over("shm")
@pytest.mark.parametrize("point", ["values_written", "table_written", "checkpoint_read"])
def test_a_server_that_is_killed_while_it_saves_or_loads_costs_what_was_done_since_the_checkpoint_before(
    tmp_path, transport, point
):
    """Members of their own, of which one server comes to the place."""
    undisturbed = launch(SYNC, tmp_path / "calm", 12, {}, transport)
    here = over(transport) | {
        "GRADLANE_STATE_DIR": str(tmp_path),
        "GRADLANE_CHECKPOINT_DIR": str(tmp_path),
        "GRADLANE_DETERMINISTIC": "true",
        "GRADLANE_ON_SERVER_LOSS": "restore",
        "GRADLANE_JOIN_FILE": str(tmp_path / "join"),
    }
    if point == "checkpoint_read":
        # A job that saves, before the one whose first attempt begins with that.
        before = launch(SYNC, tmp_path / "run", 6, {}, transport)
        assert before.code == 0, before.output
    doomed = here | {"GRADLANE_FAILPOINT": f"{point}:{1 if point == 'checkpoint_read' else 2}:kill"}
    worker = [sys.executable, "-c", SYNC, str(tmp_path / "run"), "12", "{}"]
    place = ["--bind", f"127.0.0.1:{free_port()}", "--join-file", here["GRADLANE_JOIN_FILE"]]
    coordinator = ([*GRADLANE, "coordinator", "-n", "2", "-s", "2", *place], here)
    commands = [coordinator, ([*GRADLANE, "server"], here), ([*GRADLANE, "server"], doomed)]
    ended = run_all([*commands, (worker, here), (worker, here)], timeout=90)
    assert [one.code for one in ended] == [0, 0, -9, 0, 0], ended
    digests = {line for one in ended[3:] for line in said(one, "rank end: ")}
    assert digests == {f"{digest_of(undisturbed)[0]} after 2"}, ended


@pytest.mark.torch
@pytest.mark.over("shm")
def test_a_model_of_pytorch_is_trained_on_over_the_loss_of_a_server(tmp_path, transport):
    pytest.importorskip("torch")
    script = (
        BEGIN
        + """
import torch
import gradlane.torch as gt

def train():
    global attempts
    attempts += 1
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.ReLU(), torch.nn.Linear(40, 2))
    optimizer = gt.ServerOptimizer(model.named_parameters(), rule=rules.AdamW(lr=0.01), mode=modes.Sync())
    found = checkpoint.resume(path)
    optimizer.pull()
    for step in range(found.extra if found else 0, STEPS):
        kill_if_due(step)
        data = torch.from_numpy(np.random.default_rng([step, gl.rank()]).standard_normal((8, 50), dtype=np.float32))
        model.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        if gl.rank() == 0 and step % 5 == 4:
            checkpoint.save(path, extra=step + 1)
    return sum(float(parameter.detach().double().sum()) for parameter in model.parameters())

total = checkpoint.run(train)
gl.shutdown()
say(f"rank end: {total!r} after {attempts}")
"""
    )
    undisturbed = launch(script, tmp_path / "calm", 20, {}, transport)
    disturbed = launch(script, tmp_path / "run", 20, {7: (0.001, 0), 16: (0.0, 1)}, transport)
    assert digest_of(disturbed) == (digest_of(undisturbed)[0], 3), disturbed.output


TABLE = (
    BEGIN
    + """
import hashlib
from gradlane.tables import Table

def train():
    global attempts
    attempts += 1
    parameters.init("weights", np.zeros(5, np.float32))
    table = Table("items", 2, rule=rules.Adagrad(lr=0.1), init="uniform", scale=0.5)
    found = checkpoint.resume(path)
    if gl.rank() == 0 and found:
        table.load(path + "-items", snapshot=found.extra["items"])
    gl.barrier("items are there")
    begin = found.extra["step"] if found else 0
    say(f"rank {gl.rank()} attempt {attempts}: from {begin}")
    for step in range(begin, STEPS):
        kill_if_due(step)
        if step % 2 == gl.rank():
            rng = np.random.default_rng(step)
            table.push(rng.integers(0, 400, 100), rng.standard_normal((100, 2)).astype(np.float32), step=step)
            parameters.push("weights", np.ones(5, np.float32), update="add")
        gl.barrier("all have pushed")
        if gl.rank() == 0 and step % 3 == 2:
            # Each delta is of the snapshot before it, but for the first one since the table was begun.
            items = table.save(path + "-items", delta=step > begin + 3, keep=3)
            checkpoint.save(path, keep=3, extra={"step": step + 1, "items": items.number}, tables_apart=True)
        gl.barrier("table and parameters are of one step")
    changed = table.changed(state=True)
    order, whole = np.argsort(changed.ids), hashlib.sha256(np.sort(changed.ids).tobytes())
    for part in (changed.rows, changed.state.touched, changed.state.score, changed.state.numbers):
        whole.update(part[order].tobytes())
    weights = np.empty(5, np.float32)
    parameters.pull("weights", weights)
    return f"{weights[0]:.0f} {whole.hexdigest()[:16]}"

digest = checkpoint.run(train)
gl.shutdown()
say(f"rank end: {digest} after {attempts}")
"""
)


@pytest.mark.over("shm", "quic")
def test_a_table_comes_back_from_its_snapshot_beside_the_checkpoint_of_the_parameters(tmp_path, transport):
    """To the bit, with what the rule keeps."""
    undisturbed = launch(TABLE, tmp_path / "calm", 24, {}, transport)
    disturbed = launch(TABLE, tmp_path / "run", 24, {7: (0.0, 0), 16: (0.001, 1)}, transport)
    digest, attempts = digest_of(disturbed)
    assert (digest, 1) == digest_of(undisturbed) and digest.startswith("24 "), disturbed.output
    assert attempts == 3, disturbed.output
    assert_same_beginnings(disturbed)
