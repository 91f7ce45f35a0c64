"""The examples run as their first lines say, alone and together."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import forks
import pytest
from conftest import NO_SHARDING, fork_servers_key, shards_on_cpu
from gradlane import _core
from processes import Running, children, run_all

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def in_forks(request):
    """What `run` takes so that the processes of an example are forks, with PyTorch imported.

    Some examples run without it, as users start them.
    """
    return {forks.SOCKETS: request.config.stash[fork_servers_key].started(request.path)}


def run(script, *arguments, workers=None, timeout=120, env=None):
    launcher = [] if workers is None else [sys.executable, "-m", "gradlane", "run", "-n", str(workers), "-s", "2", "--"]
    stand_in = ["-I", "-S", forks.__file__] if forks.SOCKETS in (env or {}) else []
    command = [*launcher, sys.executable, *stand_in, str(EXAMPLES / script), *arguments]
    return run_all([(command, {"OMP_NUM_THREADS": "1"} | (env or {}))], timeout=timeout)[0]


@pytest.mark.parametrize("workers", [None, 3])
def test_logistic_regression_learns_and_equals_a_single_process(workers):
    pytest.importorskip("numpy")
    ended = run("logistic_regression.py", workers=workers)
    assert ended.code == 0, ended.output


@pytest.mark.parametrize("workers", [None, 2])
def test_asynchronous_sgd_learns_and_every_change_counts_once(workers):
    pytest.importorskip("numpy")
    ended = run("parameters/async_sgd.py", "--check", workers=workers)
    assert ended.code == 0 and f"{workers or 1} workers: accuracy" in ended.output, ended.output


@pytest.mark.parametrize("workers", [None, 3])
def test_weights_on_servers_are_those_of_a_single_process_in_mode_sync_and_nearly_so_in_others(workers):
    pytest.importorskip("numpy")
    ended = run("parameters/logreg.py", "--check", workers=workers)
    assert ended.code == 0, ended.output
    assert re.findall(r"^(\w+) +loss", ended.output, re.MULTILINE) == ["sync", "async", "ssp", "backup", "local"], ended.output


def test_one_mode_of_the_logistic_regression_runs_by_itself():
    pytest.importorskip("numpy")
    ended = run("parameters/logreg.py", "--check", "--mode", "backup", workers=2)
    assert ended.code == 0 and re.findall(r"^(\w+) +loss", ended.output, re.MULTILINE) == ["backup"], ended.output


@pytest.mark.torch
@pytest.mark.parametrize(("workers", "ways"), [(None, ["Async"]), (3, ["averaged", "Sync", "Async", "SSP", "Backup"])])
def test_digits_are_learnt_with_an_optimizer_on_the_servers_too(workers, ways, tmp_path, in_forks):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    only, picture = [word for way in ways for word in ("--only", way)], tmp_path / "accuracies.svg"
    draws = ["--picture", str(picture)]
    ended = run("parameters/async_cnn.py", "--check", "--rest", "0.01", *draws, *only, workers=workers, env=in_forks)
    assert ended.code == 0, ended.output
    drawn = re.findall(r">(\w+): (?:[\d.]+ s|not in 2000 steps)<", picture.read_text(encoding="utf-8"))
    assert drawn == ways, "the legend has a line of each"
    assert re.findall(r"^(\w+) +[\d.]+% after", ended.output, re.MULTILINE) == ways, ended.output


@pytest.mark.torch
@pytest.mark.parametrize("workers", [None, 3])
def test_digits_are_learnt_by_local_sgd_with_an_eighth_of_the_bytes(workers, in_forks):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    ended = run("parameters/local_sgd.py", "--check", workers=workers, env=in_forks)
    assert ended.code == 0 and len(re.findall(r"^\w.* MB a worker", ended.output, re.MULTILINE)) == 5, ended.output
    if workers:
        assert re.findall(r"(\d+)% saved", ended.output) == ["0", *["88"] * 4], ended.output


@pytest.mark.torch
@pytest.mark.parametrize("workers", [None, 2])
def test_a_click_model_with_rows_on_servers_learns_as_one_in_a_single_process(workers, tmp_path, in_forks):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    picture = tmp_path / "clicks.svg"
    ended = run("recommender.py", "--check", "--plot", str(picture), workers=workers, env=in_forks)
    assert ended.code == 0 and "1300 rows for 10000000 ids" in ended.output, ended.output
    drawn = re.findall(r">([a-z ]+): 0\.[78]\d\d<", picture.read_text(encoding="utf-8"))
    assert drawn == ["the rule itself", "on servers", "in one process"], "the legend has a line of each"


@pytest.mark.torch
@pytest.mark.parametrize("workers", [None, 2])
def test_hello_ends_with_one_checksum(workers):
    pytest.importorskip("torch")
    ended = run("hello.py", workers=workers)
    assert ended.code == 0, ended.output
    checksums = re.findall(r"checksum (-?[\d.]+)", ended.output)
    assert len(checksums) == (workers or 1) and len(set(checksums)) == 1, ended.output


@pytest.mark.torch
@pytest.mark.parametrize("framework", ["torch", "fsdp"])
def test_the_demo_proves_its_three_claims(framework):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    if framework == "fsdp" and not shards_on_cpu():
        pytest.skip(NO_SHARDING)
    ended = run("demo.py", "--framework", framework)
    assert ended.code == 0, ended.output
    assert ended.output.count("PASS  ") == 3, ended.output


@pytest.mark.torch
def test_digits_fails_the_check_of_a_training_that_is_too_short(in_forks):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    ended = run("digits.py", "--steps", "1", "--check", env=in_forks)
    assert ended.code == 1 and "Traceback" not in ended.output, ended.output


def missing_for_shaped_links() -> str:
    """What keeps this machine from making shaped links; empty if it can."""
    if not all(map(shutil.which, ("ip", "tc", "unshare", "nsenter", "setpriv"))):
        return "needs iproute2 and util-linux"
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "" if made.returncode == 0 and os.geteuid() == 0 else "needs root"


MISSING = missing_for_shaped_links()
SMALL = ["--width", "0.1", "--steps", "1", "--turns", "1"]


@pytest.mark.torch
def test_overlap_compares_all_contenders_on_the_links_that_there_are(tmp_path):
    pytest.importorskip("torch")
    links = ["--rate", "200mbit"] if not MISSING else []
    ended = run("overlap.py", *SMALL, *links, "--timeline", str(tmp_path / "overlap.json"))
    assert ended.code == 0, ended.output
    rows = ["compute alone", "send alone", "CrossBarrier", "DistributedDataParallel", "PyTorch's over Gloo"]
    for row in rows:
        assert re.search(rf"^{row} +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+$", ended.output, re.MULTILINE), ended.output
    for rank in range(2):
        events = json.loads((tmp_path / f"overlap.{rank}.json").read_text())
        assert {"forward", "backward", "step", "PUSH", "PULL"} <= {event["name"] for event in events}


@pytest.mark.torch
def test_compression_trains_with_every_codec_and_every_hook_and_draws_the_losses(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    rates = ["100mbit"] if not MISSING else ["none"]
    picture, losses = tmp_path / "losses.svg", tmp_path / "losses.json"
    files = ["--picture", str(picture), "--json", str(losses)]
    ended = run("compression.py", "--short", "--rates", *rates, *files, timeout=600)
    assert ended.code == 0, ended.output
    trained = json.loads(losses.read_text())[rates[0]]
    names = {one["contender"] for one in trained}
    codecs = {name.partition(" ")[0].partition(",")[0] for name in names}
    assert set(_core.names_table()["codecs"]) <= codecs, "each codec has a row"
    assert {"Gloo", "Gloo, fp16", "Gloo, bf16", "Gloo, PowerSGD", "our group, PowerSGD"} <= names
    for one in trained:
        assert re.search(rf"^{re.escape(one['contender'])} +\d+ ", ended.output, re.MULTILINE), ended.output
    sent = {one["contender"]: one["megabytes"] for one in trained if one["task"] == "digits"}
    if not MISSING:
        assert sent["int8"] < 0.75 * sent["fp16"] < 0.5 * sent["none"], sent
    assert picture.read_text().startswith("<?xml")


@pytest.mark.torch
def test_overlap_says_what_shaped_links_need(tmp_path):
    pytest.importorskip("torch")
    # No program is found in an empty folder.
    ended = run("overlap.py", *SMALL, "--rate", "1gbit", env={"PATH": str(tmp_path)})
    assert ended.code == 2 and re.search("need ip, tc, unshare, .*; install iproute2", ended.output), ended.output


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_machines_are_gone_when_their_maker_is_killed():
    script = f"""
import signal, sys; sys.path.insert(0, {str(EXAMPLES)!r})
from shaped import Machines
with Machines(2, "100mbit") as machines:
    for machine in (0, 1, None):
        machines.start(machine, ["cat", "/dev/zero"], {{}}, piped=True)
    print("made", flush=True)
    signal.pause()
"""
    with Running([sys.executable, "-c", script], env={}) as maker:
        maker.line("made")
        ends = [os.pidfd_open(child) for child in children(maker.pid)]
        assert len(ends) == 6  # three namespaces, three commands
        os.kill(maker.pid, signal.SIGKILL)
        for end in ends:
            assert select.select([end], [], [], 10.0)[0], "a process outlived its maker"
            os.close(end)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("rate", ["fast", "1gb", "0gbit", "500gbit"])
def test_a_rate_that_is_none_is_refused_with_an_example(rate):
    script = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); from shaped import Machines; Machines(1, {rate!r})"
    [ended] = run_all([([sys.executable, "-c", script], {})], timeout=20.0)
    assert f"--rate {rate} is no rate; write it like 1gbit" in ended.output
