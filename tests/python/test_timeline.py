"""The timeline: what every part did, what the script did, in a file that opens whatever became of the process."""

import json
import signal
import sys
import threading

import gradlane
import numpy as np
import pytest
from gradlane import _timeline_files, timeline
from gradlane.errors import FailedPreconditionError, InvalidArgumentError
from processes import over, run_all, run_python

pytestmark = pytest.mark.over("quic")

MANY = 5
STAGES = ["QUEUE", "PUSH", "PULL"]


@pytest.mark.over("shm", "quic")
@pytest.mark.workers(2)
def test_every_part_of_every_tensor_leaves_its_stages(tmp_path):
    gradlane.push_pull(np.ones(10, np.float32), "before")
    path = gradlane.start_timeline(tmp_path)
    assert path == tmp_path / str(gradlane.rank()) / "comm.json"
    for _ in range(2):
        handles = [
            gradlane.push_pull_async(np.ones(2_500_000, np.float32), f"large {i}", priority=-i) for i in range(MANY)
        ]
        for handle in handles:
            handle.wait()
    gradlane.stop_timeline()
    gradlane.push_pull(np.ones(10, np.float32), "after")

    rows = {}
    for span in spans(path):
        assert span["dur"] >= 0
        rows.setdefault((span["args"]["tensor"], span["args"]["part"], span["args"]["round"]), []).append(span)
    # 10 MB in parts of 4 MiB, twice.
    assert set(rows) == {(f"large {i}", part, turn) for i in range(MANY) for part in range(3) for turn in range(2)}
    for (tensor, _, _), of_part in rows.items():
        assert [span["name"] for span in of_part] == STAGES
        assert all(before["ts"] + before["dur"] <= after["ts"] + 1 for before, after in zip(of_part, of_part[1:]))
        assert {span["args"]["priority"] for span in of_part} == {-int(tensor.removeprefix("large "))}
        assert [span["args"].get("outcome") for span in of_part] == [None, "done", "done"]
    assert sum(span["args"]["bytes"] for span in spans(path) if span["name"] == "PUSH") == 2 * MANY * 10_000_000


def test_the_settings_have_all_members_record_the_same_steps(tmp_path):
    script = """
import gradlane, numpy as np
gradlane.init()
for step in range(12):
    with gradlane.timeline.span(f"step {step}"):
        gradlane.push_pull(np.ones(1000, np.float32), "w")
gradlane.shutdown()
"""
    run = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", sys.executable, "-c", script]
    window = {"GRADLANE_TIMELINE_FROM_STEP": "5", "GRADLANE_TIMELINE_STEPS": "3"}
    [ended] = run_all([(run, over("quic") | window | {"GRADLANE_TIMELINE": str(tmp_path)})], timeout=60)
    assert ended.code == 0, ended
    for rank in range(2):
        path = tmp_path / str(rank) / "comm.json"
        pushes = [span for span in spans(path) if span["name"] == "PUSH"]
        assert [(span["args"]["tensor"], span["args"]["round"]) for span in pushes] == [("w", 5), ("w", 6), ("w", 7)]
        own = [span["name"] for span in spans(path) if span["pid"] == 2 * rank]
        assert own == ["step 5", "step 6", "step 7"]
    key = pushes[0]["args"]["key"]
    sums = [span for span in spans(tmp_path / "server-0" / "comm.json") if span["name"] == "SUM"]
    assert [span["args"]["round"] for span in sums if span["args"]["key"] == key] == [5, 6, 7]


@pytest.mark.workers(2)
def test_waits_for_data_are_counted_and_shown(tmp_path):
    path = gradlane.start_timeline(tmp_path / "data.json")
    before = gradlane.metrics()["data_wait_nanoseconds"]
    batches = timeline.data([[1, 2], [3]])
    assert len(batches) == 2
    for _ in range(2):
        assert list(batches) == [[1, 2], [3]]
    gradlane.stop_timeline()
    waits = [span for span in spans(path) if span["name"] == "data"]
    assert len(waits) == 4
    counted = gradlane.metrics()["data_wait_nanoseconds"] - before
    # The file has whole microseconds.
    assert sum(wait["dur"] for wait in waits) <= counted / 1e3 + 4
    assert counted > 0
    with pytest.raises(TypeError, match="generator has no length"):
        len(timeline.data(batch for batch in [1]))

    def fails():
        yield 1
        raise ValueError("no more data")

    with pytest.raises(ValueError, match="no more data"):
        list(timeline.data(fails()))


