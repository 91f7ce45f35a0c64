"""A job that does not form: its processes say early, and again, who is missing or why nobody answers."""

import sys

from processes import free_port, run_all

SOON = {"GRADLANE_STALL_WARN": "500ms", "GRADLANE_JOIN_TIMEOUT": "5s"}

ABSENT = """
import os, time, gradlane

while os.environ["GRADLANE_RANK"] == "1":
    time.sleep(0.1)
gradlane.init()
"""


def test_a_worker_that_waits_for_another_says_which_one():
    run = ["run", "-n", "2", "--grace", "0", "--", sys.executable, "-c", ABSENT]
    [ended] = run_all([([sys.executable, "-m", "gradlane", *run], SOON)], timeout=60.0)
    assert ended.code != 0, ended.output
    said = [line for line in ended.output.splitlines() if "the job has not formed yet" in line]
    assert any("missing: worker 1" in line for line in said), ended.output


def test_a_process_whose_coordinator_does_not_answer_says_where_it_looks():
    nowhere = f"gradlane1.127.0.0.1:{free_port()}"
    digits = "a" * 52
    join = f"{nowhere}.{digits}.{'a' * 26}"
    [ended] = run_all([([sys.executable, "-m", "gradlane", "server", "--join", join], SOON)], timeout=60.0)
    assert ended.code != 0, ended.output
    said = [line for line in ended.output.splitlines() if "is not in its job yet" in line]
    assert said and all("127.0.0.1:" in line and "firewall" in line for line in said), ended.output
