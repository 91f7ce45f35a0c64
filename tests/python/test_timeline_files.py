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


def test_files_of_several_machines_are_placed_on_the_coordinators_clock(tmp_path):
    # The wall clock of the second machine is a minute wrong, its monotonic clock began elsewhere and runs 200 ppm too fast.
    first = own(tmp_path, 0, [span("first", 10e6, 1)], monotonic=("a", 5 * S), readings=[(0, DAY, DAY, 50_000)])
    readings = [(at, DAY + 60 * S + at, DAY + at - at // 5_000, 20_000) for at in (0, 20 * S)]
    second = own(tmp_path, 1, [span("second", 10e6, 1)], monotonic=("b", 900 * S), readings=readings, host="b")
    theirs = other(tmp_path, [span("theirs", 0, 1, pid=70)], DAY + 70 * S, host="b")
    merged = merge(tmp_path, first, second, theirs)
    assert merged["first"]["ts"] - merged["second"]["ts"] == 2_000
    assert merged["theirs"]["ts"] == merged["second"]["ts"], "through the wall clock of the second machine"
    result = timeline.merge(first, second, theirs, out=tmp_path / "merged.json")
    # Ten seconds after the only reading, the drift counts more than the reading's own error.
    assert result == timeline.Merged(error=pytest.approx(50e-6 + 10 * 1200e-6), by_wall_clock=())


def test_files_of_one_machine_keep_their_order_to_the_nanosecond(tmp_path):
    # Both have measured the coordinator's clock, and not to the nanosecond. The better one places both.
    worse = own(tmp_path, 0, [span("worse", 7, 1)], monotonic=("a", 5 * S), readings=[(0, DAY, DAY + 900_000, 900_000)])
    better = own(tmp_path, 1, [span("better", 2, 1)], monotonic=("a", 5 * S + 3), readings=[(0, DAY, DAY + 7, 9)])
    merged = merge(tmp_path, worse, better)
    assert merged["worse"]["ts"] - merged["better"]["ts"] == 4.997
    result = timeline.merge(worse, better, out=tmp_path / "merged.json")
    assert result.error < 50e-9
    unknown = own(tmp_path, 0, [span("worse", 7, 1)], monotonic=("a", 5 * S))
    assert merge(tmp_path, unknown, better)["worse"]["ts"] == 4.997, "a file that knows nothing has its neighbour's clock"


def test_files_that_do_not_know_the_coordinators_clock_are_named(tmp_path):
    first = own(tmp_path, 0, [span("first", 1, 1)], monotonic=("a", 0), readings=[(0, DAY, DAY, 50)])
    second = own(tmp_path, 1, [span("second", 2, 1)], monotonic=("b", 0))
    theirs = other(tmp_path, [span("theirs", 0, 1, pid=7)], DAY, host="c")
    result = timeline.merge(first, second, theirs, out=tmp_path / "merged.json")
    assert result == timeline.Merged(error=None, by_wall_clock=(second, theirs))
    alone = timeline.merge(second, out=tmp_path / "merged.json")
    assert alone == timeline.Merged(error=0, by_wall_clock=()), "one machine has one clock"


def test_between_two_readings_the_offset_and_its_error_go_along_a_line(tmp_path):
    readings = [(0, DAY, DAY, 100_000), (10 * S, DAY + 10 * S, DAY + 10 * S + 1_000_000, 20_000)]
    worker = own(tmp_path, 0, [span("start", 0, 1), span("middle", 5e6, 1), span("end", 10e6, 1)], readings=readings)
    merged = merge(tmp_path, worker)
    assert [merged[name]["ts"] for name in ("start", "middle", "end")] == [0, 5_000_500, 10_001_000]
    assert timeline.merge(worker, out=tmp_path / "merged.json").error == 100e-6


def own(folder, rank, events, *, readings=((0, DAY),), process=70, host="a", monotonic=(None, 0)):
    """A file as workers write it. `readings` are times of the file, of the wall clock, and of the coordinator's clock."""
    about = {"version": 1, "base_unix_ns": DAY, "member": f"worker {rank}", "host": host, "process": process}
    about |= {"monotonic": monotonic[0], "monotonic_ns": monotonic[1]} if monotonic[0] else {}
    head = [{"ph": "M", "pid": 2 * rank, "name": "gradlane_timeline", "args": about}]
    for reading in readings:
        args = dict(zip(("at_ns", "unix_ns", "job_ns", "error_ns"), reading))
        head.append({"ph": "M", "pid": 2 * rank, "name": "gradlane_clock", "args": args})
    path = folder / f"worker-{rank}-{len(list(folder.iterdir()))}.json"
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
