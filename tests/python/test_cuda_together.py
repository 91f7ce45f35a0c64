"""Workers of one machine that reduce their devices by NCCL among themselves: over libraries that are neither."""

import os
import time
import weakref

import gradlane
import numpy as np
import pytest
from conftest import record_as_passed
from fakecuda import LAG_SECONDS, LIBRARY, NCCL_LIBRARY, Array, closed_gate, counter, let_engine_give_back, user_stream

SETTINGS = {"cuda_lib": LIBRARY, "nccl_lib": NCCL_LIBRARY}
pytestmark = [
    pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "2"}),
    pytest.mark.over("local"),
]

SWITCHES = SETTINGS | {"pcie_switch_size": "2", "reduce_roots": "0,2,3"}
"""Four workers behind two switches; of the first two only one may hold what they reduce."""

COUNT = 100_000


def mine(dtype=np.float32, lag_seconds=LAG_SECONDS):
    """An array on this worker's device that its stream is still to write."""
    device = gradlane.rank()
    values = ((np.arange(COUNT) % 50) * (device + 1)).astype(dtype)
    return Array(values, device=device, stream=user_stream(device, lag_seconds))


def seen(array):
    return array.seen_by(user_stream(array.device))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64], ids=str)
def test_sums_are_exact_and_ask_no_server(dtype):
    before = gradlane.metrics()
    for _ in range(2):
        array = mine(dtype)
        gradlane.push_pull(array, f"sum {dtype}", op=gradlane.Sum)
        assert (seen(array) == ((np.arange(COUNT) % 50) * 3).astype(dtype)).all()
    after = gradlane.metrics()
    assert after["pushes"] == before["pushes"] and after["local_sums"] > before["local_sums"]


@pytest.mark.workers(
    2, settings=SETTINGS | {"step_timeout": "2s", "stall_warn": "1s"}, env={"FAKECUDA_DEVICES": "2"}
)
def test_the_time_of_an_operation_begins_when_the_devices_have_come_to_it():
    array = mine(lag_seconds=5.0)
    gradlane.push_pull(array, "after a long kernel", op=gradlane.Sum)
    assert (seen(array) == (np.arange(COUNT) % 50) * 3).all()


def test_averages_and_the_largest_go_to_another_array():
    source, out = mine(), Array(np.zeros(COUNT, np.float32), device=gradlane.rank())
    gradlane.push_pull(source, "average", out=out)
    assert (seen(out) == (np.arange(COUNT) % 50) * 1.5).all()
    gradlane.push_pull(source, "largest", op=gradlane.Max, out=out)
    assert (seen(out) == (np.arange(COUNT) % 50) * 2).all()
    assert (seen(source) == (np.arange(COUNT) % 50) * (gradlane.rank() + 1)).all()


def test_arrays_of_the_host_and_of_devices_are_reduced_side_by_side():
    arrays = [np.full(1000 * i + 1, i, np.int32) if i % 2 else mine(np.int32, 0.0) for i in range(8)]
    handles = [gradlane.push_pull_async(array, f"beside.{i}", op=gradlane.Sum) for i, array in enumerate(arrays)]
    for i, (array, handle) in enumerate(zip(arrays, handles, strict=True)):
        handle.wait()
        assert (array == 2 * i).all() if i % 2 else (seen(array) == (np.arange(COUNT) % 50) * 3).all()


def test_workers_that_disagree_where_a_tensor_lies_hear_of_both():
    array = mine() if gradlane.rank() else np.zeros(COUNT, np.float32)
    with pytest.raises(gradlane.MismatchError, match="device") as raised:
        gradlane.push_pull(array, "here and there")
    assert raised.value.fields["field"] == "device"


@pytest.mark.workers(4, settings=SWITCHES, env={"FAKECUDA_DEVICES": "4"})
@pytest.mark.parametrize("op", [gradlane.Sum, gradlane.Average], ids=str)
def test_devices_behind_two_switches_are_added_on_the_host(op):
    before = gradlane.metrics()
    array = mine(np.float32)
    gradlane.push_pull(array, f"switches {op}", op=op)
    assert (seen(array) == (np.arange(COUNT) % 50) * (10 if op == gradlane.Sum else 2.5)).all()
    after = gradlane.metrics()
    staged = after["d2h_bytes"] - before["d2h_bytes"]
    assert (staged == array.size) if gradlane.rank() == 0 else (staged == 0) if gradlane.rank() == 1 else staged >= 0
    assert after["pushes"] == before["pushes"]


@pytest.mark.over("shm", "quic")
@pytest.mark.workers(
    4, settings=SWITCHES | {"local_reduce": "auto"}, env={"FAKECUDA_DEVICES": "4"}, machines="aabb"
)
def test_every_machine_of_several_exchanges_what_it_reduced():
    array = mine(np.float32)
    gradlane.push_pull(array, "machines", op=gradlane.Sum)
    assert (seen(array) == (np.arange(COUNT) % 50) * 10).all()


@pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "4"})
def test_workers_with_two_devices_each_reduce_on_both():
    for number in range(4):
        device = 2 * gradlane.rank() + number % 2
        values = np.full(COUNT, gradlane.rank() + 1 + number, np.int32)
        array = Array(values, device=device, stream=user_stream(device, LAG_SECONDS))
        gradlane.push_pull(array, f"on both {number}", op=gradlane.Sum)
        assert (seen(array) == 3 + 2 * number).all()


@pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "2", "NCCL_COMM_BLOCKING": "1"}, alone=True)
def test_an_environment_that_makes_nccl_wait_in_its_calls_is_told_and_changes_no_sum(capfd):
    array = mine(np.float32)
    gradlane.push_pull(array, "blocking", op=gradlane.Sum)
    assert (seen(array) == (np.arange(COUNT) % 50) * 3).all()
    assert "NCCL_COMM_BLOCKING=1 is in the environment" in capfd.readouterr().err


@pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "2", "FAKECUDA_CAPABILITY": "5.2"})
def test_a_device_that_is_too_old_is_named_with_its_capability():
    array = mine(np.int32)
    gradlane.push_pull(array, "needs no kernel", op=gradlane.Sum)
    assert (seen(array) == (np.arange(COUNT) % 50) * 3).all()
    with pytest.raises(gradlane.errors.FailedPreconditionError, match="compute capability 5.2") as raised:
        gradlane.push_pull(array, "needs one", op=gradlane.Average)
    assert "6.0 or later" in str(raised.value) and "driver to" not in str(raised.value)


PATIENT = SETTINGS | {"dead_timeout": "30s"}
"""The launcher ends the survivor some time after the coordinator gave up the other one; here not while the test runs."""

HOUR_US = 3600 * 10**6
AN_ABORT_BLOCKS, AN_ABORT_ENDS = ({"FAKECUDA_DEVICES": "2", "FAKENCCL_ABORT_US": str(us)} for us in (HOUR_US, 0))


@pytest.mark.workers(2, settings=PATIENT, env=AN_ABORT_BLOCKS, alone=True)
def test_memory_that_nccl_may_still_write_is_kept_although_nobody_uses_the_array(request):
    array = lost_in_the_middle(request.node.nodeid)
    is_held, live = weakref.ref(array), counter("live_allocations")
    del array
    let_engine_give_back(lambda: is_held() is None, seconds=1.0)
    assert is_held() is not None and counter("live_allocations") == live
    gradlane.shutdown(0.0)


@pytest.mark.workers(2, settings=PATIENT, env=AN_ABORT_ENDS, alone=True)
def test_memory_is_given_back_as_soon_as_nccl_has_stopped(request):
    array = lost_in_the_middle(request.node.nodeid)
    is_held, live = weakref.ref(array), counter("live_allocations")
    del array
    let_engine_give_back(lambda: is_held() is None, seconds=20.0)
    assert is_held() is None and counter("live_allocations") == live - 1
    gradlane.shutdown(0.0)


class Kept(Array):
    """Its memory is not freed, which would wait for all work of the device."""

    def __del__(self):
        pass


STOPS_WITHOUT_FREEING, ONLY_ABORTS = (
    {"FAKECUDA_DEVICES": "2", "FAKENCCL_VERSION": version} for version in ("22809", "22605")
)


@pytest.mark.workers(2, settings=PATIENT, env=STOPS_WITHOUT_FREEING, alone=True)
def test_a_loss_is_told_and_memory_is_free_while_the_framework_uses_the_device(request):
    is_free_beside_other_work(request.node.nodeid)


@pytest.mark.workers(2, settings=PATIENT, env=ONLY_ABORTS, alone=True)
def test_the_same_with_an_nccl_that_frees_memory_to_stop(request):
    is_free_beside_other_work(request.node.nodeid)


def is_free_beside_other_work(test):
    """An abort of NCCL waits for the other work of the device here, as memory is freed for it."""
    device = gradlane.rank()
    # Loads the kernels, which waits for all work of the device too.
    before = mine(lag_seconds=0.0)
    before.__class__ = Kept
    gradlane.push_pull(before, "before", op=gradlane.Sum)
    with closed_gate(user_stream(device), device):
        array = lost(test)
        array.__class__ = Kept
        is_held = weakref.ref(array)
        del array
        let_engine_give_back(lambda: is_held() is None, seconds=20.0)
        assert is_held() is None
    gradlane.shutdown(0.0)


def lost_in_the_middle(test):
    """As `lost`, after another sum."""
    gradlane.push_pull(mine(lag_seconds=0.0), "before", op=gradlane.Sum)
    return lost(test)


def lost(test):
    """The array of a sum that was on both devices when the second worker ended without a word. The first has been told."""
    array = mine(lag_seconds=0.0)
    if gradlane.rank() == 1:
        with closed_gate(array.stream, array.device):  # so the first waits for it
            begin(array)
            record_as_passed(test)
            os._exit(0)  # as if killed, but the launcher does not end the first one for it
    handle = begin(array)
    with pytest.raises(gradlane.PeerLostError) as raised:
        handle.wait()
    assert raised.value.rank == 1
    return array


def begin(array):
    """Returns when the engines of both have put the sum on their devices."""
    handle = gradlane.push_pull_async(array, "in doubt", op=gradlane.Sum)
    while not handle.native.is_issued():
        time.sleep(0.001)
    gradlane.barrier("both are on it")
    return handle
