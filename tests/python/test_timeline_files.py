"""Merging timelines: files of several clocks become one picture. No job is needed for that."""

import json
import sys
import tarfile

import pytest
from gradlane import timeline
from gradlane.errors import InvalidArgumentError
from processes import run_all

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
    bound = span("bound", 2, 1) | {"bind_id": 3}
    files = [other(tmp_path, [span("theirs", 0, 1, pid=pid), arrow, named, bound], DAY) for pid in (0, 0, "Spans")]
    timeline.merge(own(tmp_path, 0, [span("ours", 0, 1)]), *files, out=tmp_path / "merged.json")
    events = json.loads((tmp_path / "merged.json").read_text())
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 6
    assert len({event["bind_id"] for event in events if event["name"] == "bound"}) == 3
    assert len({event["pid"] for event in events if event["name"] != "bound" and event["ph"] == "X"}) == 4


def test_what_was_merged_can_be_merged_again(tmp_path):
    one = own(tmp_path, 0, [span("one", 2, 1)])
    timeline.merge(one, out=tmp_path / "first.json")
    merged = merge(tmp_path, tmp_path / "first.json", own(tmp_path, 1, [span("two", 3, 1)]))
    assert [merged["one"]["ts"], merged["two"]["ts"]] == [0, 1]


def test_a_timeline_of_another_version_or_without_its_clock_is_refused(tmp_path):
    path = own(tmp_path, 0, [])
    whole = path.read_text()
    path.write_text(whole.replace('"version": 2', '"version": 3'))
    with pytest.raises(InvalidArgumentError, match="another version of gradlane: 3"):
        merge(tmp_path, path)
    path.write_text(whole.replace("base_unix_ns", "base"))
    with pytest.raises(InvalidArgumentError, match="no base_unix_ns"):
        merge(tmp_path, path)
    path.write_text(whole.replace("at_ns", "at"))
    with pytest.raises(InvalidArgumentError, match="gradlane_clock has no at_ns"):
        merge(tmp_path, path)


def test_a_file_that_was_cut_off_anywhere_is_read_up_to_its_last_whole_line(tmp_path):
    events = json.loads(own(tmp_path, 0, [span("one", 1, 1), span("zwölf", 2, 1)]).read_text())
    whole = ("[\n" + ",\n".join(json.dumps(event, ensure_ascii=False) for event in events)).encode()
    last, cut = whole.rindex(b"\n"), tmp_path / "cut.json"
    for length in range(last, len(whole)):
        cut.write_bytes(whole[:length])
        assert "one" in merge(tmp_path, cut)
    cut.write_bytes(whole[:1])
    timeline.merge(cut, out=tmp_path / "merged.json")


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


def test_arrows_lead_from_a_push_to_its_sum_and_from_there_to_each_pull(tmp_path):
    files = [worker(tmp_path, 0, push=10, pull=300), worker(tmp_path, 1, push=90, pull=320)]
    result = timeline.merge(*files, server(tmp_path), out=tmp_path / "merged.json")
    # Each worker has two orders of events with the server: its first byte, and the end of its PULL.
    pairs = (timeline.Pair("a", "a", orders=4, violations=0, worst=0, error=0),)
    assert result == timeline.Merged(error=0, by_wall_clock=(), pairs=pairs)
    events = json.loads((tmp_path / "merged.json").read_text())
    arrows = {}
    for event in events:
        if event["ph"] in ("s", "f"):
            arrows.setdefault((event["name"], event["id"]), []).append((event["pid"], event["ts"]))
    assert len(arrows) == 4 and len({id for _, id in arrows}) == 4
    base = next(event["ts"] for event in events if event["name"] == "PUSH") - 10
    ways = sorted((name, *[(pid, round(ts - base, 3)) for pid, ts in ends]) for (name, _), ends in arrows.items())
    assert ways == [
        ("pull", (SERVER, 120), (1, 299.999)),
        ("pull", (SERVER, 120), (3, 319.999)),
        ("push", (1, 10), (SERVER, 150)),
        ("push", (3, 90), (SERVER, 200)),
    ]
    for ends in arrows.values():
        assert ends[0][1] < ends[1][1], "forwards"
    # Perfetto draws an arrow from what begins first, so a pull's arrow ends at something that begins after SEND, and stands before the arrow.
    arrived = [(event["pid"], event["ts"], events.index(event)) for event in events if event["name"] == "ARRIVED"]
    ends = [(event["pid"], event["ts"], events.index(event)) for event in events if event["ph"] == "f" and event["name"] == "pull"]
    assert [place[:2] for place in arrived] == [place[:2] for place in ends] and len(ends) == 2
    assert all(moment[2] < end[2] for moment, end in zip(arrived, ends, strict=True))


