"""`report=DIR` and `gradlane compare`: what a job says of itself at its end, and what two jobs have different."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import Ended, over, run_all

GRADLANE = [sys.executable, "-m", "gradlane"]
STEPS, ELEMENTS = 12, 10_000

TRAIN = f"""
import sys
import gradlane, numpy as np
from gradlane import Sum

gradlane.init()
for step in range({STEPS}):
    gradlane.push_pull(np.ones({ELEMENTS}, np.float32), "w", op=Sum)
    if gradlane.rank() == 1 and step == 5 and "fails" in sys.argv:
        raise ValueError("the data is gone")
gradlane.shutdown()
if "cleans up" in sys.argv:
    sys.exit(3)
"""


COMES_BACK = """
import os, signal, sys
from pathlib import Path
import gradlane, numpy as np
from gradlane import Sum, elastic

died = Path(sys.argv[1])
gradlane.init()
state = elastic.State(weights=np.zeros(10))
is_done = False

def until_done():
    while not is_done:
        yield state.step

for step in elastic.steps(state, until_done()):
    if (gradlane.rank(), step) == (1, 5) and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    back = np.array([float(died.exists() and gradlane.size() == 2)])
    is_done = gradlane.push_pull(back, "back", op=Sum)[0] == 2
"""


def run(folder: Path, transport: str, *words: str, **settings: str) -> Ended:
    """A job of two workers and a server, which writes its report below the folder."""
    settings = {"report": str(folder / "reports"), "job": "night"} | settings
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    train = [sys.executable, "-c", TRAIN, *words]
    env = over(transport) | {"GRADLANE_STATE_DIR": str(folder / "state")}
    [ended] = run_all([([*GRADLANE, "run", "-n", "2", "-s", "1", *options, "--", *train], env)], timeout=90)
    return ended


def compare(a: Path, b: Path, *words: str, code: int = 0) -> str:
    [ended] = run_all([([*GRADLANE, "compare", *words, str(a), str(b)], {})], timeout=30)
    assert ended.code == code, ended
    return ended.output


def only(folder: Path) -> tuple[dict, str, Path]:
    """The one report in the folder, its page, and its path."""
    [path] = (folder / "reports").glob("*.json")
    assert sorted(folder.joinpath("reports").iterdir()) == [path, path.with_suffix(".txt")]
    return json.loads(path.read_text()), path.with_suffix(".txt").read_text(), path


@pytest.mark.over("quic", "shm")
def test_a_job_that_ends_has_a_report_whose_numbers_add_up(tmp_path, transport):
    assert run(tmp_path, transport).code == 0
    report, page, path = only(tmp_path)
    assert report["end"] == {"how": "ended", "reason": None}, report["end"]
    assert path.name.startswith("night-20") and report["job"] == "night"
    assert (report["steps"], report["formation"], report["whole"]) == (STEPS, 1, True)
    assert (report["silent"], report["losses"]) == ([], [])
    bytes_ = STEPS * ELEMENTS * 4
    workers = [member["metrics"] for member in report["members"] if member["role"] == "worker"]
    for worker in workers:
        assert (worker["submissions"], worker["resolved"], worker["failed"], worker["rounds"]) == (STEPS, STEPS, 0, STEPS)
        assert (worker["push_bytes"], worker["pull_bytes"]) == (bytes_, bytes_)
    assert [rank["push_bytes"] for rank in report["ranks"]] == [bytes_] * 2
    [server] = report["servers"]
    assert (server["received_bytes"], server["sent_bytes"]) == (2 * bytes_, 2 * bytes_)
    assert server["sums"] == report["round"]["count"] == workers[0]["pushes"]
    assert report["push_pull"]["count"] == 2 * STEPS
    assert report["push_pull"]["sum_ns"] == sum(worker["push_pull_duration_nanoseconds{sum}"] for worker in workers)
    assert report["setup"]["settings"]["job"] == {"value": "night", "origin": "argument"}
    setups = [(member["role"], member["setup"]) for member in report["members"]]
    assert len(setups) == 3 and len({setup["versions"]["gradlane"] for _, setup in setups}) == 1, setups
    runs = {"python": platform.python_version(), "numpy": np.__version__}
    for role, setup in setups:
        assert (setup["versions"].items() >= runs.items()) == (role == "worker"), setup
        assert setup["settings"]["job"]["value"] == "night" and "torch" not in setup["versions"], setup
    assert f"workers: numpy {np.__version__}, python {platform.python_version()}" in page, page
    assert page.startswith("VERDICT ") and f"\n{STEPS} steps, " in page and page.count("\n") <= 20, page


@pytest.mark.over("quic")
def test_a_job_that_fails_has_a_report_with_the_reason(tmp_path, transport):
    assert run(tmp_path, transport, "fails").code == 1
    report, page, _ = only(tmp_path)
    assert report["end"]["how"] == "failed" and "worker 1" in report["end"]["reason"], report["end"]
    assert report["steps"] >= 6 and report["silent"] == [], report
    assert f"\nreason: {report['end']['reason']}\n" in page, page
    assert [loss for loss in report["losses"] if loss.startswith("worker 1 on ")], report["losses"]


@pytest.mark.over("quic")
def test_a_job_whose_workers_fail_after_they_have_left_has_failed(tmp_path, transport):
    assert run(tmp_path, transport, "cleans up").code == 3
    report, page, _ = only(tmp_path)
    assert report["end"]["how"] == "failed" and "exited with code 3" in report["end"]["reason"], report["end"]
    assert (report["steps"], report["losses"]) == (STEPS, []), report
    assert page.splitlines()[2] == f"reason: {report['end']['reason']}", page


@pytest.mark.over("quic")
def test_compare_names_the_setting_that_was_changed(tmp_path, transport):
    assert run(tmp_path / "a", transport).code == 0
    assert run(tmp_path / "b", transport, credit_bytes="1MiB").code == 0
    (a, _, path), (b, _, other) = only(tmp_path / "a"), only(tmp_path / "b")
    text = compare(path, other)
    assert text.startswith("setting credit_bytes: default -> 1 MiB\n"), text
    told = json.loads(compare(path.parent, other.parent, "--json"))
    assert told["facts"][0] == {"what": "setting credit_bytes", "a": "default", "b": "1 MiB"}
    steps = [entry for entry in told["differences"] + told["noise"] if entry["what"] == "a step"]
    assert [entry["a"] for entry in steps] == [a["duration_ns"] // STEPS]
    assert [entry["b"] for entry in steps] == [b["duration_ns"] // STEPS]


@pytest.mark.over("quic")
def test_a_job_that_forms_again_has_a_report_of_each_formation(tmp_path, transport):
    options = ["-n", "2", "-s", "1", "--elastic", "1:2", "-o", f"report={tmp_path}"]
    train = [sys.executable, "-c", COMES_BACK, str(tmp_path / "died")]
    [ended] = run_all([([*GRADLANE, "run", *options, "--", *train], over(transport))], timeout=90)
    assert ended.code == 0, ended
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    first, second = sorted(reports, key=lambda report: report["began_unix_ns"])
    assert (first["formation"], first["end"]) == (1, {"how": "forms again", "reason": None}), first
    assert [loss for loss in first["losses"] if loss.startswith("worker 1 on ")], first["losses"]
    assert (second["formation"], second["end"]["how"], second["losses"]) == (2, "ended", []), second
    assert first["steps"] >= 5 and second["steps"] >= 1 and len(second["ranks"]) == 2 and second["silent"] == []
    assert first["began_unix_ns"] + first["duration_ns"] <= second["began_unix_ns"]


def test_compare_refuses_what_is_no_report(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text('{"form": "gradlane report", "schema"')
    assert "is cut off" in compare(broken, broken, code=2)
    broken.write_text('{"form": "gradlane report", "schema": 99, "setup": {"versions": {"gradlane": "9.9"}}}')
    assert "has schema 99, and this is 2; compare it with Gradlane 9.9" in compare(tmp_path, broken, code=2)
    assert "no such file" in compare(tmp_path / "nothing", broken, code=1).lower()


def test_a_directory_that_cannot_be_written_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").touch()
    ended = run(tmp_path, "quic", report=str(tmp_path / "file" / "below"))
    assert ended.code == 1 and "of the setting report" in ended.output, ended
