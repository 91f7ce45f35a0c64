"""Merging timelines: files of several clocks become one picture. No job is needed for that."""

import json

import pytest
from gradlane import timeline
from gradlane.errors import InvalidArgumentError

DAY = 1_800_000_000_000_000_000
"""A time in nanoseconds since 1970."""
S = 1_000_000_000


def test_times_are_exact_to_the_nanosecond(tmp_path):
    # A double has steps of 0.25 µs at microseconds since 1970, and of 2 ns at those since PyTorch's boundary.
    worker = own(tmp_path, 0, [span("outer", 1_000.001, 0.999), span("inner", 1_000.002, 0.998)])
    base = DAY - 7_000_000_000_000_001 * 1_000 + 1_000_000
    # Its times are written with more digits than a double keeps.
    profile = other(tmp_path, '[{"ph":"X","name":"theirs","pid":7,"tid":7,"ts":7000000000000001.003,"dur":0.995}]', base)
    merged = merge(tmp_path, worker, profile)
    assert {name: [event["ts"], event["dur"]] for name, event in merged.items()} == {
        "outer": [0, 0.999],
        "inner": [0.001, 0.998],
        "theirs": [0.002, 0.995],
    }


def test_spans_of_a_profiler_stay_between_those_of_the_script_when_somebody_sets_the_wall_clock(tmp_path):
    # Ten seconds after the start somebody sets the wall clock an hour ahead.
    hour = 3_600 * S
    readings = [(0, DAY), (5 * S, DAY + 5 * S), (10 * S, DAY + 10 * S + hour), (15 * S, DAY + 15 * S + hour)]
    worker = own(tmp_path, 0, [span("before", 6e6, 1e6), span("after", 12e6, 1e6)], readings=readings)
    early = other(tmp_path, [span("early", 0, 5e5, pid=70)], DAY + 6 * S + S // 4)
    late = other(tmp_path, [span("late", 0, 5e5, pid=70)], DAY + 12 * S + S // 4 + hour)
    merged = merge(tmp_path, worker, early, late)
    for outside, inside in (("before", "early"), ("after", "late")):
        assert merged[inside]["ts"] - merged[outside]["ts"] == 250_000


def test_a_profile_is_placed_by_the_timeline_of_its_own_process_and_host(tmp_path):
    ahead = [(0, DAY + 50 * S)]
    first = own(tmp_path, 0, [span("first", 0, 1)], process=70, host="a")
    second = own(tmp_path, 1, [span("second", 0, 1)], process=70, host="b", readings=ahead)
    theirs = other(tmp_path, [span("theirs", 0, 1, pid=70)], DAY + 50 * S, host="b")
    merged = merge(tmp_path, first, second, theirs)
    assert merged["theirs"]["ts"] == merged["second"]["ts"]
    elsewhere = other(tmp_path, [span("elsewhere", 0, 1, pid=70)], DAY + 50 * S, host="c")
    assert merge(tmp_path, first, second, elsewhere)["elsewhere"]["ts"] == 50e6, "by the wall clock of its host alone"


def test_processes_and_arrows_of_several_files_stay_apart(tmp_path):
    arrow = {"ph": "s", "name": "arrow", "cat": "c", "id": 3, "pid": 0, "tid": 0, "ts": 1.0}
    named = arrow | {"id": "0x3"}
    files = [other(tmp_path, [span("theirs", 0, 1, pid=pid), arrow, named], DAY) for pid in (0, 0, "Spans")]
    timeline.merge(own(tmp_path, 0, [span("ours", 0, 1)]), *files, out=tmp_path / "merged.json")
    events = json.loads((tmp_path / "merged.json").read_text())
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 6
    assert len({event["pid"] for event in events if event["ph"] == "X"}) == 4


def test_what_was_merged_can_be_merged_again(tmp_path):
    one = own(tmp_path, 0, [span("one", 2, 1)])
    timeline.merge(one, out=tmp_path / "first.json")
    merged = merge(tmp_path, tmp_path / "first.json", own(tmp_path, 1, [span("two", 3, 1)]))
    assert [merged["one"]["ts"], merged["two"]["ts"]] == [0, 1]


def test_a_timeline_of_another_version_or_without_its_clock_is_refused(tmp_path):
    path = own(tmp_path, 0, [])
    whole = path.read_text()
    path.write_text(whole.replace('"version": 1', '"version": 2'))
    with pytest.raises(InvalidArgumentError, match="another version of gradlane: 2"):
        merge(tmp_path, path)
    path.write_text(whole.replace("base_unix_ns", "base"))
    with pytest.raises(InvalidArgumentError, match="no base_unix_ns"):
        merge(tmp_path, path)
    path.write_text(whole.replace("at_ns", "at"))
    with pytest.raises(InvalidArgumentError, match="gradlane_clock has no at_ns"):
        merge(tmp_path, path)


def test_events_that_make_no_sense_are_kept_as_they_are(tmp_path):
    odd = ["text", {"ph": "X", "ts": "soon", "pid": [1]}, {"ph": "X", "ts": 1e400, "dur": None, "pid": None}, {}]
    path = other(tmp_path, json.dumps(odd), DAY)
    timeline.merge(path, out=tmp_path / "merged.json")
    assert len(json.loads((tmp_path / "merged.json").read_text())) == 4


def own(folder, rank, events, *, readings=((0, DAY),), process=70, host="a"):
    """A file as workers write it."""
    about = {"version": 1, "base_unix_ns": DAY, "member": f"worker {rank}", "host": host, "process": process}
    head = [{"ph": "M", "pid": 2 * rank, "name": "gradlane_timeline", "args": about}]
    for at_ns, unix_ns in readings:
        args = {"at_ns": at_ns, "unix_ns": unix_ns}
        head.append({"ph": "M", "pid": 2 * rank, "name": "gradlane_clock", "args": args})
    path = folder / f"worker-{rank}.json"
    path.write_text(json.dumps(head + [event | {"pid": 2 * rank} for event in events]))
    return path


def other(folder, events, base_ns, *, host="a"):
    """A file as PyTorch's profiler writes it."""
    text = events if isinstance(events, str) else json.dumps(events)
    path = folder / f"other-{len(list(folder.iterdir()))}.json"
    path.write_text(f'{{"baseTimeNanoseconds": {base_ns}, "host_name": "{host}", "traceEvents": {text}}}')
    return path


def merge(folder, *paths):
    """The merged spans by name."""
    timeline.merge(*paths, out=folder / "merged.json")
    events = json.loads((folder / "merged.json").read_text())
    return {event["name"]: event for event in events if event["ph"] == "X"}


def span(name, ts, dur, pid=0):
    return {"ph": "X", "name": name, "pid": pid, "tid": 1, "ts": ts, "dur": dur}
