"""Skipped tests are counted, and in CI only the listed ones are skipped."""

import os
import sys
from pathlib import Path

import pytest
from processes import run_all

TESTS = """
import pytest

def test_that_needs_a_program():
    pytest.skip("needs a program")

def test_that_needs_a_device():
    pytest.skip("needs a CUDA device")
"""


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("ci", ["true", "false"])
def test_a_skip_fails_where_ci_is_root_unless_its_reason_is_listed(ci, processes, tmp_path):
    side_by_side = []
    if processes:
        pytest.importorskip("xdist")
        side_by_side = ["-n", str(processes)]
    (tmp_path / "test_some.py").write_text(TESTS)
    env = {"CI": ci, "SKIPPED_TESTS": str(tmp_path / "skipped"), "PYTHONPATH": str(Path(__file__).parent)}
    options = ["-q", "-p", "conftest", "-p", "no:cacheprovider", *side_by_side]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    [ended] = run_all([(command, env)], timeout=60.0, cwd=tmp_path)
    fails = ci == "true" and os.geteuid() == 0
    assert ended.code == (1 if fails else 0), ended.output
    assert ("1 failed, 1 skipped" if fails else "2 skipped") in ended.output
    skipped = sorted(line.split("\t")[1] for line in (tmp_path / "skipped").read_text().splitlines())
    assert skipped == (["needs a CUDA device"] if fails else ["needs a CUDA device", "needs a program"])
