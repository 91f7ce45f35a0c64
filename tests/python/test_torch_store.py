"""`gradlane.torch.Store`: what PyTorch expects of a store, process groups over it, its limits, and what ends a wait."""

import os
import threading
import time
from datetime import timedelta

import gradlane.torch as gl
import pytest
import torch
import torch.distributed as dist
from conftest import record_as_passed
from gradlane.errors import InvalidArgumentError, NotInitializedError, PeerLostError, ResourceExhaustedError


pytestmark = pytest.mark.over("local", "shm", "quic")

SOON = timedelta(milliseconds=200)
VALUE_BYTES_MAX = 64 << 10

two = pytest.mark.workers(2)


def fresh(request):
    """A part of the store for one test alone."""
    return dist.PrefixStore(request.node.nodeid, gl.Store())


@two
def test_what_one_worker_puts_another_one_reads(request):
    store = fresh(request)
    if gl.rank() == 0:
        store.set("text", "v")
        store.set("bytes", b"\x00\xff")
    assert (store.get("text"), store.get("bytes")) == (b"v", b"\x00\xff")
    assert store.multi_get(["text", "bytes"]) == [b"v", b"\x00\xff"]
    gl.barrier("read")
    store.multi_set([f"{gl.rank()}", "last"], ["own", "one of two"])
    store.wait(["0", "1", "last"])
    assert store.check(["0", "1"]) and not store.check(["0", "2"])


@two
def test_a_read_waits_for_the_worker_that_is_late(request):
    store = fresh(request)
    if gl.rank() == 0:
        assert store.get("late") == b"v"
    else:
        time.sleep(0.3)
        store.set("late", "v")
    gl.barrier("late")


@two
def test_additions_and_exchanges_are_atomic(request):
    store = fresh(request)

    def work():
        for _ in range(50):
            store.add("sum", 2)
            seen = store.compare_set("chain", "", "0")
            while True:
                found = store.compare_set("chain", seen, str(int(seen) + 1))
                if found == str(int(seen) + 1).encode():
                    break
                seen = found
            store.append("letters", "ab"[gl.rank()])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gl.barrier("worked")
    assert store.add("sum", 0) == 400 and store.get("sum") == b"400"
    assert sorted(store.get("letters")) == [*b"a" * 100, *b"b" * 100]


@two
def test_keys_are_counted_listed_and_deleted(request):
    store, whole = fresh(request), gl.Store()
    prefix = request.node.nodeid
    own = f"{gl.rank()}"
    store.set(own, "v")
    store.wait(["0", "1"])
    assert [key for key in whole.list_keys() if key.startswith(prefix)] == [f"{prefix}/0", f"{prefix}/1"]
    gl.barrier("listed")
    assert store.delete_key(own) and not store.delete_key(own)
    gl.barrier("deleted")
    assert store.num_keys() == whole.num_keys() == len(whole.list_keys())
    assert not any(key.startswith(prefix) for key in whole.list_keys())
    gl.barrier("counted")


@two
def test_an_exchange_answers_as_other_stores_of_pytorch(request):
    ours, theirs = dist.PrefixStore(f"{gl.rank()}", fresh(request)), dist.HashStore()
    for arguments in [("a", "x", "y"), ("a", "", "y"), ("a", "n", "z"), ("a", "y", "z"), ("a", "y", "w")]:
        assert ours.compare_set(*arguments) == theirs.compare_set(*arguments), arguments
    assert ours.get("a") == theirs.get("a") == b"z"


@two
def test_two_prefixes_are_two_stores(request):
    one, other = (dist.PrefixStore(name, fresh(request)) for name in ("one", "other"))
    one.set("k", "1")
    other.set("k", "2")
    assert (one.get("k"), other.get("k")) == (b"1", b"2")
    gl.barrier("read")
    one.delete_key("k")
    assert other.check(["k"])


@two
def test_what_nobody_puts_ends_in_time_with_the_error_of_pytorch(request):
    store = gl.Store(timeout=SOON)
    assert store.timeout == SOON and store.clone().timeout == SOON
    began = time.monotonic()
    with pytest.raises(dist.DistStoreError, match='key "nothing" of the store, which nobody has put: not done after 0.2 s'):
        store.get("nothing")
    store.set("something", "v")
    with pytest.raises(dist.DistStoreError, match="nothing"):
        store.wait(["something", "nothing"])
    with pytest.raises(dist.DistStoreError, match="nothing"):
        dist.PrefixStore("a", gl.Store()).wait(["nothing"], SOON)
    assert time.monotonic() - began < 10
    later = gl.Store()
    assert later.timeout == timedelta(minutes=5)
    later.set_timeout(SOON)
    with pytest.raises(dist.DistStoreError):
        later.get("nothing")