def test_rows_of_servers_have_the_names_that_workers_know(tmp_path):
    timeline.merge(worker(tmp_path, 0, push=10, pull=300), server(tmp_path), out=tmp_path / "merged.json")
    events = json.loads((tmp_path / "merged.json").read_text())
    rows = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == SERVER]
    assert rows == ["layer.weight [2]", "layer.weight [2] to workers"]


def test_events_say_what_their_rows_say_for_all_of_them_and_those_that_differ_stay(tmp_path):
    path = worker(tmp_path, 0, push=10, pull=300)
    events = json.loads(path.read_text())
    pull = next(event for event in events if event["name"] == "PULL")
    pull["args"] |= {"bytes": 4, "part": 7}
    unknown = span("PUSH", 1, 1, pid=1) | {"tid": [5], "args": {"round": 1}}
    path.write_text(json.dumps([*events, unknown]))
    # A timeline that was merged has whole events, and so had files of version 1.
    for _ in range(2):
        merged = timeline.merge(path, out=tmp_path / "merged.json")
        assert merged.violations == ()
        of = {event["name"]: event["args"] for event in json.loads((tmp_path / "merged.json").read_text()) if event.get("tid") == 4}
        whole = PART | {"tensor": "layer.weight", "bytes": 8, "round": 5, "outcome": "done"}
        assert (of["PUSH"], of["PULL"]) == (whole, whole | {"bytes": 4, "part": 7})
        path = tmp_path / "again.json"
        path.write_text((tmp_path / "merged.json").read_text().replace('"version": 2', '"version": 1'))


def test_what_cannot_have_been_is_reported_with_the_worst_first(tmp_path):
    files = [worker(tmp_path, 0, push=120, pull=300), worker(tmp_path, 1, push=90, pull=180)]
    result = timeline.merge(*files, server(tmp_path), out=tmp_path / "merged.json")
    of = "tensor layer.weight, part 2, round 5: "
    assert [(violation.what, round(violation.seconds * 1e6, 3)) for violation in result.violations] == [
        (of + "server 0 had the first byte of worker 0 before its PUSH began", 40),
        (of + "the PULL of worker 1 ended before server 0 had the whole sum", 21),
    ]


def test_arrows_lead_from_a_push_to_its_use_and_from_the_answer_to_its_own_pull(tmp_path):
    # Both workers use the part for the fifth time, and have nothing to do with each other.
    files = [worker(tmp_path, 0, push=10, pull=300), worker(tmp_path, 1, push=90, pull=320)]
    used = using_server(tmp_path, {0: (60, 150), 1: (130, 200)})
    result = timeline.merge(*files, used, out=tmp_path / "merged.json")
    pairs = (timeline.Pair("a", "a", orders=4, violations=0, worst=0, error=0),)
    assert result == timeline.Merged(error=0, by_wall_clock=(), pairs=pairs)
    events = json.loads((tmp_path / "merged.json").read_text())
    rows = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == SERVER]
    assert rows == ["layer.weight [2] of worker 0", "layer.weight [2] of worker 1"]
    base = next(event["ts"] for event in events if event["name"] == "PUSH") - 10
    arrows = {}
    for event in events:
        if event["ph"] in ("s", "f"):
            arrows.setdefault((event["name"], event["id"]), []).append((event["pid"], event["tid"], round(event["ts"] - base, 3)))
    assert sorted((name, *ends) for (name, _), ends in arrows.items()) == [
        ("pull", (SERVER, 1, 150), (1, 4, 299.999)),
        ("pull", (SERVER, 2, 200), (3, 4, 319.999)),
        ("push", (1, 4, 10), (SERVER, 1, 60)),
        ("push", (3, 4, 90), (SERVER, 2, 130)),
    ]


def test_a_use_that_cannot_have_been_is_reported(tmp_path):
    files = [worker(tmp_path, 0, push=120, pull=300), worker(tmp_path, 1, push=90, pull=180)]
    result = timeline.merge(*files, using_server(tmp_path, {0: (80, 150), 1: (100, 201)}), out=tmp_path / "merged.json")
    of = "tensor layer.weight, part 2, round 5: "
    assert [(violation.what, round(violation.seconds * 1e6, 3)) for violation in result.violations] == [
        (of + "server 0 had the use of worker 0 before its PUSH began", 40),
        (of + "the PULL of worker 1 ended before server 0 began to answer", 21),
    ]


