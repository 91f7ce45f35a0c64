"""Snapshots of tables over the end of a job: other numbers of servers, writers beside the saver, and savers that are killed."""

from __future__ import annotations

import os
import sys

import pytest
from processes import SAY, over, run_all

JOB = (
    SAY
    + """
import hashlib, signal, sys, threading
import gradlane, numpy as np
from gradlane import rules
from gradlane.tables import Table

path, turn, dtype = sys.argv[1], int(sys.argv[2]), sys.argv[3]
gradlane.init()
table = Table("items", 3, rule=rules.Adagrad(lr=0.5), init="uniform", scale=0.5, seed=1, dtype=dtype)
rng = np.random.default_rng(turn)

def train(steps, ids=4000):
    for _ in range(steps):
        some = rng.integers(0, ids, 500)
        table.push(some, rng.standard_normal((500, 3)).astype(np.float32))

def digest():
    found = table.changed(state=True)
    order, whole = np.argsort(found.ids), hashlib.sha256()
    for part in (found.ids, found.rows, found.state.touched, found.state.score, found.state.numbers):
        whole.update(part[order].tobytes())
    return f"{len(order)} rows {whole.hexdigest()[:16]}"
"""
)

GO_ON = """
if turn:
    loaded = table.load(path)
    say(f"loaded {digest()}")
train(5)
table.save(path)
train(5)
say(f"saved {table.save(path, delta=True).number}: {digest()}")
gradlane.shutdown()
"""

BESIDE = """
# Each push adds 1 to all numbers of all rows, so a row of a snapshot says how many pushes came before its part was read.
table = Table("beside", 3, rule=rules.SGD(lr=1.0))
ids, ones = np.arange(3000), np.full((3000, 3), -1, np.float32)
if gradlane.rank() == 0:
    table.push(ids, ones)
gradlane.barrier("rows are there")
if gradlane.rank() == 1:
    for _ in range(40):
        table.push(ids, ones)
else:
    table.save(path)
    for _ in range(4):
        table.save(path, delta=True)
gradlane.barrier("all is pushed")
if gradlane.rank() == 0:
    table.save(path, delta=True)
    before = table.look(ids)
    for number in range(1, 7):
        table.load(path, snapshot=number)
        found = table.changed()
        parts = {}
        for id, row in zip(found.ids.tolist(), found.rows.tolist()):
            assert row == [row[0]] * 3
            parts.setdefault(row[0], []).append(id)
        # Each part is of one moment, so there are no more numbers than parts.
        assert len(found.ids) == 3000 and len(parts) <= len(found.version.parts), parts.keys()
    assert (table.look(ids) == before).all() and before[0, 0] == 41
    say("consistent")
gradlane.barrier("all is checked")
gradlane.shutdown()
"""

KILLED = """
train(3)
saved = table.save(path)
for delta in (True, False, True):
    say(f"promised {saved.number}: {digest()}")
    train(2)
    saved = table.save(path, delta=delta)
say(f"promised {saved.number}: {digest()}")
train(2)
say(f"next {saved.number + 1}: {digest()}")
left = turn // 2

def dies(call):
    def counted(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return counted

os.fsync, os.rename = dies(os.fsync), dies(os.rename)
table.save(path, delta=turn % 2 == 1)
say("whole")
gradlane.shutdown()
"""

APART = """
from gradlane import checkpoint, parameters
parameters.init("weights", np.full(5, float(turn), np.float32))
if turn:
    loaded = checkpoint.load("net")
    table.load(path, snapshot=loaded.extra["items"])
    out = np.empty(5, np.float32)
    parameters.pull("weights", out)
    say(f"loaded {out.tolist()} {digest()}")
else:
    train(3)
    try:
        checkpoint.save("net")
    except gradlane.FailedPreconditionError as error:
        say(f"refused {error}")
    items = table.save(path)
    checkpoint.save("net", extra={"items": items.number}, tables_apart=True)
    say(f"saved {[0.0] * 5} {digest()}")
gradlane.shutdown()
"""

LOAD = """
loaded = table.load(path)
say(f"loaded {loaded.number}: {digest()}")
say(f"saved {table.save(path).number}")
gradlane.shutdown()
"""

CALLS = 11
"""Calls of fsync and rename in a save of the script: three for each of rows, manifest and `latest`, and two for the snapshot."""
KILLS = int(os.environ.get("SNAPSHOT_KILLS", "5"))


def run(script, path, turn, servers, transport="shm", workers=1, dtype="float32"):
    here = over(transport) | {"GRADLANE_CHECKPOINT_DIR": str(path.parent)}
    program = [sys.executable, "-c", JOB + script, str(path), str(turn), dtype]
    launch = [sys.executable, "-m", "gradlane", "run", "-n", str(workers), "-s", str(servers), "--"] if servers else []
    [ended] = run_all([([*launch, *program], here)], timeout=120.0)
    return ended


def said(ended, start):
    return [line.removeprefix(start) for line in ended.output.splitlines() if line.startswith(start)]


@pytest.mark.over("shm", "quic")
def test_any_number_of_servers_loads_what_others_have_saved(tmp_path, transport):
    """To the bit: values, what the rule keeps, scores and last uses."""
    check_loads(tmp_path, (4, 3, 7, 0), transport=transport)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_half_precision_are_loaded_by_other_servers(tmp_path, dtype):
    check_loads(tmp_path, (1, 3, 0), dtype=dtype)


def check_loads(tmp_path, numbers, **how):
    before = None
    for turn, servers in enumerate(numbers):
        ended = run(GO_ON, tmp_path / "items", turn, servers, **how)
        assert ended.code == 0, ended.output
        if before:
            assert said(ended, "loaded ") == before
        [(number, before)] = [line.split(": ") for line in said(ended, "saved ")]
        before = [before]
        assert int(number) == 2 * turn + 2


@pytest.mark.over("shm", "quic")
def test_a_snapshot_is_one_moment_of_each_part_while_another_worker_pushes(tmp_path, transport):
    ended = run(BESIDE, tmp_path / "items", 0, 3, transport, workers=2)
    assert ended.code == 0 and said(ended, "consistent") == [""], ended.output


def test_parameters_are_saved_beside_a_table_that_is_saved_apart(tmp_path):
    saved = run(APART, tmp_path / "items", 0, 2)
    assert saved.code == 0, saved.output
    assert "save tables by Table.save" in said(saved, "refused ")[0]
    loaded = run(APART, tmp_path / "items", 1, 3)
    assert loaded.code == 0 and said(loaded, "loaded ") == said(saved, "saved "), loaded.output


@pytest.mark.parametrize("turn", range(KILLS))
def test_who_is_killed_while_it_saves_keeps_what_was_promised(tmp_path, turn):
    path, servers = tmp_path / "items", (2, 0, 3)[turn % 3]
    # The calls are spread over the turns, of full snapshots and of deltas.
    at = turn * (2 * CALLS - 1) // max(1, KILLS - 1) if KILLS < 2 * CALLS else turn % (2 * CALLS)
    killed = run(KILLED, path, at, servers)
    assert killed.code != 0 and not said(killed, "whole"), killed.output
    loaded = run(LOAD, path, 0, 2)
    assert loaded.code == 0, loaded.output
    promised, following = said(killed, "promised ")[-1], said(killed, "next ")
    assert said(loaded, "loaded ") in ([promised], following), killed.output
    assert not list(path.glob(".partial-*")) and not list(path.glob("*/.partial-*"))
