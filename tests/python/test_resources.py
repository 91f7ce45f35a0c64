"""What a process holds: flat over thousands of steps, and given back at the end, however it comes."""

import gc
import os
import sys
import time
from pathlib import Path

import gradlane
import numpy as np
import pytest
from processes import over, run_all, run_python

pytestmark = pytest.mark.over("quic")

WARM_UP_STEPS, STEPS, TENSORS = 50, 250, 8
RSS_GROWTH_BYTES_MAX = 4 << 20
"""2 KiB an operation: what the allocator may keep for itself. A forgotten tensor or handle would be far more."""


@pytest.mark.over("local", "shm", "quic")
@pytest.mark.workers(2)
def test_two_thousand_sums_leave_nothing_behind():
    tensors = [np.ones(256 << index, np.float32) for index in range(TENSORS)]
    steps(tensors, WARM_UP_STEPS)
    before = footprint() | {"references": [sys.getrefcount(tensor) for tensor in tensors]}
    steps(tensors, STEPS)
    after = footprint() | {"references": [sys.getrefcount(tensor) for tensor in tensors]}
    assert STEPS * TENSORS >= 2000
    assert after["files"] == before["files"] and after["threads"] == before["threads"]
    assert after["rss_bytes"] - before["rss_bytes"] < RSS_GROWTH_BYTES_MAX
    assert after["references"] == before["references"]


def test_jobs_that_come_and_go_leave_no_files_and_no_threads():
    def live():
        with gradlane.Server(workers=1) as server:
            gradlane.init(rank=0, size=1, coordinator=server.join)
            gradlane.push_pull(bytearray(8), "x")
            gradlane.shutdown()

    live()
    before = footprint()
    for _ in range(5):
        live()
    settled(lambda: footprint()["threads"] <= before["threads"] and footprint()["files"] <= before["files"])


@pytest.mark.parametrize("waiting", ["nobody", "the main thread's handle", "a thread"])
def test_an_interpreter_that_ends_with_operations_in_flight_does_not_hang(waiting, transport):
    script = f"""
import threading, gradlane
gradlane.init()
alone = gradlane.push_pull_async(bytearray(1 << 16), f"only on {{gradlane.rank()}}")
if {waiting == "nobody"}:
    del alone
if {waiting == "a thread"}:
    threading.Thread(target=lambda: alone.exception() or alone.wait(), daemon=True).start()
print("at the end")
"""
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", sys.executable, "-c", script]
    started = time.monotonic()
    [ended] = run_all([(command, over(transport))], timeout=30.0)
    assert ended.code == 0 and ended.output.count("at the end") == 2, ended.output
    assert time.monotonic() - started < 15.0


def test_an_interpreter_that_ends_by_an_exception_says_so_and_does_not_hang():
    script = "import gradlane; gradlane.init(); gradlane.push_pull(bytearray(3), 'x'); raise KeyError('of the user')"
    ended = run_python(script, timeout=30.0)
    assert ended.code == 1 and "KeyError: 'of the user'" in ended.output


@pytest.mark.workers(2)
def test_a_forked_worker_of_a_data_loader_knows_its_place():
    data = pytest.importorskip("torch.utils.data")

    class Places(data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return [gradlane.rank(), gradlane.size(), gradlane.local_rank(), gradlane.local_size()]

    loader = data.DataLoader(Places(), num_workers=2, multiprocessing_context="fork", collate_fn=lambda items: items[0])
    assert list(loader) == [[gradlane.rank(), 2, gradlane.rank(), 2]] * 4


@pytest.mark.workers(2, alone=True)
def test_shutdown_twice_is_once_in_a_job_too():
    gradlane.push_pull(bytearray(3), "x")
    for _ in range(2):
        gradlane.shutdown()
        assert not gradlane.is_initialized()


def steps(tensors, count):
    for _ in range(count):
        handles = [gradlane.push_pull_async(tensor, f"tensor {i}") for i, tensor in enumerate(tensors)]
        for handle in handles:
            handle.wait()
    # Asking is what gives the last tensors back: only a thread of Python's may drop a reference.
    settled(lambda: gradlane.metrics()["handles_live"] == 0)


def footprint():
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    rss_bytes = int(status["VmRSS"].split()[0]) << 10
    return {"rss_bytes": rss_bytes, "threads": int(status["Threads"]), "files": len(os.listdir("/proc/self/fd"))}


def settled(condition, timeout=5.0):
    """Returns once the condition holds: what ends on another thread ends a moment after this one knows."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, footprint()
        time.sleep(0.01)
