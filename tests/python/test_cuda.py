"""Arrays on CUDA devices, over a driver that is not one: what is read when, where results land, and what is refused.

The driver has real streams, events and asynchronous copies, so an order that nobody asked for shows; it has no real
kernels and no bandwidth.
"""

import ctypes
import gc
import weakref

import gradlane
import numpy as np
import pytest
from fakecuda import LAG_SECONDS, LIBRARY, Array, Tensor, call, counter, in_context, user_stream
from gradlane import InvalidArgumentError, parameters

pytestmark = [
    pytest.mark.workers(2, settings={"cuda_lib": LIBRARY}, env={"FAKECUDA_DEVICES": "2"}),
    pytest.mark.over("shm", "quic"),
]
two_servers = pytest.mark.workers(2, servers=2, settings={"cuda_lib": LIBRARY, "partition_bytes": "64KiB"})

COUNT = 40_000


def counting(dtype, rank):
    """Small integers, whose sums are exact in every element type; those of the two workers differ."""
    return ((np.arange(COUNT) % 50) * (rank + 1)).astype(dtype)


TOTAL = 3
"""Sum of the ranks plus one."""


def expected(dtype):
    return ((np.arange(COUNT) % 50) * TOTAL).astype(dtype)


def copied():
    """Bytes that the engine copied from devices and to them."""
    metrics = gradlane.metrics()
    return [metrics["d2h_bytes"], metrics["h2d_bytes"]]


