"""Contributions with a NaN or an infinity that stay on devices, which look themselves: over stand-ins."""

import ctypes

import gradlane
import numpy as np
import pytest
from fakecuda import LAG_SECONDS, LIBRARY, NCCL_LIBRARY, Array, Graph, Tensor, counter, produce, user_stream

SETTINGS = {"cuda_lib": LIBRARY, "nccl_lib": NCCL_LIBRARY}
ERROR, WARN = (SETTINGS | {"nan_check": what} for what in ("error", "warn"))
TWO_DEVICES, FOUR_DEVICES = ({"FAKECUDA_DEVICES": count} for count in "24")
SWITCHES = {"pcie_switch_size": "2", "reduce_roots": "0,2,3"}
pytestmark = [pytest.mark.workers(2, settings=ERROR, env=TWO_DEVICES), pytest.mark.over("local")]

LEN = 100_003
FLOATS = ["float16", "bfloat16", "float32", "float64"]
SPECIAL = {"float16": np.nan, "bfloat16": np.inf, "float32": -np.inf, "float64": np.nan}


def there(dtype="float32", special=None, *, at=54_321, length=LEN, device=None):
    """Ones on this worker's device, which its stream is still to write, with a special number among them."""
    values = np.ones(length, np.float32)
    if special is not None:
        values[at] = special
    device = gradlane.rank() if device is None else device
    stream = user_stream(device, LAG_SECONDS)
    if dtype == "bfloat16":
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return Tensor(bits, device=device, stream=stream, is_bfloat16=True)
    return Array(values.astype(dtype), device=device, stream=stream)


def seen(array):
    """The numbers of an array, as a stream sees them that waited for nothing."""
    if isinstance(array, Tensor):
        bits = array.array.seen_by(user_stream(array.array.device))
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return array.seen_by(user_stream(array.device))


def spoils(special, rank=1):
    """The special number on that worker, and none on the others."""
    return special if gradlane.rank() == rank else None


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_error_names_tensor_worker_and_round_to_all_workers_and_the_next_round_is_whole(dtype):
    name = f"checked {dtype}"
    for _ in range(2):
        gradlane.push_pull(there(dtype), name)
    before = gradlane.metrics()
    array = there(dtype, spoils(SPECIAL[dtype]), at=LEN - 1)
    with pytest.raises(gradlane.NotFiniteError, match=f"{name}.*round 2: what worker 1 contributes has") as caught:
        gradlane.push_pull(array, name, op=gradlane.Sum)
    assert (caught.value.tensor, caught.value.round, caught.value.worker) == (name, 2, "worker 1")
    after = gradlane.metrics()
    assert after["not_finite"] - before["not_finite"] == gradlane.rank()
    assert after["nccl_all_reduce_bytes"] == before["nccl_all_reduce_bytes"], "nothing was added"
    assert (seen(array)[: LEN - 1] == 1).all(), "nothing was written"
    whole = there(dtype)
    gradlane.push_pull(whole, name, op=gradlane.Sum)
    assert (seen(whole) == 2).all() and gradlane.metrics()["not_finite"] == after["not_finite"]


@pytest.mark.workers(2, settings=WARN, env=TWO_DEVICES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_warning_lets_it_pass_and_counts_it_where_it_comes_from(dtype, capfd):
    before, array = gradlane.metrics()["not_finite"], there(dtype, spoils(SPECIAL[dtype]), at=0)
    gradlane.push_pull(array, f"warned {dtype}", op=gradlane.Sum)
    result = seen(array)
    assert not np.isfinite(result[0]) and (result[1:] == 2).all()
    assert gradlane.metrics()["not_finite"] - before == gradlane.rank()
    is_told = f"warned {dtype}, round 0: what worker 1 contributes has a NaN" in capfd.readouterr().err
    assert is_told == (gradlane.rank() == 1)


def test_bits_of_broadcasts_and_integers_and_what_was_there_before_the_stream_are_not_blamed():
    before = gradlane.metrics()["not_finite"]
    bits = there("float32", spoils(np.nan))
    gradlane.broadcast(bits, 1, "bits")
    assert np.isnan(seen(bits)[54_321]), "the bits of a broadcast may be any"
    integers = Array(np.full(LEN, -1, np.int32), device=gradlane.rank())
    gradlane.push_pull(integers, "all bits are ones", op=gradlane.Max)
    assert (seen(integers) == -1).all()
    device = gradlane.rank()
    stream = user_stream(device, LAG_SECONDS)
    array = Array(np.full(LEN, np.nan, np.float32), device=device)
    array.stream = stream
    produce(stream, array.address, np.ones(LEN, np.float32).tobytes(), device)
    gradlane.push_pull(array, "late", op=gradlane.Sum)
    assert (seen(array) == 2).all(), "looked at before its stream had written it"
    assert gradlane.metrics()["not_finite"] == before


class Within(Array):
    """Some elements of an array, from one on."""

    def __init__(self, values, begin, end, *, device):
        super().__init__(values, device=device)
        self._begin, self._end = begin, end

    @property
    def __cuda_array_interface__(self):
        address = self.address + self._begin * self.dtype.itemsize
        return super().__cuda_array_interface__ | {"data": (address, False), "shape": (self._end - self._begin,)}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=str)
