"""Checkpoints over the end of a job: other numbers of servers, processes that are killed while they write, full disks."""

from __future__ import annotations

import sys

import pytest
from processes import SAY, over, run_all

JOB = (
    SAY
    + """
import sys
import gradlane, numpy as np
from gradlane import checkpoint, parameters, rules

what, path = sys.argv[1:3]
gradlane.init()
rng = np.random.default_rng(7)
SIZES = {"large": 300_000, "small": 5, "plain": 70_000}
values = {name: rng.standard_normal(size).astype(np.float32) for name, size in SIZES.items()}
rule = {"large": rules.AdamW(lr=0.1), "small": rules.SGD(lr=0.1, momentum=0.9), "plain": None}

def gradient(name, step):
    return np.random.default_rng([step, SIZES[name]]).standard_normal(SIZES[name]).astype(np.float32)

def steps(first, last):
    for step in range(first, last):
        for name in values:
            parameters.push(name, gradient(name, step), update="step" if rule[name] else "add")

def digest():
    import hashlib
    whole = hashlib.sha256()
    for name, value in values.items():
        out = np.empty_like(value)
        parameters.pull(name, out)
        whole.update(out.tobytes())
    return whole.hexdigest()[:16]

for name, value in values.items():
    parameters.init(name, value if what.startswith("save") else np.zeros_like(value), rule=rule[name])
"""
)

SAVE = """
if what != "save":
    checkpoint.save(path)
    say(f"first {digest()}")
steps(0, 3)
if what == "save":
    checkpoint.save(path)
say(f"saved {digest()}")
steps(3, 6)
say(f"went on {digest()}")
if what == "save twice":
    checkpoint.save(path)
    say("saved twice")
gradlane.shutdown()
"""

LOAD = """
loaded = checkpoint.load(path)
say(f"loaded {loaded.number}: {digest()}")
steps(3, 6)
say(f"went on {digest()}")
say(f"saved as {checkpoint.save(path, keep=2).number}")
gradlane.shutdown()
"""


def run(script, what, path, servers, transport="shm", env=None, timeout=90.0, before=()):
    """A job of one worker, with so many servers or without any."""
    program = [sys.executable, "-c", JOB + script, what, str(path)]
    launch = [sys.executable, "-m", "gradlane", "run", "-n", "1", "-s", str(servers), "--"] if servers else []
    here = {"GRADLANE_CHECKPOINT_DIR": str(path.parent)} | over(transport) | (env or {})
    [ended] = run_all([([*before, *launch, *program], here)], timeout=timeout)
    return ended


def said(ended, start):
    [line] = [line for line in ended.output.splitlines() if line.startswith(start)]
    return line.removeprefix(start)


@pytest.mark.over("shm", "quic")
def test_any_number_of_servers_and_any_size_of_parts_loads_what_others_have_saved(tmp_path, transport):
    """To the bit: the training that goes on is the one that was not interrupted."""
    path = tmp_path / "run"
    saved = run(SAVE, "save", path, 3, transport)
    assert saved.code == 0, saved.output
    for number, (servers, env) in enumerate(
        [(1, {}), (4, {"GRADLANE_PARTITION_BYTES": "65536"}), (0, {}), (2, {"GRADLANE_PARTITION_BYTES": "1048576"})]
    ):
        loaded = run(LOAD, "load", path, servers, transport, env)
        assert loaded.code == 0, loaded.output
        if number == 0:
            assert said(loaded, "loaded 1: ") == said(saved, "saved ")
            assert said(loaded, "went on ") == said(saved, "went on ")
        else:
            # Each of them goes on from what the one before has saved.
            assert said(loaded, f"loaded {number + 1}: ") == before, loaded.output
        before = said(loaded, "went on ")
        assert said(loaded, "saved as ") == str(number + 2)
    assert sorted(entry.name for entry in path.iterdir() if entry.is_dir()) == ["checkpoint-4", "checkpoint-5"]


POINTS = [
    "save_begins",
    "values_written",
    "state_written",
    "table_written",
    "manifest_made",
    "manifest_written",
    "latest_moved",
]


@pytest.mark.parametrize("point", POINTS)
def test_who_is_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path, point):
    path = tmp_path / "run"
    killed = run(SAVE, "save twice", path, 0, env={"GRADLANE_FAILPOINT": f"{point}:2:kill"})
    assert killed.code == -9 and "saved twice" not in killed.output, killed.output
    loaded = run(LOAD, "load", path, 0)
    assert loaded.code == 0, loaded.output
    # Two saves: that of the first values, and that of the values after six steps.
    if point == "latest_moved":
        assert said(loaded, "loaded 2: ") == said(killed, "went on ")
    else:
        assert said(loaded, "loaded 1: ") == said(killed, "first ")
    whole = [entry for entry in path.iterdir() if entry.is_dir()]
    assert whole and all((entry / "manifest.json").exists() for entry in whole)
    assert not list(path.glob(".partial-*")) and not list(path.glob("*/.partial-*"))