def test_the_use_of_a_residual_and_the_sum_of_the_same_round_have_arrows_and_causality_of_their_own(tmp_path):
    # The residual goes 500 µs before the sum.
    use = {"push": -490, "pull": -300, "use": "residual"}
    files = [worker(tmp_path, rank, push=10, pull=300) for rank in range(2)]
    files += [worker(tmp_path, rank, **use) for rank in range(2)]
    files += [server(tmp_path), using_server(tmp_path, {0: (-440, -380), 1: (-430, -350)}, use="residual")]
    result = timeline.merge(*files, out=tmp_path / "merged.json")
    assert result.violations == () and [pair.orders for pair in result.pairs] == [8]
    events = json.loads((tmp_path / "merged.json").read_text())
    ways = {}
    for event in events:
        if event["ph"] in ("s", "f"):
            ways.setdefault((event["name"], event["id"]), []).append(event["ts"])
    base = next(event["ts"] for event in events if event["name"] == "PUSH" and "use" not in event["args"]) - 10
    assert sorted((name, *[round(ts - base, 3) for ts in ends]) for (name, _), ends in ways.items()) == [
        ("pull", -380, -300.001),
        ("pull", -350, -300.001),
        ("pull", 120, 299.999),
        ("pull", 120, 299.999),
        ("push", -490, -440),
        ("push", -490, -430),
        ("push", 10, 150),
        ("push", 10, 200),
    ]