def test_elements_that_begin_and_end_within_words_are_looked_at_and_their_neighbours_are_not(dtype):
    for begin in range(1, 5):
        for length in (0, 1, 2, 3, 6, 9):
            values = np.full(16, np.nan, dtype)
            values[begin : begin + length] = 1
            name = f"{dtype} {begin} {length}"
            array = Within(values, begin, begin + length, device=gradlane.rank())
            gradlane.push_pull(array, name, op=gradlane.Sum)
            if length == 0:
                continue
            if gradlane.rank() == 1:
                ctypes.memmove(array.address, np.full(16, np.inf, dtype).ctypes.data, (begin + 1) * values.itemsize)
            with pytest.raises(gradlane.NotFiniteError, match="worker 1"):
                gradlane.push_pull(array, name, op=gradlane.Sum)


def test_of_tensors_in_one_call_those_that_share_a_part_fail_and_the_others_are_summed():
    sizes = [100, 1, 3, 2_000_000]
    arrays = [there(length=size) for size in sizes]
    gradlane.grouped_push_pull(arrays, "group", op=gradlane.Sum)
    assert all((seen(array) == 2).all() for array in arrays)
    arrays = [there(special=spoils(np.nan) if size == 3 else None, at=1, length=size) for size in sizes]
    with pytest.raises(gradlane.NotFiniteError, match=r"group\.2.*round 1: what worker 1") as caught:
        gradlane.grouped_push_pull(arrays, "group", op=gradlane.Sum)
    assert "group.3" not in caught.value.tensor
    assert (seen(arrays[3]) == 2).all(), "in parts of its own"


def test_a_process_set_of_one_machine_looks_too():
    name, pair = "of a set", gradlane.ProcessSet([0, 1])
    with pytest.raises(gradlane.NotFiniteError, match="what worker 0 contributes has a NaN"):
        gradlane.push_pull(there(special=spoils(np.nan, rank=0)), name, op=gradlane.Sum, process_set=pair)
    array = there()
    gradlane.push_pull(array, name, op=gradlane.Sum, process_set=pair)
    assert (seen(array) == 2).all()


@pytest.mark.workers(4, settings=ERROR | SWITCHES, env=FOUR_DEVICES)
def test_devices_behind_two_switches_look_before_they_reduce():
    with pytest.raises(gradlane.NotFiniteError, match="switches.*round 0: what worker 3 contributes has a NaN"):
        gradlane.push_pull(there(special=spoils(np.inf, rank=3)), "switches", op=gradlane.Sum)
    array = there()
    gradlane.push_pull(array, "switches", op=gradlane.Sum)
    assert (seen(array) == 4).all()


@pytest.mark.over("shm", "quic")
@pytest.mark.workers(4, servers=1, settings=ERROR | {"local_reduce": "auto"}, env=FOUR_DEVICES, machines="aabb")
@pytest.mark.parametrize("codec", ["none", "bf16"])
def test_devices_of_several_machines_look_before_they_reduce_and_name_the_worker(codec):
    name, compression = f"machines {codec}", getattr(gradlane.Compression, codec)
    with pytest.raises(gradlane.NotFiniteError, match=f"{name}.*round 0: what worker 2 contributes has a NaN"):
        gradlane.push_pull(there(special=spoils(np.nan, rank=2)), name, op=gradlane.Sum, compression=compression)
    array = there()
    gradlane.push_pull(array, name, op=gradlane.Sum, compression=compression)
    assert (seen(array) == 4).all()


@pytest.mark.workers(2, settings=ERROR | {"step_timeout": "2s", "stall_warn": "1s"}, env=TWO_DEVICES)
def test_the_time_of_a_sum_begins_when_the_devices_have_come_to_it():
    device = gradlane.rank()
    array = Array(np.ones(LEN, np.float32), device=device, stream=user_stream(device, 5.0))
    gradlane.push_pull(array, "after a long kernel", op=gradlane.Sum)
    assert (seen(array) == 2).all()


def test_a_look_does_not_disturb_a_graph_that_is_captured_and_a_tensor_of_it_is_refused():
    device, array = gradlane.rank(), there()
    stream = user_stream(device)
    captured = Array(np.ones(5, np.float32), device=device, stream=stream)
    graph = Graph(device)
    with graph.capturing(stream):
        gradlane.push_pull(array, "beside a capture", op=gradlane.Sum)
        with pytest.raises(gradlane.errors.FailedPreconditionError, match="captur.*outside"):
            gradlane.push_pull(captured, "captured")
    graph.launch(stream)
    assert (seen(array) == 2).all()


@pytest.mark.workers(2, settings=ERROR, env=TWO_DEVICES | {"FAKECUDA_CAPABILITY": "5.2"})
def test_a_device_that_cannot_look_is_named_to_all_workers():
    with pytest.raises(gradlane.errors.FailedPreconditionError, match="compute capability 5.2"):
        gradlane.push_pull(there(), "too old", op=gradlane.Sum)


@pytest.mark.workers(2, settings=SETTINGS, env=TWO_DEVICES)
def test_without_the_setting_no_kernel_runs_and_nothing_is_blamed():
    device = gradlane.rank()
    before, array = counter("kernels", device), there(special=spoils(np.nan))
    gradlane.push_pull(array, "passes", op=gradlane.Sum)
    assert np.isnan(seen(array)[54_321]) and gradlane.metrics()["not_finite"] == 0
    assert counter("kernels", device) == before
