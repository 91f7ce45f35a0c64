"""`gradlane bench`: the benchmark as the package carries it, with Gloo as a peer."""

import json
import os
import pty
import re
import sys
from pathlib import Path

import pytest
from conftest import NO_SHARDING, shards_on_cpu
from gradlane.cli import BENCH
from processes import run_all

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="the package was built without the benchmark")


def bench(*words):
    [ended] = run_all([([sys.executable, "-m", "gradlane", "bench", *words], {})], timeout=120.0)
    return ended


def test_the_command_becomes_the_benchmark():
    ended = bench("--help")
    assert ended.code == 0
    assert "push-pull" in ended.output


def test_a_terminal_gets_a_table_that_fits_and_a_line_of_progress():
    written = bytearray()

    def read(descriptor):
        data = os.read(descriptor, 1024)
        written.extend(data)
        return data

    resize = "import fcntl, os, struct, sys, termios; fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('4H', 24, 80, 0, 0)); "
    words = [str(BENCH), "push-pull", "--smoke"]
    assert pty.spawn([sys.executable, "-c", f"{resize}os.execv({words[0]!r}, {words!r})"], read, lambda _: b"") == 0
    text = written.decode()
    assert re.search(r"\[00:00:\d\d of about 00:\d\d:\d\d\] \w+, 256 KiB, (in|out of) place, turn \d of 2", text), text
    # The line of progress is written over again and again, and removed before a row comes.
    lines = [re.split(r"\r|\x1b\[2K", line.rstrip("\r"))[-1] for line in text.split("\n")]
    rows = [line for line in lines if re.match(r" +(4|256) KiB (local|shm|quic)", line)]
    assert len(rows) == 2 * 3 * 2, f"sizes, transports, places: {text}"
    assert all(len(line) <= 80 for line in lines), text


def test_a_wrong_sum_fails_the_command():
    ended = bench("push-pull", "--smoke", "-N", "1", "--plant-wrong-sum")
    assert ended.code == 1
    assert "wrong result" in ended.output


@pytest.mark.torch
def test_gloo_does_the_same_work_in_the_same_run(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "out.json"
    ended = bench(
        "push-pull", "--smoke", "--inflight", "2", "-d", "f32,bf16,u8", "-o", "sum,max", "--backend", "gloo", "-J", str(out)
    )
    assert ended.code == 0, ended.output
    results = json.loads(out.read_text())
    assert results["wrong"] == 0
    gloo = [row for row in results["rows"] if row["contender"] == "gloo"]
    assert len(gloo) == 3 * 2 * 2
    assert all(row["out_of_place"] is None for row in gloo), "it only reduces in place"
    assert len(results["ratios"]) == 3 * len(gloo), "of each transport"
    assert "which training uses here" in ended.output and "TCP from rank to rank" in ended.output


@pytest.mark.torch
def test_gloo_does_the_same_collectives_in_the_same_run(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "out.json"
    words = ["--road", "local,shm,quic", "--backend", "gloo", "-d", "f32,u8", "--workers", "3", "--inflight", "2"]
    ended = bench("push-pull", "--smoke", "--collective", "reduce-scatter,all-gather,all-to-all", *words, "-J", str(out))
    assert ended.code == 0, ended.output
    results = json.loads(out.read_text())
    assert results["wrong"] == 0
    gloo = [row for row in results["rows"] if row["contender"] == "gloo"]
    assert len(gloo) == 3 * 2 * 2, "collectives, types, sizes"
    assert all(row["in_place"] is None for row in gloo)
    assert len(results["ratios"]) == 3 * len(gloo), "of each road"


def test_the_whole_benchmark_runs_from_the_package_too(tmp_path):
    ended = bench("suite", "--short", "--only", "sched,reduce", "-o", str(tmp_path / "results"))
    assert ended.code == 0, ended.output
    assert "- sched: made" in (tmp_path / "results" / "README.md").read_text()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("doors.py", r"DDP over Gloo adds [-\d.]+ times"),
        ("tracing.py", r"cost [-+][\d.]+% \(.*3 pairs\)"),
        ("goodput.py", r"gradlane +[\d.]+ steps/s, with 1 faults .* differed behind 0 steps"),
    ],
)
def test_scripts_that_measure_training_steps_run(script, line):
    pytest.importorskip("torch")
    if script == "doors.py" and not shards_on_cpu():
        pytest.skip(NO_SHARDING)
    few = {"doors.py": ["--steps", "2"], "tracing.py": ["--pairs", "3", "--steps", "2"], "goodput.py": []}[script]
    [ended] = run_all([([sys.executable, str(ROOT / "bench" / script), "--short", *few], {})], timeout=120.0)
    assert ended.code == 0 and re.search(line, ended.output), ended.output


@pytest.mark.torch
@pytest.mark.parametrize(
    ("what", "line"),
    [
        (
            ["time", "--peer", "tcp"],
            r"4 KB +sync +[\d.]+ ms, [\d.]+ \([\d.]+-[\d.]+\) of the sum\n(.*\n)*"
            r"4 KB +async sgd takes [\d.]+ .* of the time of rpc tcp",
        ),
        (["slow"], r"k_of_n:k=1 +[\d.]+ of 2"),
        (["memory"], r"of which it keeps 768: -?\d+ MiB besides"),
    ],
    ids=["time", "slow", "memory"],
)
def test_the_script_that_measures_modes_runs(what, line):
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", sys.executable]
    script = [str(ROOT / "bench" / "modes.py"), *what, "--steps", "2", "--rest", "0.01"]
    [ended] = run_all([([*command, *script], {})], timeout=120.0)
    assert ended.code == 0 and re.search(line, ended.output), ended.output


def test_the_script_that_measures_checkpoints_runs(tmp_path):
    command = [sys.executable, "-m", "gradlane", "run", "-n", "1", "-s", "2", "--", sys.executable]
    script = [str(ROOT / "bench" / "checkpoints.py"), str(tmp_path / "a"), "--mib", "64", "--turns", "1"]
    [ended] = run_all([([*command, *script], {"GRADLANE_CHECKPOINT_DIR": str(tmp_path)})], timeout=120.0)
    assert ended.code == 0 and re.search(r"save [\d.]+ s, [\d.]+ of the copy", ended.output), ended.output
