"""The examples run as their first lines say, alone and together."""

import re
import sys
from pathlib import Path

import pytest
from processes import run_all

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script, *arguments, workers=None, timeout=120):
    launcher = [] if workers is None else [sys.executable, "-m", "gradlane", "run", "-n", str(workers), "-s", "2", "--"]
    command = [*launcher, sys.executable, str(EXAMPLES / script), *arguments]
    return run_all([(command, {"OMP_NUM_THREADS": "1"})], timeout=timeout)[0]


@pytest.mark.parametrize("workers", [None, 3])
def test_logistic_regression_learns_and_equals_a_single_process(workers):
    pytest.importorskip("numpy")
    ended = run("logistic_regression.py", workers=workers)
    assert ended.code == 0, ended.output


@pytest.mark.torch
@pytest.mark.parametrize("workers", [None, 2])
def test_hello_ends_with_one_checksum(workers):
    pytest.importorskip("torch")
    ended = run("hello.py", workers=workers)
    assert ended.code == 0, ended.output
    checksums = re.findall(r"checksum (-?[\d.]+)", ended.output)
    assert len(checksums) == (workers or 1) and len(set(checksums)) == 1, ended.output


@pytest.mark.torch
def test_the_demo_proves_its_three_claims():
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    ended = run("demo.py")
    assert ended.code == 0, ended.output
    assert ended.output.count("PASS  ") == 3, ended.output


@pytest.mark.torch
def test_digits_fails_the_check_of_a_training_that_is_too_short():
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    assert run("digits.py", "--steps", "1", "--check").code == 1
