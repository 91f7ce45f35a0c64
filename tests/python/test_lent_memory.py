"""Memory that the engine has: its owner keeps it, and nothing else of the process is written.

In each of these tests the memory that a careless owner would free is at once used for other arrays. They must stay as
they are, and the results must be right.
"""

import array
import ctypes
import gc
import mmap
import pickle
import weakref

import gradlane
import numpy as np
import pytest
from gradlane import InvalidArgumentError, Sum

pytestmark = pytest.mark.over("local", "shm", "quic")

TIMES = 25
SCALARS = [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64]

RETURNING = {
    "push_pull": lambda value, name: gradlane.push_pull(value, name, op=Sum),
    "push_pull_async": lambda value, name: gradlane.push_pull_async(value, name, op=Sum).wait(),
    "grouped_push_pull": lambda value, name: gradlane.grouped_push_pull([np.ones(3), value], name, op=Sum)[1],
    "reduce": lambda value, name: gradlane.reduce(value, name, op=Sum),
    "broadcast": lambda value, name: gradlane.broadcast(value, 1, name),
}
"""Calls that return the result, with what they make of a value: that of rank 1 for the last, else a sum."""

SENDING = {
    "all_gather": lambda value, room, name: gradlane.all_gather(value, room, name),
    "all_to_all": lambda value, room, name: gradlane.all_to_all([value, value], room, name),
}
"""Calls that only read what they are given."""

TAKING = {
    "push_pull": lambda place: gradlane.push_pull(np.ones((), place.dtype), "refused", out=place),
    "grouped_push_pull": lambda place: gradlane.grouped_push_pull([np.ones((), place.dtype)], "refused", out=[place]),
    "reduce_scatter": lambda place: gradlane.reduce_scatter(np.ones(2, place.dtype), place, "refused"),
    "all_gather": lambda place: gradlane.all_gather(np.ones((), place.dtype), [place, place], "refused"),
    "all_to_all": lambda place: gradlane.all_to_all([np.ones((), place.dtype)] * 2, [place, place], "refused"),
    "recv": lambda place: gradlane.recv(place, 1 - gradlane.rank(), "refused"),
}
"""Calls that are told a place for the result."""


class Unrelated:
    """Arrays that take the place of whatever is freed meanwhile, of all sizes up to that of the operation."""

    def __init__(self, bytes: int = 64) -> None:
        self._arrays = [np.full(size, 0x5A, np.uint8) for size in {1, 2, 4, 8, 16, 32, 64, bytes} for _ in range(50)]

    def check(self) -> None:
        assert all((array == 0x5A).all() for array in self._arrays), "unrelated memory was written"


@pytest.mark.parametrize("call", RETURNING)
@pytest.mark.parametrize("kind", SCALARS, ids=lambda kind: kind.__name__)
@pytest.mark.workers(2)
def test_a_numpy_scalar_gives_a_new_scalar(call, kind):
    rank = gradlane.rank()
    for _ in range(TIMES):
        result = RETURNING[call](kind(rank + 3), f"{call} {kind.__name__}")
        unrelated = Unrelated()
        only_root = call == "reduce" and rank != 0
        assert result == (4 if call == "broadcast" else rank + 3 if only_root else 7)
        assert type(result) is kind
        unrelated.check()


@pytest.mark.workers(2)
def test_scalars_may_be_in_flight_by_the_hundred():
    values = [np.float32(i + gradlane.rank()) for i in range(200)]
    handles = [gradlane.push_pull_async(value, f"flight {i}", op=Sum) for i, value in enumerate(values)]
    unrelated = Unrelated()
    assert [handle.wait() for handle in handles] == [2 * i + 1 for i in range(200)]
    unrelated.check()
    assert values == [i + gradlane.rank() for i in range(200)], "a scalar never changes"


@pytest.mark.parametrize("call", SENDING)
@pytest.mark.workers(2)
def test_a_scalar_may_be_sent(call):
    for _ in range(TIMES):
        room = [np.zeros((), np.float32), np.zeros((), np.float32)]
        SENDING[call](np.float32(5 + gradlane.rank()), room, call)
        assert [place.item() for place in room] == [5.0, 6.0]


@pytest.mark.workers(2)
def test_a_scalar_may_be_a_message():
    if gradlane.rank() == 0:
        gradlane.send(np.float64(2.5), 1, "message")
    else:
        assert gradlane.recv(np.zeros(()), 0, "message") == 2.5


@pytest.mark.parametrize("call", TAKING)
@pytest.mark.workers(2)
def test_a_scalar_is_no_place_for_a_result(call):
    with pytest.raises(InvalidArgumentError, match=r"NumPy scalar \(float32\) never changes.*numpy\.array"):
        TAKING[call](np.float32(3))


@pytest.mark.workers(2)
def test_an_object_that_tells_only_an_address_is_refused():
    class Temporary:
        dtype = np.dtype(np.float32)

        @property
        def __array_interface__(self):
            return np.full(4, 1.0, np.float32).__array_interface__

    for call in RETURNING.values():
        with pytest.raises(InvalidArgumentError, match=r"Temporary tells an address .* give numpy\.array"):
            call(Temporary(), "refused")


def _resizable_array():
    values = np.zeros(1 << 16, np.uint8)
    return values, lambda: values.resize(1 << 22, refcheck=False)


