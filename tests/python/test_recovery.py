"""`bench/recovery.py`: the measurement of what losses cost runs, and finds wrong sums. How fast anything is does not matter here."""

import re
import sys
from pathlib import Path

import pytest
from processes import run_all, run_python

BENCH = Path(__file__).parents[2] / "bench"


def test_recovery_from_kills_is_measured_with_every_sum_checked():
    [ended] = run_all([([sys.executable, str(BENCH / "recovery.py"), "--short"], {})], timeout=120.0)
    assert ended.code == 0, ended.output
    row = r"^(worker|server) +(shm|quic) +\d+ +1 +[\d.]+ +([\d.]+) +([\d.]+) +([\d.]+)   all sums right$"
    losses = re.findall(row, ended.output, re.MULTILINE)
    assert [row[:2] for row in losses] == [(who, way) for who in ("worker", "server") for way in ("shm", "quic")], ended.output
    assert all(median == p99 == largest for *_, median, p99, largest in losses), ended.output
    row = r"^(shm|quic) +(ends|outlives) .* 1 +[\d.]+   ([\d.]+) \(\3 to \3\)   all sums right$"
    costs = re.findall(row, ended.output, re.MULTILINE)
    assert [row[:2] for row in costs] == [(way, word) for way in ("shm", "quic") for word in ("ends", "outlives", "outlives")]
    assert [ratio for _, word, ratio in costs if word == "ends"] == ["1.000"] * 2, ended.output


@pytest.mark.parametrize(("step", "count"), [(5, 21), (4, 20), (4, 22)], ids=["of another step", "without a rank", "with one twice"])
def test_the_measurement_of_recovery_finds_a_wrong_sum(step, count):
    script = f"""
import sys
sys.path.insert(0, {str(BENCH)!r})
from recovery import Gradients

gradients = Gradients(1, 0, 3)
def sums():
    for number, tensor in enumerate(gradients.tensors):
        tensor[:] = 21 * gradients.of(4, number)
sums()
gradients.check(4, None)
sums()
gradients.tensors[7][100:200] = {count} * gradients.of({step}, 7)[100:200]
gradients.check(4, None)
"""
    ended = run_python(script)
    assert ended.code == 1 and "AssertionError: wrong sum in step 4, tensor 7" in ended.output, ended.output