def bfloat16(values):
    """The bits of small integers, which bfloat16 holds exactly: the upper half of those of float32."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32, np.int64, np.uint8], ids=str)
def test_an_array_is_summed_in_place_after_what_its_stream_was_still_to_write(dtype):
    stream = user_stream(lag_seconds=LAG_SECONDS)
    array = Array(counting(dtype, gradlane.rank()), stream=stream)
    before = copied()
    assert gradlane.push_pull(array, f"in place {dtype}", op=gradlane.Sum) is array
    assert (array.seen_by(user_stream()) == expected(dtype)).all(), "in a stream that waited for nothing"
    assert [after - was for after, was in zip(copied(), before, strict=True)] == [array.size, array.size]


@pytest.mark.workers(2, servers=1, settings={"cuda_lib": LIBRARY, "nan_check": "error"})
@pytest.mark.parametrize("codec", ["bf16", "int8", "onebit"])
def test_an_array_that_its_device_could_encode_is_looked_at_if_the_job_asks_for_it(codec):
    compression, name = getattr(gradlane.Compression, codec), f"looked at {codec}"
    values = counting(np.float32, 0) + 1
    values[777] = np.inf if gradlane.rank() == 1 else 1.0
    with pytest.raises(gradlane.NotFiniteError, match="what worker 1 contributes has a NaN"):
        gradlane.push_pull(Array(values, stream=user_stream()), name, compression=compression)
    whole = Array(np.ones(COUNT, np.float32), stream=user_stream())
    gradlane.push_pull(whole, name, op=gradlane.Sum, compression=compression)
    assert (whole.seen_by(user_stream()) == 2).all()


@two_servers
def test_sums_of_many_parts_from_two_servers_are_exact():
    stream = user_stream(lag_seconds=LAG_SECONDS)
    for number in range(3):
        array = Array(counting(np.float32, gradlane.rank()), stream=stream)
        gradlane.push_pull(array, f"many parts {number % 2}", op=gradlane.Sum)
        assert (array.seen_by(user_stream()) == expected(np.float32)).all()


@two_servers
def test_a_parameter_is_changed_and_read_in_memory_of_a_device():
    name = f"parameter of {gradlane.rank()}"
    value = counting(np.float32, 0)
    stream = user_stream(lag_seconds=LAG_SECONDS)
    assert parameters.init(name, Array(value, stream=stream)) == 1
    change, out = Array(value, stream=stream), Array(np.zeros_like(value), stream=stream)
    assert parameters.push(name, change) == 2
    assert parameters.push_pull(name, change, out) == 3
    assert (out.seen_by(user_stream()) == 3 * value).all() and (change.seen_by(user_stream()) == value).all()
    assert parameters.push_pull(name, change) == 4
    assert (change.seen_by(user_stream()) == 4 * value).all(), "in place"
    host = np.empty_like(value)
    assert parameters.pull(name, host) == 4 and (host == 4 * value).all()
    assert parameters.pull(name, out) == 4
    assert (out.seen_by(user_stream()) == 4 * value).all()
    with pytest.raises(InvalidArgumentError, match="out is on the host, value on cuda:0"):
        parameters.push_pull(name, change, host)


@pytest.mark.workers(
    2, settings={"cuda_lib": LIBRARY, "step_timeout": "4s", "stall_warn": "2s"}, env={"FAKECUDA_DEVICES": "2"}
)
@pytest.mark.over("quic")
def test_work_of_a_device_before_an_operation_may_take_longer_than_a_healthy_engine_is_waited_for():
    """The engine is given up 18 s after it got the data."""
    array = Array(counting(np.float32, gradlane.rank()), stream=user_stream(lag_seconds=21.0))
    gradlane.push_pull_async(array, "after a long kernel", op=gradlane.Sum).wait()
    assert (array.seen_by(user_stream()) == expected(np.float32)).all()


def test_an_array_that_names_no_stream_is_read_at_once():
    """What a wait that is missing looks like: the tests beside this one would see it."""
    # A first operation of this size allocates memory, which waits for the device.
    gradlane.push_pull(Array(counting(np.int32, gradlane.rank()), stream=user_stream()), "before it", op=gradlane.Max)
    stream = user_stream(lag_seconds=10 * LAG_SECONDS)
    array = Array(counting(np.int32, gradlane.rank()), stream=stream)
    array.stream = None
    gradlane.push_pull(array, "not waited for", op=gradlane.Max)
    assert (array.seen_by(user_stream()) == np.frombuffer(b"\xee" * array.size, np.int32)).all()


def test_a_result_goes_to_another_array_after_what_its_stream_was_still_to_write():
    stream, late = user_stream(), user_stream(lag_seconds=LAG_SECONDS)
    source = Array(counting(np.float32, gradlane.rank()), stream=stream)
    out = Array(np.full(COUNT, -1, np.float32), stream=late)
    assert gradlane.push_pull(source, "elsewhere", op=gradlane.Sum, out=out) is out
    assert (out.seen_by(late) == expected(np.float32)).all(), "what was to be written before did not come after"
    assert (source.seen_by(stream) == counting(np.float32, gradlane.rank())).all()


@pytest.mark.parametrize("is_bfloat16", [False, True])
def test_a_dlpack_tensor_is_summed_after_what_its_producer_has_the_default_stream_wait_for(is_bfloat16):
    stream = user_stream(lag_seconds=LAG_SECONDS)
    given, sums = counting(np.float32, gradlane.rank()), expected(np.float32)
    if is_bfloat16:
        given, sums = bfloat16(given), bfloat16(sums)
    tensor = Tensor(given, stream=stream, is_bfloat16=is_bfloat16)
    gradlane.push_pull(tensor, f"dlpack {is_bfloat16}", op=gradlane.Sum)
    assert (tensor.array.seen_by(user_stream()) == sums).all()


def test_the_average_of_an_array_on_the_second_device_stays_there():
    before = counter("bytes_d2h", 1), counter("bytes_h2d", 1)
    array = Array(counting(np.float32, gradlane.rank()), device=1)
    gradlane.push_pull(array, "second device")
    assert (counter("bytes_d2h", 1) - before[0], counter("bytes_h2d", 1) - before[1]) == (array.size, array.size)
    assert (array.seen_by(user_stream(1)) == expected(np.float32) / 2).all()


def test_a_broadcast_keeps_the_bits_of_the_root():
    bits = np.array([0x7FC00001, 0x80000000, 5], np.uint32).view(np.float32)  # a NaN with a payload, -0.0
    array = Array(bits if gradlane.rank() == 1 else np.zeros(3, np.float32), stream=user_stream())
    gradlane.broadcast(array, root_rank=1, name="bits")
    assert (array.seen_by(user_stream()).view(np.uint32) == bits.view(np.uint32)).all()


def test_a_group_may_lie_on_two_devices_and_on_the_host():
    def made(index):
        values = np.full(index * 100 + 1, index + gradlane.rank(), np.float32)
        if index % 3 == 2:
            return values
        device = index % 3
        return Array(values, device=device, stream=user_stream(device, LAG_SECONDS))

    arrays = [made(index) for index in range(9)]
    gradlane.declare({f"mixed.{index}": array for index, array in enumerate(arrays)})
    for number in range(2):
        assert gradlane.grouped_push_pull(arrays, "mixed", op=gradlane.Sum) == arrays
        for index, array in enumerate(arrays):
            seen = array if isinstance(array, np.ndarray) else array.seen_by(user_stream(array.device))
            assert (seen == (2 * index + 1) * 2**number).all(), index


def test_small_arrays_of_a_group_share_messages_each_device_among_its_own():
    arrays = [Array(np.full(10, index, np.int32), device=index % 2) for index in range(200)]
    gradlane.grouped_push_pull(arrays, "shared", op=gradlane.Sum)
    before = gradlane.metrics()["pushes"]
    results = [Array(np.zeros(10, np.int32), device=index % 2) for index in range(200)]
    assert gradlane.grouped_push_pull(arrays, "shared", op=gradlane.Sum, out=results) == results
    assert gradlane.metrics()["pushes"] - before <= 4
    for index, (array, result) in enumerate(zip(arrays, results, strict=True)):
        stream = user_stream(array.device)
        assert (array.seen_by(stream) == 2 * index).all() and (result.seen_by(stream) == 4 * index).all()


def test_an_array_is_held_until_its_sum_has_landed():
    array = Array(counting(np.float32, gradlane.rank()), stream=user_stream(lag_seconds=LAG_SECONDS))
    handle = gradlane.push_pull_async(array, "held")
    is_held, leaked = weakref.ref(array), counter("released_in_use")
    handle = handle.then(lambda _: None)
    del array
    gc.collect()
    assert is_held() is not None
    handle.wait()
    gradlane.metrics()  # a thread of Python comes by, and lets it go
    del handle
    gc.collect()
    assert is_held() is None and counter("released_in_use") == leaked


def test_an_array_whose_stream_is_captured_into_a_graph_is_refused():
    array = Array(counting(np.float32, 0), stream=user_stream())
    call("cuStreamBeginCapture_v2", ctypes.c_size_t(array.stream), 2)
    with pytest.raises(gradlane.errors.FailedPreconditionError, match="captur.*outside"):
        gradlane.push_pull(array, "captured")


def test_the_default_stream_is_refused_while_a_stream_is_captured_that_it_would_wait_for():
    blocking, array, graph = ctypes.c_size_t(), Array(counting(np.float32, 0), device=1), ctypes.c_size_t()
    array.stream = 1  # the default one, in the words of the protocol
    in_context(1, "cuStreamCreate", ctypes.byref(blocking), 0)
    in_context(1, "cuStreamBeginCapture_v2", blocking, 1)
    with pytest.raises(gradlane.errors.FailedPreconditionError, match="captur.*outside"):
        gradlane.push_pull(array, "beside a capture")
    # Asking has not broken it.
    in_context(1, "cuStreamEndCapture", blocking, ctypes.byref(graph))
    gradlane.push_pull(array, "behind a capture", op=gradlane.Sum)


def test_a_device_that_does_not_exist_is_refused_by_its_number():
    array = Array(counting(np.float32, 0), stream=user_stream())
    array.device = 7
    try:
        with pytest.raises(gradlane.InvalidArgumentError, match="cuda:7 .*cuda:1"):
            gradlane.push_pull(array, "nowhere")
    finally:
        array.device = 0


@pytest.mark.workers(2, settings={"cuda_lib": LIBRARY}, alone=True)
def test_a_fault_of_a_device_is_an_error_that_names_it_on_every_worker():
    array = Array(counting(np.float32, 0), stream=user_stream(lag_seconds=LAG_SECONDS))
    handle = gradlane.push_pull_async(array, "faulty", timeout=10.0)
    if gradlane.rank() == 0:
        call("fakecuda_fail_device", 0, 719)
    with pytest.raises(gradlane.Error, match="cuda:0.*719"):
        handle.wait()
    if gradlane.rank() == 0:
        call("fakecuda_fail_device", 0, 0)