@pytest.mark.parametrize("point", ["save_begins", "values_written", "state_written", "table_written"])
@pytest.mark.over("shm")
def test_a_server_that_is_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path, point, transport):
    path = tmp_path / "run"
    killed = run(SAVE, "save twice", path, 2, transport, {"GRADLANE_FAILPOINT": f"{point}:2:kill"})
    assert killed.code != 0 and "saved twice" not in killed.output, killed.output
    assert f"failpoint {point} reached 2 times" in killed.output
    loaded = run(LOAD, "load", path, 3, transport)
    assert loaded.code == 0, loaded.output
    assert said(loaded, "loaded 1: ") == said(killed, "first ")


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize("point", ["checkpoint_read"])
def test_who_is_killed_while_it_loads_leaves_a_checkpoint_that_others_load(tmp_path, point, servers):
    path = tmp_path / "run"
    saved = run(SAVE, "save", path, 2)
    assert saved.code == 0, saved.output
    killed = run(LOAD, "load", path, servers, env={"GRADLANE_FAILPOINT": f"{point}:1:kill"})
    assert killed.code != 0 and "loaded 1" not in killed.output, killed.output
    assert f"failpoint {point} reached 1 times" in killed.output
    loaded = run(LOAD, "load", path, servers)
    assert said(loaded, "loaded 1: ") == said(saved, "saved ")


def test_a_full_disk_fails_the_save_and_nothing_else(tmp_path):
    """The directory is a file system of its own, with room for less than the values."""
    path = tmp_path / "run"
    path.mkdir()
    script = """
try:
    checkpoint.save(path)
except gradlane.UnavailableError as error:
    say(f"full: {error}")
before = digest()
steps(0, 2)
assert digest() != before
import os
left = sorted(os.listdir(path))
checkpoint.save(path + "-elsewhere")
say(f"left {left}")
gradlane.shutdown()
"""
    mount = f'mount -t tmpfs -o size=1m tmpfs {path} && exec "$@"'
    full = run(script, "save", path, 2, before=["unshare", "--mount", "sh", "-c", mount, "sh"])
    assert full.code == 0, full.output
    assert "No space left on device" in said(full, "full: ")
    assert said(full, "left ") == "['lock']", "what was begun is removed"


def test_a_directory_of_another_training_is_refused_until_it_was_loaded(tmp_path):
    path = tmp_path / "run"
    assert run(SAVE, "save", path, 1).code == 0
    script = """
try:
    checkpoint.save(path)
except gradlane.FailedPreconditionError as error:
    say(f"refused: {error}")
checkpoint.load(path)
say(f"saved as {checkpoint.save(path).number}")
gradlane.shutdown()
"""
    for servers in (0, 1):
        second = run(script, "load", path, servers)
        assert second.code == 0, second.output
        assert "has checkpoints of another start of job" in said(second, "refused: ")
        assert said(second, "saved as ") == str(servers + 2)


def test_two_jobs_do_not_save_in_one_directory(tmp_path):
    path = tmp_path / "run"
    holds = """
checkpoint.save(path)
say("holds")
import subprocess
second = subprocess.run([sys.executable, "-c", OTHER, "load", path], capture_output=True, text=True)
say(second.stdout.strip() or second.stderr)
gradlane.shutdown()
"""
    other = (
        JOB
        + """
try:
    checkpoint.save(path)
except gradlane.FailedPreconditionError as error:
    say(f"refused: {error}")
"""
    )
    ended = run(f"OTHER = {other!r}\n" + holds, "save", path, 0)
    assert ended.code == 0, ended.output
    assert "another job saves its checkpoints in" in said(ended, "refused: ")


@pytest.mark.torch
def test_models_of_pytorch_are_made_of_a_checkpoint_and_trained_on(tmp_path):
    """From the weights that servers trained to a plain model, to PyTorch's own checkpoints, and to the next job."""
    pytest.importorskip("torch")
    script = """
import sys
import torch
import gradlane.torch as gl

path, again = sys.argv[1], sys.argv[2] == "again"
gl.init()
torch.manual_seed(4 if again else 3)
model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 2, dtype=torch.bfloat16))
optimizer = gl.ServerOptimizer(model.named_parameters(), rule=gl.rules.AdamW(lr=0.1), name="net")
if again:
    gl.checkpoint.load(path)
    optimizer.pull()
    optimizer.load_state_dict(torch.load(path + "-state"))
else:
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    gl.checkpoint.save(path)
    torch.save(optimizer.state_dict(), path + "-state")
other = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 2, dtype=torch.bfloat16))
weights = gl.checkpoint.state_dict(path, prefix=optimizer.prefix + "/")
other.load_state_dict(weights)
for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
    assert torch.equal(mine, theirs)
gl.checkpoint.to_dcp(path, path + "-dcp", prefix=optimizer.prefix + "/")
from torch.distributed import checkpoint as dcp
empty = {name: torch.zeros_like(value) for name, value in weights.items()}
dcp.load(empty, checkpoint_id=path + "-dcp", no_dist=True)
assert all(torch.equal(empty[name], value) for name, value in weights.items())
gl.shutdown()
"""
    here = {"GRADLANE_CHECKPOINT_DIR": str(tmp_path)}
    for run in ("first", "again"):
        program = [sys.executable, "-c", script, str(tmp_path / "run"), run]
        [ended] = run_all([(program, here)], timeout=90.0)
        assert ended.code == 0, ended.output