@pytest.mark.workers(2)
def test_rows_are_named_and_lie_in_the_order_of_priority(tmp_path):
    path = gradlane.start_timeline(tmp_path / "named.json")
    assert path.name == f"named.{gradlane.rank()}.json"
    for i in range(3):
        gradlane.push_pull(np.ones(4, np.float32), f"row {i}", priority=-i)
    gradlane.stop_timeline()
    events = json.loads(path.read_text())
    about = {(e["name"], e.get("tid")): e["args"] for e in events if e["ph"] == "M" and e["pid"] % 2}
    names = {key[1]: args["name"] for key, args in about.items() if key[0] == "thread_name"}
    orders = {names[key[1]]: args["sort_index"] for key, args in about.items() if key[0] == "thread_sort_index"}
    assert orders == {"row 0 [0]": 0, "row 1 [0]": 1, "row 2 [0]": 2}


@pytest.mark.workers(2)
def test_the_script_puts_its_own_work_beside(tmp_path):
    path = gradlane.start_timeline(tmp_path)
    with timeline.span("epoch"), timeline.span("forward"):
        pass
    with pytest.raises(KeyError), timeline.span("backward"):
        raise KeyError
    threading.Thread(target=lambda: timeline.record("elsewhere", 1_000, 3_500), name="loader").start()
    gradlane.push_pull(np.ones(4, np.float32), "beside")
    gradlane.barrier("the thread has long ended")
    gradlane.stop_timeline()
    own = [span for span in spans(path) if span["pid"] == 2 * gradlane.rank()]
    assert [span["name"] for span in own] == ["forward", "epoch", "backward", "elsewhere"]
    assert own[3]["dur"] == 2.5
    pushed = next(span for span in spans(path) if span["name"] == "PUSH")
    assert own[0]["ts"] <= pushed["ts"] <= own[0]["ts"] + 60e6, "on one clock"


@pytest.mark.workers(2)
def test_files_of_several_workers_make_one_picture(tmp_path):
    path = gradlane.start_timeline(tmp_path)
    gradlane.push_pull(np.ones(4, np.float32), "merged")
    gradlane.stop_timeline()
    paths = gradlane.allgather(str(path))
    result = timeline.merge(*paths, out=tmp_path / "both.json")
    assert result.by_wall_clock == () and result.error >= 0
    merged = json.loads((tmp_path / "both.json").read_text())
    assert {event["pid"] for event in merged} == {0, 1, 2, 3}
    assert merged[0]["name"] == "gradlane_timeline" and merged[0]["args"]["base_unix_ns"] > 1.7e18
    assert min(event["ts"] for event in merged if "ts" in event) == 0


def test_spans_of_the_script_and_of_pytorchs_profiler_nest_as_they_did(tmp_path):
    pytest.importorskip("torch")
    script = f"""
import os, time, gradlane, torch
from gradlane.timeline import span
gradlane.init()
gradlane.start_timeline({str(tmp_path)!r})
def work():
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        torch.ones(100, 100, requires_grad=True).matmul(torch.ones(100, 100)).sum().backward()
for turn in range(2):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with span(f"outer {{turn}}"):
            work()
            with torch.profiler.record_function(f"theirs {{turn}}"):
                work()
                with span(f"inner {{turn}}"):
                    work()
                work()
            work()
    profile.export_chrome_trace(os.path.join({str(tmp_path)!r}, f"kineto{{turn}}.json"))
gradlane.stop_timeline()
"""
    assert (ended := run_python(script)).code == 0, ended.output
    kineto = [tmp_path / f"kineto{turn}.json" for turn in range(2)]
    own = tmp_path / "0" / "comm.json"
    timeline.merge(own, *kineto, out=tmp_path / "merged.json")
    merged = json.loads((tmp_path / "merged.json").read_text())
    named = {event["name"]: event for event in merged if event.get("ph") == "X"}
    for turn in range(2):
        around = [named[f"{name} {turn}"] for name in ("outer", "theirs", "inner")]
        for outside, inside in zip(around, around[1:]):
            assert outside["ts"] < inside["ts"]
            assert inside["ts"] + inside["dur"] < outside["ts"] + outside["dur"]
    counts = [len({event.get("pid") for event in events(path)} - {None}) for path in (own, *kineto)]
    # The first event is of no process, and says so by 0, which is this worker's.
    assert len({event.get("pid") for event in merged} - {None}) == sum(counts), "no two files share a process"
    arrows = [{event["id"] for event in events(path) if event.get("ph") == "s"} for path in kineto]
    assert arrows[0] & arrows[1], "the profiler counts from the same number"
    assert len({event["id"] for event in merged if event.get("ph") == "s"}) == sum(map(len, arrows))