BESIDE_ARRAYS = {
    "memoryview": memoryview,
    "memoryview of bytes": lambda values: memoryview(values).cast("B"),
    "memoryview of a memoryview": lambda values: memoryview(memoryview(values)),
    "memoryview of a part": lambda values: memoryview(values)[8:],
    "array of a memoryview": lambda values: np.frombuffer(memoryview(values), np.uint8),
    "part of an array of a memoryview": lambda values: np.asarray(memoryview(values))[8:],
    "array of a pickle buffer": lambda values: np.frombuffer(pickle.PickleBuffer(values), np.uint8),
    "memoryview of an array of a memoryview": lambda values: memoryview(np.asarray(memoryview(values))),
    "array of ctypes": lambda values: (ctypes.c_uint8 * values.nbytes).from_buffer(values),
    "part of a structure of ctypes": lambda values: _pair(values.nbytes // 2).from_buffer(values).second,
    "array of an array of ctypes": lambda values: np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_buffer(values)),
}
"""What has the memory of a NumPy array without being a view of it in NumPy's eyes."""


def _pair(length):
    fields = [("first", ctypes.c_uint8 * length), ("second", ctypes.c_uint8 * length)]
    return type("Pair", (ctypes.Structure,), {"_fields_": fields})


@pytest.mark.parametrize("beside", BESIDE_ARRAYS)
@pytest.mark.workers(2)
def test_an_array_cannot_be_resized_while_its_memory_is_lent_by_another_object(beside):
    values = np.zeros(1 << 16, np.uint8)
    buffer = BESIDE_ARRAYS[beside](values)
    if gradlane.rank() == 1:
        gradlane.barrier(f"{beside} was tried")  # so the operation of rank 0 cannot have ended before
    handle = gradlane.push_pull_async(buffer, beside, op=Sum)
    if gradlane.rank() == 0:
        with pytest.raises(ValueError, match="cannot resize an array"):
            values.resize(1 << 22, refcheck=False)
        gradlane.barrier(f"{beside} was tried")
    handle.wait()
    del handle, buffer
    values.resize(1 << 22, refcheck=False)


def _view_of_a_resizable_array():
    values = np.zeros((2, 1 << 15), np.uint8)
    return values[1], lambda: values.resize((2, 1 << 22), refcheck=False)


def _bytearray():
    values = bytearray(1 << 16)
    return values, lambda: values.extend(bytes(1 << 22))


def _python_array():
    values = array.array("B", bytes(1 << 16))
    return values, lambda: values.extend(bytes(1 << 22))


def _memoryview():
    memory = bytearray(1 << 16)
    view = memoryview(memory)

    def resize():
        view.release()  # the engine has a view of its own
        memory.extend(bytes(1 << 22))

    return view, resize


def _map():
    values = mmap.mmap(-1, 1 << 16)
    return values, values.close


RESIZABLE = [_resizable_array, _view_of_a_resizable_array, _bytearray, _python_array, _memoryview, _map]


@pytest.mark.parametrize("make", RESIZABLE, ids=lambda make: make.__name__[1:])
@pytest.mark.workers(2)
def test_memory_cannot_be_resized_before_the_operation_has_ended(make):
    buffer, resize = make()
    name = make.__name__
    if gradlane.rank() == 1:
        gradlane.barrier(f"{name} was tried")  # so the operation of rank 0 cannot have ended before
    handle = gradlane.push_pull_async(buffer, name, op=Sum)
    if gradlane.rank() == 0:
        with pytest.raises((BufferError, ValueError)):
            resize()
        gradlane.barrier(f"{name} was tried")
    handle.wait()
    resize()


@pytest.mark.workers(2)
def test_a_temporary_lives_until_its_operation_has_ended():
    rank = gradlane.rank()
    values = np.full(1 << 14, float(rank))
    living = weakref.ref(values)
    if rank == 1:
        gradlane.barrier("it lived")
    handle = gradlane.push_pull_async(values, "temporary", op=Sum)
    if rank == 0:
        del values
        gc.collect()
        assert living() is not None
        gradlane.barrier("it lived")
    assert (handle.wait() == 1.0).all()


class Lends:
    """A producer of DLPack that keeps nothing of what it lends."""

    def __init__(self, value: float) -> None:
        self.value, self.lent = value, None

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: object) -> object:
        class Watched(np.ndarray):
            pass

        values = np.full(1 << 14, self.value).view(Watched)
        self.lent = weakref.ref(values)
        return values.__dlpack__(**options)


@pytest.mark.workers(2)
def test_what_a_dlpack_producer_lends_is_given_back_after_the_operation():
    rank, out = gradlane.rank(), np.zeros(1 << 14)
    tensor = Lends(rank + 1.0)
    if rank == 1:
        gradlane.barrier("it was lent")
    handle = gradlane.push_pull_async(tensor, "lent", op=Sum, out=out)
    if rank == 0:
        gc.collect()
        assert tensor.lent() is not None
        unrelated = Unrelated(8 << 14)
        gradlane.barrier("it was lent")
        handle.wait()
        unrelated.check()
    handle.wait()
    assert (out == 3.0).all()
    gradlane.barrier("all have ended")  # whose call lets the engine give back what it held
    gc.collect()
    gradlane.metrics()
    assert tensor.lent() is None


@pytest.mark.workers(2)
def test_overlapping_source_and_result_are_refused():
    values = np.zeros(8)
    with pytest.raises(InvalidArgumentError, match="overlap"):
        gradlane.push_pull(values[:6], "overlap", out=values[2:])
