"""What a job prints: one cause once, and few lines however many tensors wait."""

import sys

import pytest
from processes import over, run_all

pytestmark = pytest.mark.over("local", "shm", "quic")

FAILS = """
import numpy, gradlane

gradlane.init()
values = numpy.ones(100, numpy.float32)
gradlane.push_pull(values, "first")
if gradlane.rank() == 1:
    raise ValueError("out of apples")
try:
    gradlane.push_pull(values, "second")
except gradlane.errors.PeerLostError:
    raise SystemExit(1) from None
"""

WAITS = """
import sys, numpy, gradlane

gradlane.init()
values = [numpy.ones(100, numpy.float32) for _ in range(300)]
if gradlane.rank() == 1:
    gradlane.barrier("after", timeout=60.0)
    sys.exit()
handles = [gradlane.push_pull_async(value, f"layer{index}") for index, value in enumerate(values)]
for handle in handles:
    try:
        handle.wait()
    except gradlane.StallError:
        pass
gradlane.barrier("after", timeout=60.0)
"""


@pytest.mark.parametrize("servers", ["0", "2"])
def test_an_exception_is_told_once(transport, servers):
    [ended] = run_all([(command("2", servers, FAILS), over(transport))], timeout=60.0)
    assert ended.code == 1, ended.output
    told = [line for line in ended.output.splitlines() if "out of apples" in line]
    # The traceback of the program itself, with the line that raises it, and the cause for the job.
    assert sum("gradlane: " in line for line in told) <= 1, ended.output
    assert len(told) <= 3, ended.output
    assert "ERROR" not in ended.output, ended.output


def test_a_job_that_ends_in_order_prints_nothing(transport):
    script = "import gradlane; gradlane.init(); gradlane.barrier('met'); gradlane.shutdown()"
    [ended] = run_all([(command("2", "0", script), over(transport))], timeout=60.0)
    assert (ended.code, ended.output) == (0, "")


def test_many_tensors_that_wait_are_one_line_an_interval(transport):
    settings = {"GRADLANE_STALL_WARN": "1s", "GRADLANE_STEP_TIMEOUT": "5s"}
    [ended] = run_all([(command("2", "1", WAITS), over(transport) | settings)], timeout=60.0)
    assert ended.code == 0, ended.output
    warned = [line for line in ended.output.splitlines() if " WARN " in line]
    assert 1 <= len(warned) <= 12, ended.output
    assert all("WorkerId" not in line and "Some(" not in line for line in warned), ended.output


def command(workers, servers, script):
    run = ["run", "-n", workers, "-s", servers, "--", sys.executable, "-c", script]
    return [sys.executable, "-m", "gradlane", *run]