@pytest.mark.workers(2)
def test_one_timeline_at_a_time(tmp_path):
    gradlane.stop_timeline()
    gradlane.start_timeline(tmp_path / "first")
    with pytest.raises(FailedPreconditionError, match="already"):
        gradlane.start_timeline(tmp_path / "second")
    gradlane.stop_timeline()


@pytest.mark.workers(2, settings={"timeline_bytes_max": "64 KiB"})
def test_a_file_that_is_full_ends_and_says_so(tmp_path):
    path = gradlane.start_timeline(tmp_path)
    for _ in range(2000):
        with timeline.span("step"):
            pass
    gradlane.stop_timeline()
    events = json.loads(path.read_text())
    written = sum(event["name"] == "step" for event in events)
    assert path.stat().st_size <= 65_536 + 200
    assert events[-1]["args"]["count"] == 2000 - written > 0


def test_a_job_of_one_records_what_the_script_does(tmp_path):
    script = "import gradlane; gradlane.init()\nwith gradlane.timeline.span('alone'): pass"
    ended = run_python(script, env={"GRADLANE_TIMELINE": str(tmp_path / "one.json")})
    assert ended.code == 0, ended.output
    assert [span["name"] for span in spans(tmp_path / "one.0.json")] == ["alone"]


@pytest.mark.workers(2)
def test_the_clock_of_the_job_is_known_with_its_error():
    # The coordinator answers the first heartbeat some time after the start.
    while not all(gradlane.allgather(timeline.clock() is not None)):
        pass
    known = timeline.clock()
    # The coordinator is on this host, and its clock began with what the wall clock of this host showed.
    assert abs(known.offset) <= known.error + 1e-3
    assert 0 < known.error < 60


def test_a_job_of_one_has_no_other_clock():
    script = "import gradlane; gradlane.init(); assert gradlane.timeline.clock() is None"
    assert (ended := run_python(script)).code == 0, ended.output


def test_a_process_that_is_killed_leaves_a_file_that_can_be_read(tmp_path):
    script = f"""
import gradlane, json, os, signal
gradlane.init()
path = gradlane.start_timeline({str(tmp_path)!r})
while '"step"' not in path.read_text():
    with gradlane.timeline.span("step"): pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = run_python(script)
    assert ended.code == -signal.SIGKILL, ended.output
    left = tmp_path / "0" / "comm.json"
    assert not left.read_text().rstrip().endswith("]")
    timeline.merge(left, out=tmp_path / "read.json")
    assert "step" in [event["name"] for event in json.loads((tmp_path / "read.json").read_text())]


def test_a_place_that_cannot_be_written_is_an_error_of_init():
    script = "import gradlane; gradlane.init()"
    ended = run_python(script, env={"GRADLANE_TIMELINE": "/dev/null/here"})
    assert ended.code == 1 and "/dev/null/here/0/comm.json" in ended.output, ended.output


def test_before_init_batches_come_all_the_same():
    ended = run_python("from gradlane import timeline; assert list(timeline.data([1, 2])) == [1, 2]")
    assert ended.code == 0, ended


def test_before_init_spans_go_nowhere_and_recording_says_to_call_init():
    with timeline.span("nowhere"):
        pass
    with pytest.raises(gradlane.NotInitializedError):
        gradlane.start_timeline("nowhere")


def test_what_is_no_timeline_is_not_merged(tmp_path):
    path = tmp_path / "other"
    for text in ("no json", "{}", "3"):
        path.write_text(text)
        with pytest.raises(InvalidArgumentError, match="other is no timeline"):
            timeline.merge(path, out=tmp_path / "out")


def events(path):
    return (
        json.loads(path.read_text())["traceEvents"] if path.name.startswith("kineto") else json.loads(path.read_text())
    )


def spans(path):
    """With what their rows say for all of them."""
    return [event for event in _timeline_files.read(path).events if event["ph"] == "X"]
