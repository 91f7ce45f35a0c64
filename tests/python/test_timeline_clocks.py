"""Timelines of workers and servers on the clock of their coordinator, also if the clocks of their machines differ."""

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
if os.environ["GRADLANE_RANK"] == "1" and sys.argv[1] == "there":
    # The processes that it starts have another monotonic clock.
    there = ["unshare", "-T", "--fork", "--kill-child", "--monotonic", "{AHEAD}"]
    os.execvp("unshare", [*there, sys.executable, "-c", os.environ["WORK"], "here"])
import gradlane, numpy
from gradlane import parameters
gradlane.init()
while not all(gradlane.allgather(gradlane.timeline.clock() is not None)):
    pass
for turn in range({STEPS}):
    with gradlane.timeline.span(f"turn {{turn}}"):
        gradlane.push_pull(numpy.ones(100_000, numpy.float32), "gradient")
parameters.init("shared", numpy.zeros(100))
for turn in range({STEPS}):
    parameters.push_pull("shared", numpy.ones(100))
gradlane.shutdown()
"""
)


def test_workers_and_servers_of_one_machine_make_one_picture(tmp_path):
    files = record(tmp_path, "here")
    merged = timeline.merge(*files, out=tmp_path / "merged.json")
    assert merged.by_wall_clock == () and merged.violations == (), "one clock, and so no event before its cause"
    events = json.loads((tmp_path / "merged.json").read_text())
    spans = [event for event in events if event["ph"] == "X"]
    pushes = [event["args"] for event in spans if event["name"] == "PUSH" and event["args"]["tensor"] == "gradient"]
    parts = {(args["key"], args["part"]) for args in pushes}
    sums = [event for event in spans if event["name"] == "SUM"]
    sums = [event for event in sums if (event["args"]["key"], event["args"]["part"]) in parts]
    assert {event["args"]["outcome"] for event in sums} == {"published"}
    assert sorted(event["args"]["round"] for event in sums) == sorted(list(range(STEPS)) * len(parts))
    assert all(sorted(event["args"]["workers"]) == [0, 1] for event in sums)
    for sum in sums:
        of_sum = [event for event in spans if same(event, sum)]
        assert sorted(event["name"] for event in of_sum) == sorted(["SUM", "SEND", *["QUEUE", "PUSH", "PULL"] * 2])
        assert {event["args"]["worker"] for event in events if event["name"] == "LAST BYTE" and same(event, sum)} == {0, 1}
    uses = [event for event in spans if event["name"] == "USE" and event["args"]["outcome"] == "answered"]
    of_workers = [(event["args"]["round"], event["pid"] // 2) for event in spans if event["name"] == "PUSH" and is_shared(event)]
    assert len(of_workers) == 2 * (STEPS + 1)
    assert sorted((event["args"]["round"], *event["args"]["workers"]) for event in uses) == sorted(of_workers)
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] >= 1 << 23}
    assert {"gradient [0]", "gradient [0] to workers", "shared [0] of worker 0", "shared [0] of worker 1"} <= names
    arrows = {}
    for event in events:
        if event["ph"] in ("s", "f"):
            arrows.setdefault(event["id"], []).append(event["ts"])
    assert len(arrows) >= 4 * len(sums) + 2 * len(uses) and all(start <= end for start, end in arrows.values())


def test_files_of_machines_whose_clocks_differ_by_an_hour_make_one_picture(tmp_path):
    if why := why_not():
        pytest.skip(why)
    files = record(tmp_path, "there")
    heads = {path.parent.name: json.loads(path.read_text())[0]["args"] for path in files}
    assert heads["0"]["monotonic"] != heads["1"]["monotonic"]
    assert abs(heads["1"]["monotonic_ns"] - heads["0"]["monotonic_ns"] - AHEAD * 10**9) < 600 * 10**9

    merged = timeline.merge(*files, out=tmp_path / "merged.json")
    assert merged.by_wall_clock == () and 0 < merged.error < 10
    assert merged.violations == (), "the errors of the clocks explain what seems to be out of order"
    assert all(pair.error is not None for pair in merged.pairs) and sum(pair.orders for pair in merged.pairs) >= 4 * STEPS
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


def record(folder, where):
    """The timelines of two workers, of which the second runs `here` or `there`, and of two servers."""
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "2", "--", sys.executable, "-c", WORK, where]
    settings = {f"GRADLANE_{name.upper()}": value for name, value in TRANSPORTS["quic"].items()}
    [ended] = run_all([(command, settings | {"WORK": WORK, "GRADLANE_TIMELINE": str(folder)})], timeout=120)
    assert ended.code == 0, ended.output
    return [folder / member / "comm.json" for member in ("0", "1", "server-0", "server-1")]


def same(event, other):
    return all(event.get("args", {}).get(name) == other["args"][name] for name in ("key", "part", "round"))


def is_shared(event):
    return event["args"]["tensor"] == "shared"


def of(events, rank, name, turn):
    rows = [event for event in events if event["pid"] == 2 * rank + 1 and event["name"] == name]
    rows = [event for event in rows if event["args"]["tensor"] == "gradient" and event["args"]["part"] == 0]
    return sorted(rows, key=lambda event: event["args"]["round"])[turn]


def end(event):
    return event["ts"] + event["dur"]


def why_not():
    """Why this system has no other clock to offer; empty if it has."""
    if os.geteuid() != 0:
        return "needs root"
    made = subprocess.run(["unshare", "-T", "--fork", "--monotonic", "1", "true"], capture_output=True, check=False)
    return "" if made.returncode == 0 else "needs time namespaces of the kernel"