@two
@pytest.mark.parametrize("backend", ["gloo", "gradlane"])
def test_a_process_group_meets_over_it(request, backend):
    dist.init_process_group(backend, store=fresh(request), rank=gl.rank(), world_size=gl.size())
    try:
        values = torch.full((5,), 1.0 + gl.rank())
        dist.all_reduce(values)
        assert values.tolist() == [3.0] * 5
        group = dist.new_group([0, 1], backend="gloo")
        dist.all_reduce(values, group=group)
        assert values.tolist() == [6.0] * 5
        dist.monitored_barrier(group, timeout=timedelta(seconds=20))
        found = [None, None]
        dist.all_gather_object(found, gl.rank(), group=group)
        assert found == [0, 1]
    finally:
        dist.destroy_process_group()


@two
def test_what_is_too_large_is_refused_to_its_worker_and_to_nobody_else(request):
    store = gl.Store()
    if gl.rank() == 0:
        with pytest.raises(ResourceExhaustedError, match='65537 bytes as the value of key "k" of the store: limit 65536'):
            store.set("k", b"v" * (VALUE_BYTES_MAX + 1))
        store.set("full", b"v" * VALUE_BYTES_MAX)
        with pytest.raises(ResourceExhaustedError, match="65537 bytes"):
            store.append("full", "v")
        for key in ("", "k" * 1025):
            with pytest.raises(InvalidArgumentError, match="key of the store|1025 bytes; use at most 1024"):
                store.set(key, "v")
        store.set("text", "abc")
        with pytest.raises(InvalidArgumentError, match='key "text" of the store, which has no number'):
            store.add("text", 1)
    store.set(f"{gl.rank()} is here", "v")
    store.wait(["0 is here", "1 is here"])


@pytest.mark.workers(2, alone=True)
def test_a_full_store_refuses_more_until_keys_are_deleted():
    store = gl.Store()
    if gl.rank() == 0:
        with pytest.raises(ResourceExhaustedError, match="limit 16777216 bytes reached; delete keys"):
            for number in range(300):
                store.set(f"flood {number}", b"v" * VALUE_BYTES_MAX)
        assert number == 255
        gl.barrier("flooded")
    else:
        gl.barrier("flooded")
        with pytest.raises(ResourceExhaustedError):
            store.set("mine", b"v" * VALUE_BYTES_MAX)
        assert store.get("flood 7") == b"v" * VALUE_BYTES_MAX
        assert store.delete_key("flood 7")
        store.set("mine", b"v" * VALUE_BYTES_MAX)
    gl.barrier("done")
    values = torch.ones(3)
    assert gl.push_pull(values, "sum", op=gl.Sum).tolist() == [2.0] * 3


@pytest.mark.workers(2, alone=True)
def test_a_read_that_waits_ends_with_the_loss_of_another_worker(request):
    store = gl.Store()
    store.set(f"{gl.rank()} is here", "v")
    store.wait(["0 is here", "1 is here"])
    if gl.rank() == 1:
        record_as_passed(request.node.nodeid)
        os._exit(0)  # as if killed, but the launcher does not end the first one for it
    with pytest.raises(PeerLostError, match="worker 1"):
        store.get("what the other one would put")


@pytest.mark.workers(3, alone=True, settings={"on_worker_loss": "continue"}, machines="abc")
def test_what_a_lost_worker_put_stays_where_the_job_goes_on(request):
    store = gl.Store()
    if gl.rank() == 1:
        store.set("left behind", "v")
        record_as_passed(request.node.nodeid)
        os._exit(0)
    assert store.get("left behind") == b"v"
    store.set(f"{gl.rank()} goes on", "v")
    store.wait(["0 goes on", "2 goes on"])


def test_a_store_needs_a_job():
    with pytest.raises(NotInitializedError, match=r"init\(\)"):
        gl.Store()


@pytest.mark.over("local")
def test_a_job_of_one_has_a_store_of_its_own(transport):
    del transport
    gl.init()
    try:
        store = gl.Store(timeout=SOON)
        store.set("a", "v")
        assert (store.get("a"), store.add("n", 3), store.num_keys()) == (b"v", 3, 2)
        with pytest.raises(dist.DistStoreError, match="not done after 0.2 s"):
            store.get("b")
        late = threading.Timer(0.2, lambda: store.set("late", "v"))
        late.start()
        store.wait(["late"], timedelta(seconds=20))
        late.join()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.destroy_process_group()
    finally:
        gl.shutdown()
    with pytest.raises(NotInitializedError):
        store.get("a")