def test_a_planted_skew_is_found_by_causality_and_taken_out_by_the_clock_of_the_job(tmp_path):
    # The clock of the server began 3.7 s later than it says, and runs 200 ppm too slow.
    skew = 3_700_000_000
    times = [(at, DAY + skew + at, DAY + at + at // 5_000, 1_000) for at in (0, 10 * S)]
    wrong = [reading[:2] for reading in times]
    workers = [worker(tmp_path, rank, push=10, pull=300, job=True) for rank in range(2)]
    late = server(tmp_path, monotonic="b", readings=wrong, host="s1")
    skewed = timeline.merge(*workers, late, out=tmp_path / "merged.json")
    assert len(skewed.by_wall_clock) == 1 and len(skewed.violations) == 2
    assert skewed.violations[0].seconds == pytest.approx(3.7, abs=1e-3)
    worst = pytest.approx(3.7, abs=1e-3)
    assert skewed.pairs == (timeline.Pair("a", "s1", orders=4, violations=2, worst=worst, error=None),)
    about = json.loads((tmp_path / "merged.json").read_text())[0]["args"]
    pair = {"worker": "a", "server": "s1", "orders": 4, "violations": 2, "worst": skewed.pairs[0].worst, "error": None}
    assert about["pairs"] == [pair] and about["error_s"] is None

    right = timeline.merge(
        *workers, server(tmp_path, monotonic="b", readings=times, host="s1"), out=tmp_path / "merged.json"
    )
    assert right.violations == () and right.error < 3e-6
    # The error of the worker's only reading, of the server's, and the drift of both in 0.3 ms.
    error = pytest.approx(2e-6, abs=1e-6)
    assert right.pairs == (timeline.Pair("a", "s1", orders=4, violations=0, worst=0, error=error),)
    events = [event for event in json.loads((tmp_path / "merged.json").read_text()) if event["ph"] == "X"]
    begin = {(event["pid"], event["name"]): event["ts"] for event in events}
    end = {(event["pid"], event["name"]): event["ts"] + event["dur"] for event in events}
    for pid in (1, 3):
        assert begin[pid, "PUSH"] <= begin[SERVER, "SUM"] and end[SERVER, "SUM"] <= end[pid, "PULL"], "spans nest"


def test_what_the_errors_of_two_clocks_explain_is_no_violation(tmp_path):
    # The server had the first byte of worker 0 40 µs before its PUSH began.
    files = [worker(tmp_path, 0, push=120, pull=300, job=True), worker(tmp_path, 1, push=90, pull=320, job=True)]
    for error_us, violations in ((20, 1), (45, 0)):
        readings = [(0, DAY, DAY, error_us * 1_000)]
        elsewhere = server(tmp_path, monotonic="b", readings=readings, host="s1")
        result = timeline.merge(*files, elsewhere, out=tmp_path / "merged.json")
        assert [pair.violations for pair in result.pairs] == [violations] and len(result.violations) == violations
        assert result.pairs[0].error == pytest.approx(error_us * 1e-6 + 1e-6, abs=1e-6)


def test_machines_whose_hosts_have_one_name_are_told_apart(tmp_path):
    files = [worker(tmp_path, rank, push=10, pull=300, job=True) for rank in range(2)]
    result = timeline.merge(*files, server(tmp_path, monotonic="b", readings=[(0, DAY, DAY, 1_000)]))
    assert [(pair.worker, pair.server) for pair in result.pairs] == [("a", "a (2)")]


def test_the_command_prints_how_well_the_clocks_agree(tmp_path):
    files = [worker(tmp_path, 0, push=120, pull=300), worker(tmp_path, 1, push=90, pull=320), server(tmp_path)]
    out = tmp_path / "all.json"
    ended = command("merge", "--out", out, *files)
    assert ended.code == 0 and json.loads(out.read_text()), ended
    assert ended.output.splitlines() == [
        "times are within 0 µs of the coordinator's clock",
        "workers on a and servers on a, clocks within 0 µs of each other: 1 of 4 orders of events cannot have been, the worst by 40 µs",
        "  40 µs: tensor layer.weight, part 2, round 5: server 0 had the first byte of worker 0 before its PUSH began",
    ]
    assert command("merge", *files).code == 2, "nothing to write"
    refused = command("merge", "--out", out, __file__)
    assert refused.code == 1 and refused.output.startswith("error: ") and "is no timeline" in refused.output
    assert command("merge", "--out", out, tmp_path / "absent").code == 1


def test_a_bundle_says_of_each_file_on_which_machine_it_was_and_how_far_it_lies_after_the_first(tmp_path):
    # The second machine's clock began elsewhere, and runs 200 ppm too fast.
    first = own(tmp_path, 0, [span("first", 10e6, 1)], monotonic=("a", 5 * S), readings=[(0, DAY, DAY, 50_000)])
    readings = [(at, DAY + at, DAY + at - at // 5_000, 20_000) for at in (0, 20 * S)]
    second = own(tmp_path, 1, [span("second", 10e6, 1)], monotonic=("b", 900 * S), readings=readings, host="b/../c")
    theirs = other(tmp_path, [span("theirs", 0, 1, pid=70)], DAY + 70 * S, host="b/../c")
    timeline.merge(first, second, theirs, perfetto=tmp_path / "all.tar")
    with tarfile.open(tmp_path / "all.tar") as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
    # Perfetto knows it by its first characters.
    assert files["perfetto_manifest.json"].startswith(b'{"perfetto_manifest"')
    manifest = json.loads(files.pop("perfetto_manifest.json"))["perfetto_manifest"]
    assert manifest["version"] == 1
    listed = {entry["path"]: entry for entry in manifest["files"]}
    assert list(listed) == ["0-worker-1.json", "1-worker-0.json", f"2-{theirs.stem}.json"] and set(files) == set(listed)
    assert [entry["machine"]["name"] for entry in manifest["files"]] == ["b/../c", "a", "b/../c"]
    assert "clocks" not in listed["0-worker-1.json"]
    clocks = {"sync_to": {"file": "0-worker-1.json"}, "offset_ns": 2_000_000}
    assert listed["1-worker-0.json"]["clocks"] == clocks
    for content in files.values():
        spans = [event for event in json.loads(content)["traceEvents"] if event["ph"] == "X"]
        assert [event["ts"] for event in spans] == [0], "from its own beginning on"


def command(*words):
    """Runs `python -m gradlane.timeline`."""
    return run_all([([sys.executable, "-m", "gradlane.timeline", *map(str, words)], {})], timeout=60)[0]


SERVER = 1 << 23
PART = {"key": "00000000000000aa", "part": 2}


def worker(folder, rank, *, push, pull, job=False, use=None):
    """Of one sum, or use: its PUSH begins at `push`, its PULL ends at `pull`, in microseconds."""
    pid = 2 * rank + 1
    row = {"ph": "M", "pid": pid, "tid": 4, "name": "thread_name"}
    row["args"] = PART | {"name": "layer.weight [2]", "tensor": "layer.weight", "tensors": ["layer.weight"], "bytes": 8}
    about = {"round": 5, "outcome": "done"} | ({"use": use} if use else {})
    spans = [(("PUSH", push, 30), pid), (("PULL", push + 30, pull - push - 30), pid)]
    events = [row] + [span(*what, pid=pid) | {"tid": 4, "args": about} for what, pid in spans]
    readings = [(0, DAY, DAY, 1_000)] if job else [(0, DAY)]
    return file(folder, f"worker {rank}", events, readings=readings, monotonic=("a", 0))


def server(folder, *, readings=((0, DAY),), monotonic="a", host="a"):
    """Of the same sum. The first bytes come at 80 and 100 µs, the last ones at 150 and 200, and 1 µs later it is whole."""
    rows = [("", 1), (" to workers", 2)]
    events = [
        {"ph": "M", "pid": SERVER, "tid": tid, "name": "thread_name", "args": PART | {"name": "00aa [2]" + what, "what": what}}
        for what, tid in rows
    ]
    for name, rank, ts in (("FIRST", 0, 80), ("FIRST", 1, 100), ("LAST", 0, 150), ("LAST", 1, 200)):
        moment = {"ph": "i", "s": "t", "name": f"{name} BYTE", "pid": SERVER, "tid": 1, "ts": ts}
        events.append(moment | {"args": {"round": 5, "worker": rank}})
    for name, tid, ts, dur in (("SUM", 1, 80, 121), ("SEND", 2, 120, 220)):
        about = {"round": 5, "outcome": "published"}
        events.append({"ph": "X", "name": name, "pid": SERVER, "tid": tid, "ts": ts, "dur": dur, "args": about})
    return file(folder, "server 0", events, readings=readings, monotonic=(monotonic, 0), host=host)


def using_server(folder, uses, use=None):
    """Of uses of the same part and number. By rank: when the header came, and when the answer began; 100 µs later the worker had it."""
    events = []
    for tid, (rank, (came, answered)) in enumerate(uses.items(), start=1):
        what = f" of worker {rank}"
        row = {"ph": "M", "pid": SERVER, "tid": tid, "name": "thread_name"}
        events.append(row | {"args": PART | {"name": "00aa [2]" + what, "what": what}})
        # A first attempt broke off.
        spans = [("USE", came - 10, 5, "torn"), ("USE", came, answered - came, "answered"), ("ANSWER", answered, 100, "taken")]
        for name, ts, dur, outcome in spans:
            about = PART | {"round": 5, "workers": [rank], "outcome": outcome} | ({"use": use} if use else {})
            events.append({"ph": "X", "name": name, "pid": SERVER, "tid": tid, "ts": ts, "dur": dur, "args": about})
    return file(folder, "server 0", events, readings=((0, DAY),), monotonic=("a", 0))


def test_a_good_reading_makes_those_around_it_better(tmp_path):
    # The first one was made while the machine was busy.
    readings = [(0, DAY, DAY + 15_000_000, 15_000_000), (S, DAY + S, DAY + S + 1_000, 2_000)]
    path = own(tmp_path, 0, [span("outer", 0, 1e6), span("inner", 999_999.999, 0.001)], readings=readings)
    result = timeline.merge(path, out=tmp_path / "merged.json")
    # It says 0 to 30 ms, and the second one with a second of drift -1201 to 1203 µs.
    assert result.error == pytest.approx(1_203e-6 / 2, abs=1e-6)
    merged = merge(tmp_path, path)
    # Spans stay within others, and last as long as before, but for the drift.
    ends = [merged[name]["ts"] + merged[name]["dur"] for name in ("outer", "inner")]
    assert ends[0] == pytest.approx(ends[1], abs=1e-4)
    assert merged["outer"]["dur"] == pytest.approx(1e6, rel=1200e-6)


def test_after_another_coordinator_has_taken_over_its_clock_counts(tmp_path):
    readings = [(0, DAY, DAY, 1_000), (5 * S, DAY + 5 * S, DAY + 95 * S, 1_000), (9 * S, DAY + 9 * S, DAY + 99 * S, 1_000)]
    path = own(tmp_path, 0, [span("before", 0, 1), span("after", 9e6, 1)], readings=readings)
    merged = merge(tmp_path, path)
    assert merged["after"]["ts"] - merged["before"]["ts"] == 9e6, "on one clock"
    assert timeline.merge(path, out=tmp_path / "merged.json").error == pytest.approx(5 * 1200e-6, rel=0.01)


def own(folder, rank, events, *, readings=((0, DAY),), process=70, host="a", monotonic=(None, 0)):
    """A file as workers write it. `readings` are times of the file, of the wall clock, and of the coordinator's clock."""
    events = [event | {"pid": 2 * rank} for event in events]
    return file(folder, f"worker {rank}", events, readings=readings, process=process, host=host, monotonic=monotonic)


def file(folder, member, events, *, readings, monotonic, process=70, host="a"):
    at_ns, unix_ns = readings[0][:2]
    about = {"version": 2, "base_unix_ns": unix_ns - at_ns, "member": member, "host": host, "process": process}
    about |= {"monotonic": monotonic[0], "monotonic_ns": monotonic[1]} if monotonic[0] else {}
    head = [{"ph": "M", "pid": 0, "name": "gradlane_timeline", "args": about}]
    for reading in readings:
        args = dict(zip(("at_ns", "unix_ns", "job_ns", "error_ns"), reading))
        head.append({"ph": "M", "pid": 0, "name": "gradlane_clock", "args": args})
    path = folder / f"{member}-{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(head + events))
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
