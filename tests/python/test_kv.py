"""`KVWorker`: keys and values on servers, as workers of ps-lite use them."""

import os
import threading

import gradlane
import numpy as np
import pytest
from gradlane import MismatchError

pytestmark = [pytest.mark.workers(2, 3, servers=2), pytest.mark.over("local", "shm", "quic")]

THREADS = 8
PUSHES = int(os.environ.get("KV_PUSHES", "100"))
"""Of each thread; `KV_PUSHES=1000 pytest tests/python/test_kv.py -k threads` makes as many as the promise says."""

KEYS = [3, 17, 2**63, 2**64 - 1]


def read(kv, keys, length, lens=None, dtype=np.float32):
    out = np.full(length, 99, dtype)
    kv.wait(kv.pull(keys, out, lens))
    return out.tolist()


def test_pushes_of_all_workers_add_up_and_a_new_key_begins_at_zero():
    kv, size = gradlane.KVWorker(app=1), gradlane.size()
    assert read(kv, KEYS, 8) == [0] * 8
    gradlane.barrier("all have read zeros")
    for _ in range(5):
        kv.wait(kv.push(KEYS, np.arange(8, dtype=np.float32)))
    gradlane.barrier("all have pushed")
    assert read(kv, KEYS, 8) == [5.0 * size * i for i in range(8)]
    assert read(kv, [17], 2) == [5.0 * size * 2, 5.0 * size * 3], "some of the keys"


def test_a_worker_sees_its_pushes_without_waiting_between():
    kv = gradlane.KVWorker(app=10 + gradlane.rank())
    for i in range(10):
        kv.push(KEYS, np.full(4, 2.0**i, np.float32))
    assert read(kv, KEYS, 4) == [1023.0] * 4


def test_each_key_has_a_length_of_its_own():
    kv, size = gradlane.KVWorker(app=2), gradlane.size()
    kv.wait(kv.push(KEYS, np.arange(10, dtype=np.float64), lens=[1, 4, 2, 3]))
    gradlane.barrier("all lengths pushed")
    assert read(kv, KEYS, 10, [1, 4, 2, 3], np.float64) == [size * float(i) for i in range(10)]
    assert read(kv, KEYS[1:2], 4, dtype=np.float64) == [size * float(i) for i in range(1, 5)]


def test_push_pull_reads_what_it_has_made_in_one_exchange():
    kv = gradlane.KVWorker(app=3)
    seen, one = [], np.ones(1, np.int64)
    for _ in range(20):
        out = np.zeros(1, np.int64)
        kv.wait(kv.push_pull([0], one, out))
        assert one[0] == 1
        seen.append(out[0])
    in_place = np.ones(1, np.int64)
    kv.wait(kv.push_pull([0], in_place))
    seen.append(in_place[0])
    everyone = np.concatenate(gradlane.allgather(np.array(seen)))
    assert sorted(everyone) == list(range(1, 21 * gradlane.size() + 1)), "no two changes read the same"


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int32", "int64", "uint8"])
def test_values_are_of_any_type_that_parameters_have(dtype):
    kv, size = gradlane.KVWorker(app=4), gradlane.size()
    key = ["float16", "float64", "int8", "int32", "int64", "uint8"].index(dtype)
    kv.wait(kv.push([key], np.array([1, 2], dtype)))
    gradlane.barrier(f"pushed {dtype}")
    assert read(kv, [key], 2, dtype=dtype) == [size, 2 * size]


def test_a_large_value_is_cut_into_parts():
    kv, size, length = gradlane.KVWorker(app=5), gradlane.size(), 3 << 20
    kv.wait(kv.push([1, 2], np.ones(2 * length, np.float32)))
    gradlane.barrier("both are large")
    assert read(kv, [2], length) == [size] * length


def test_threads_of_all_workers_share_it_and_each_push_counts_once():
    kv, keys, failures = gradlane.KVWorker(app=6), [1, 2, 3], []

    def push(number):
        try:
            change = np.array([1, number, 1000], np.float64)
            for step in range(PUSHES):
                timestamp = kv.push(keys, change)
                if step % 10 == number:
                    kv.wait(timestamp)
            kv.wait(timestamp)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=push, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    gradlane.barrier("all threads of all workers have pushed")
    times = PUSHES * gradlane.size()
    assert read(kv, keys, 3, dtype=np.float64) == [THREADS * times, sum(range(THREADS)) * times, 1000 * THREADS * times]


def test_another_length_or_type_of_a_key_is_told_to_all_who_use_it():
    kv, rank = gradlane.KVWorker(app=7), gradlane.rank()
    if rank == 0:
        kv.wait(kv.push([5, 6], np.ones(4, np.float32)))
    gradlane.barrier("worker 0 was first")
    if rank == 1:
        for wrong, told in ((np.ones(3, np.float32), r"shape \[2\], worker 1 has shape \[3\]"), (np.ones(2), "kv/7/5")):
            timestamp = kv.push([5], wrong)
            for _ in range(2):
                with pytest.raises(MismatchError, match=told):
                    kv.wait(timestamp)
    gradlane.barrier("worker 1 was refused")
    with pytest.raises(MismatchError, match=r"kv/7/5: worker 0 has shape \[2\]"):
        read(kv, [5], 2)
    assert read(kv, [6], 2) == [1.0, 1.0], "other keys go on"


def test_what_was_pushed_may_be_changed_and_pushed_again_at_once():
    kv = gradlane.KVWorker(app=40 + gradlane.rank())
    change, out = np.empty(100_000, np.float32), np.empty(100_000, np.float32)
    for i in range(10):
        change.fill(2.0**i)
        kv.push([1], change)
        kv.push([1], change)
    read = kv.push_pull([1], change, out)
    change.fill(-1)
    kv.wait(kv.pull([1], change))
    kv.wait(read)
    assert (change == 2 * 1023 + 512).all() and (out == change).all()


def test_apps_have_keys_of_their_own():
    kvs = [gradlane.KVWorker(app=20), gradlane.KVWorker(app=21)]
    for kv, value in zip(kvs, (1.0, 2.0), strict=True):
        kv.wait(kv.push([0], np.full(1, value)))
    gradlane.barrier("both apps")
    assert [read(kv, [0], 1, dtype=np.float64) for kv in kvs] == [[gradlane.size()], [2.0 * gradlane.size()]]


def test_tensors_of_pytorch_are_used_where_they_are():
    torch = pytest.importorskip("torch")
    kv = gradlane.KVWorker(app=30 + gradlane.rank())
    kv.wait(kv.push([1, 2], torch.arange(4, dtype=torch.bfloat16)))
    out = torch.zeros(4, dtype=torch.bfloat16)
    kv.wait(kv.pull([1, 2], out))
    assert out.tolist() == [0, 1, 2, 3]
