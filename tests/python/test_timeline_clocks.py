"""Timelines of machines whose clocks differ, by the clock of their coordinator."""

import json
import os
import subprocess
import sys

import pytest
from gradlane import timeline
from processes import SAY, TRANSPORTS, run_all

AHEAD = 3_600
"""So many seconds the monotonic clock of the second worker is ahead."""
STEPS = 20

WORK = (
    SAY
    + f"""
import os, sys
if os.environ["GRADLANE_RANK"] == "1" and sys.argv[2] == "here":
    # The processes that it starts have another monotonic clock.
    there = ["unshare", "-T", "--fork", "--kill-child", "--monotonic", "{AHEAD}"]
    os.execvp("unshare", [*there, sys.executable, "-c", os.environ["WORK"], sys.argv[1], "there"])
import gradlane, numpy
gradlane.init()
while not all(gradlane.allgather(gradlane.timeline.clock() is not None)):
    pass
say(gradlane.start_timeline(sys.argv[1]))
for turn in range({STEPS}):
    with gradlane.timeline.span(f"turn {{turn}}"):
        gradlane.push_pull(numpy.ones(100_000, numpy.float32), "gradient")
gradlane.stop_timeline()
"""
)


def test_files_of_machines_whose_clocks_differ_by_an_hour_make_one_picture(tmp_path):
    if why := why_not():
        pytest.skip(why)
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", sys.executable, "-c", WORK]
    settings = {f"GRADLANE_{name.upper()}": value for name, value in TRANSPORTS["quic"].items()}
    [ended] = run_all([([*command, str(tmp_path), "here"], settings | {"WORK": WORK})], timeout=120)
    assert ended.code == 0, ended.output
    files = [tmp_path / str(rank) / "comm.json" for rank in range(2)]
    heads = [json.loads(path.read_text())[0]["args"] for path in files]
    assert heads[0]["monotonic"] != heads[1]["monotonic"]
    assert abs(heads[1]["monotonic_ns"] - heads[0]["monotonic_ns"] - AHEAD * 10**9) < 600 * 10**9

    merged = timeline.merge(*files, out=tmp_path / "merged.json")
    assert merged.by_wall_clock == () and 0 < merged.error < 10
    events = [event for event in json.loads((tmp_path / "merged.json").read_text()) if event["ph"] == "X"]
    slack = 2 * merged.error * 1e6
    for turn in range(STEPS):
        stages = [of(events, rank, name, turn) for rank in range(2) for name in ("PUSH", "PULL")]
        pushes, pulls = stages[::2], stages[1::2]
        # Nobody has a sum before everybody has begun to send.
        assert max(push["ts"] for push in pushes) <= min(end(pull) for pull in pulls) + slack
        # And spans of one process nest, to the nanosecond.
        for rank in range(2):
            around = next(event for event in events if event["pid"] == 2 * rank and event["name"] == f"turn {turn}")
            assert around["ts"] <= pushes[rank]["ts"] and end(pulls[rank]) <= end(around) + 1e-3


def of(events, rank, name, turn):
    rows = [event for event in events if event["pid"] == 2 * rank + 1 and event["name"] == name]
    return sorted(rows, key=lambda event: event["args"]["round"])[turn]


def end(event):
    return event["ts"] + event["dur"]


def why_not():
    """Why this system has no other clock to offer; empty if it has."""
    if os.geteuid() != 0:
        return "needs root"
    made = subprocess.run(["unshare", "-T", "--fork", "--monotonic", "1", "true"], capture_output=True, check=False)
    return "" if made.returncode == 0 else "needs time namespaces of the kernel"
