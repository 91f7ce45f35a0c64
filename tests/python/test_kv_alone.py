"""`KVWorker` in a job of one: its arguments, its timestamps, and what becomes of them."""

import threading
from pathlib import Path

import gradlane
import numpy as np
import pytest
from gradlane import FailedPreconditionError, InvalidArgumentError, MismatchError, kv
from processes import run_python

ONES = np.ones(4, np.float32)


@pytest.fixture
def worker():
    gradlane.init()
    yield gradlane.KVWorker()
    gradlane.shutdown()


def test_it_adds_reads_and_counts_its_requests(worker):
    assert [worker.push([1, 2], ONES), worker.push([1, 2], 2 * ONES)] == [0, 1]
    out = np.zeros(4, np.float32)
    assert worker.pull([1, 2], out) == 2
    worker.wait(2)
    assert out.tolist() == [3.0] * 4
    worker.wait(0)
    worker.wait(2)  # what has ended well may be waited for again


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        (lambda kv: kv.push([2, 1], ONES), r"keys\[1\]=1 comes after 2; sort"),
        (lambda kv: kv.push([1, 2, 2, 3], ONES), r"keys\[2\]=2 comes twice"),
        (lambda kv: kv.push([], ONES), "keys is empty"),
        (lambda kv: kv.push(5, ONES), "keys=5; give a list"),
        (lambda kv: kv.push("12", ONES), "keys='12'; give a list"),
        (lambda kv: kv.push([1.5], ONES), r"keys\[0\]=1\.5; give an integer"),
        (lambda kv: kv.push([-1], ONES), r"keys\[0\]=-1 is out of range"),
        (lambda kv: kv.push([2**64], ONES), "is out of range; give 0 to 18446744073709551615"),
        (lambda kv: kv.push([1, 2, 3], ONES), "values has 4 elements, which 3 keys cannot share"),
        (lambda kv: kv.push([1, 2], ONES, [4]), "lens has 1 entries for 2 keys"),
        (lambda kv: kv.push([1, 2], ONES, [1, 2]), "lens sum up to 3, and values has 4"),
        (lambda kv: kv.pull([1, 2], ONES, [0, 4]), r"lens\[0\]=0 is out of range"),
        (lambda kv: kv.pull([1, 2], ONES, 2), "lens=2; give a list"),
        (lambda kv: kv.push([1], np.ones((2, 2))), r"values: its shape \[2, 2\] is not flat"),
        (lambda kv: kv.pull([1], np.ones(())), r"out: its shape \[\] is not flat"),
        (lambda kv: kv.push([1], np.ones(0)), r"values: its shape \[0\] has no elements"),
        (lambda kv: kv.push([1], [1.0]), "values: list is not a buffer"),
        (lambda kv: kv.pull([1], bytes(4)), "out: the buffer is read-only"),
        (lambda kv: kv.push_pull([1], bytes(4)), "values: the buffer is read-only"),
        (lambda kv: kv.push_pull([1], ONES, np.ones(4)), r"out is float64 \[4\], values float32 \[4\]"),
        (lambda kv: kv.push_pull([1], ONES[:3], ONES[1:]), "values and out overlap"),
        (lambda kv: kv.push([1], ONES, priority="high"), "priority='high'"),
        (lambda kv: kv.wait(0), "timestamp=0 is not of this KVWorker; it has returned none"),
        (lambda kv: kv.wait(-1), "timestamp=-1 is out of range"),
        (lambda kv: kv.wait("first"), "timestamp='first'"),
        (lambda kv: kv.wait(kv.push([1], ONES) + 1), "timestamp=1 is not of this KVWorker; it has returned 0 to 0"),
        (lambda kv: kv.wait(kv.push([1], ONES), timeout=-1), "timeout=-1"),
        (lambda _: gradlane.KVWorker("model"), "app='model'"),
        (lambda _: gradlane.KVWorker(-1), "app=-1"),
        (lambda _: gradlane.KVWorker(timeout="x"), "timeout='x'"),
    ],
)
def test_a_wrong_argument_is_named(worker, use, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        use(worker)


def test_another_length_or_type_of_a_key_changes_none_of_the_keys(worker):
    worker.push([1, 2], ONES)
    for keys, values, field, told in [
        ([1, 3], np.ones(6, np.float32), "shape", r"key 1 is float32 \[3\] here, .* float32 \[2\]"),
        ([0, 2], np.ones(4), "dtype", r"key 2 is float64 \[2\]"),
    ]:
        with pytest.raises(MismatchError, match=told) as caught:
            worker.push(keys, values)
        assert caught.value.field == field
    out = np.zeros(8, np.float32)
    worker.wait(worker.pull([0, 1, 2, 3], out))
    assert out.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


def test_values_may_be_any_flat_buffer(worker):
    worker.wait(worker.push([7], b"\1\2\3"))
    out = bytearray(3)
    worker.wait(worker.pull([7], out))
    assert out == b"\1\2\3"
    worker.wait(worker.push(np.array([8, 9], np.uint64), memoryview(ONES)))


def test_requests_that_nobody_waits_for_leave_nothing_behind(worker):
    for _ in range(3 * kv.OPEN_MAX):
        worker.push([1], ONES)
    assert len(worker._open) <= kv.OPEN_MAX
    worker.wait(0)
    out = np.zeros(4, np.float32)
    worker.wait(worker.pull([1], out))
    assert out.tolist() == [3.0 * kv.OPEN_MAX] * 4
    worker.push([1], ONES)
    assert len(worker._open) <= 1 and not worker._failed


def test_errors_are_told_at_each_wait_until_many_others_have_failed(worker):
    # Another one has made the key a vector of three.
    gradlane.parameters.init("kv/0/1", np.ones(3, np.float32))
    failed = failing(worker)
    for _ in range(2):
        with pytest.raises(MismatchError, match="kv/0/1"):
            worker.wait(failed)
    for _ in range(kv.FAILED_MAX):
        failing(worker)
    latest = failing(worker)
    with pytest.raises(MismatchError, match="kv/0/1"):
        worker.wait(latest)
    with pytest.raises(FailedPreconditionError, match=f"timestamp {failed} may have failed"):
        worker.wait(failed)
    assert len(worker._failed) <= kv.FAILED_MAX and not worker._open


def failing(worker):
    return worker.push([1], ONES)


def test_a_key_whose_name_has_ended_fails_once_and_begins_anew(worker):
    worker.wait(worker.push([1, 2], ONES))
    gradlane.undeclare("kv/0/1")
    with pytest.raises(FailedPreconditionError, match="kv/0/1"):
        worker.wait(worker.push([1], ONES[:2]))
    worker.wait(worker.push([1], ONES[:2]))
    out = np.zeros(4, np.float32)
    worker.wait(worker.pull([1, 2], out))
    assert out.tolist() == [1.0] * 4


def test_threads_that_wait_for_one_request_all_return(worker):
    timestamp, returned = worker.push([1], ONES), []
    threads = [threading.Thread(target=lambda: returned.append(worker.wait(timestamp))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(returned) == 8


def test_before_init_and_after_shutdown_it_says_to_call_init():
    worker = gradlane.KVWorker()
    for _ in range(2):
        with pytest.raises(gradlane.NotInitializedError, match=r"init\(\)"):
            worker.push([1], ONES)
        gradlane.init()
        # All keys are new in another job, and may have another length.
        worker.wait(worker.push([1], np.ones(worker._next + 1)))
        gradlane.shutdown()
    worker.wait(1)


def test_a_forked_child_is_refused_also_if_a_thread_of_the_parent_pushes_meanwhile():
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import gradlane, numpy as np
from children import fork, refused

gradlane.init()
worker = gradlane.KVWorker()
worker.push([1], np.ones(2))

def child():
    refused(lambda: worker.push([1], np.ones(2)))
    refused(lambda: worker.wait(0))

with worker._lock:
    fork(child)
worker.wait(0)
print("waited")
"""
    ended = run_python(script)
    assert (ended.code, ended.output.strip()) == (0, "waited"), ended.output
