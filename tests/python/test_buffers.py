"""Which memory can be reduced, and what is said of the rest."""

import array
import ctypes
import sys

import numpy as np
import pytest
from gradlane import InvalidArgumentError, UnsupportedError, _buffers, _dlpack

SUPPORTED = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8"]


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_an_array_is_found_where_it_lies(dtype):
    values = np.zeros((2, 3), dtype)
    place = _buffers.locate(values, writable=True)
    assert (place.address, place.dtype, place.shape, place.bytes) == (values.ctypes.data, dtype, (2, 3), values.nbytes)


def test_an_array_without_dimensions_has_one_element():
    assert _buffers.locate(np.array(5.0), writable=True).len == 1


@pytest.mark.parametrize(
    ("code", "dtype"), [("f", "float32"), ("d", "float64"), ("q", "int64"), ("i", "int32"), ("b", "int8")]
)
def test_python_arrays_are_buffers(code, dtype):
    values = array.array(code, [1, 2, 3])
    place = _buffers.locate(values, writable=True)
    assert (place.address, place.dtype, place.shape) == (values.buffer_info()[0], dtype, (3,))


def test_a_bytearray_cannot_be_resized_while_its_place_is_held():
    values = bytearray(8)
    place = _buffers.locate(values, writable=True)
    with pytest.raises(BufferError):
        values.extend(b"more")
    assert place.bytes == 8


class OnlyDLPack:
    """A tensor of a framework nobody has heard of."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **arguments):
        return self.values.__dlpack__(**arguments)


class OldDLPack(OnlyDLPack):
    """One from before DLPack 1.0."""

    def __dlpack__(self):
        return self.values.__dlpack__()


@pytest.mark.parametrize("producer", [OnlyDLPack, OldDLPack])
@pytest.mark.parametrize("dtype", SUPPORTED)
def test_dlpack_tensors_are_found_where_they_lie(producer, dtype):
    values = np.zeros((3, 2), dtype)
    place = _buffers.locate(producer(values), writable=True)
    assert (place.address, place.dtype, place.shape) == (values.ctypes.data, dtype, (3, 2))


def test_bfloat16_comes_through_dlpack():
    torch = pytest.importorskip("torch")
    values = torch.zeros(4, dtype=torch.bfloat16)
    place = _buffers.locate(values, writable=True)
    assert (place.address, place.dtype, place.bytes) == (values.data_ptr(), "bfloat16", 8)


def test_an_empty_buffer_is_accepted():
    assert _buffers.locate(np.zeros((0, 3)), writable=True).len == 0
    assert _buffers.locate(bytearray(), writable=True).len == 0


@pytest.mark.parametrize(
    "strided",
    [
        np.zeros((4, 4))[:, 1],
        np.zeros((4, 4)).T[1:],
        np.zeros(6)[::-1],
        memoryview(bytearray(8))[::2],
        OnlyDLPack(np.zeros((4, 4)).T),
    ],
)
def test_strided_memory_is_refused_with_a_remedy(strided):
    with pytest.raises(InvalidArgumentError, match=r"not C-contiguous; .* copy"):
        _buffers.locate(strided, writable=True)


def test_a_slice_that_is_contiguous_is_accepted():
    values = np.zeros((4, 4))
    assert _buffers.locate(values[1:3], writable=True).address == values.ctypes.data + 32


def test_read_only_memory_is_refused_for_a_result_and_accepted_as_a_source():
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    for values in (frozen, b"abc"):
        with pytest.raises(InvalidArgumentError, match="out="):
            _buffers.locate(values, writable=True)
        assert _buffers.locate(values, writable=False).len == 3


@pytest.mark.parametrize(
    "values", [np.zeros(3, bool), memoryview(bytearray(3)).cast("?"), OnlyDLPack(np.zeros(3, bool))]
)
def test_bool_is_refused_with_advice(values):
    with pytest.raises(InvalidArgumentError, match=r"bool cannot be reduced; view it as uint8"):
        _buffers.locate(values, writable=True)


@pytest.mark.parametrize(
    "values", [np.zeros(3, np.complex64), np.zeros(3, np.int16), np.zeros(3, "datetime64[s]"), np.zeros(3, "U5")]
)
def test_other_element_types_are_refused_with_the_list_of_supported_ones(values):
    with pytest.raises(InvalidArgumentError, match="supported: float32"):
        _buffers.locate(values, writable=True)


def test_foreign_byte_order_is_refused():
    with pytest.raises(InvalidArgumentError, match="byte order"):
        _buffers.locate(np.zeros(3, ">f4"), writable=True)


FOREIGN = ">" if sys.byteorder == "little" else "<"


@pytest.mark.parametrize("code", ["f", "d", "i", "q"])
def test_a_buffer_in_foreign_byte_order_is_refused_by_that_name(code):
    values = memoryview(np.zeros(3, FOREIGN + code))
    with pytest.raises(InvalidArgumentError, match=rf"format '{FOREIGN}{code}' is in foreign byte order; .*astype"):
        _buffers.locate(values, writable=True)


@pytest.mark.parametrize(
    ("values", "format"),
    [
        (memoryview(np.zeros(3, [("a", "f4"), ("b", "i4")])), "T{f:a:i:b:}"),
        (memoryview(np.zeros(3, np.complex64)), "Zf"),
        (memoryview(bytearray(3)).cast("c"), "c"),
    ],
    ids=["structure", "complex", "characters"],
)
def test_a_buffer_of_another_format_is_refused_by_that_name(values, format):
    with pytest.raises(InvalidArgumentError) as refused:
        _buffers.locate(values, writable=True)
    assert str(refused.value).startswith(f"a buffer of format {format!r} cannot be reduced; supported: float32")


MASKED = {
    "array": lambda values: values,
    "part": lambda values: values[1:],
    "without masked values": lambda values: np.ma.MaskedArray(values.data),
    "memoryview": memoryview,
    "memoryview of a part": lambda values: memoryview(values[1:])[1:],
}


@pytest.mark.parametrize("writable", [True, False], ids=["result", "source"])
@pytest.mark.parametrize("make", MASKED)
def test_a_masked_array_is_refused_because_what_it_masks_would_count(make, writable):
    values = np.ma.MaskedArray([1.0, 2.0, 3.0], mask=[False, True, False])
    with pytest.raises(UnsupportedError, match=r"Masked.* is a masked array; reduce .*data and .*mask separately"):
        _buffers.locate(MASKED[make](values), writable=writable)


def test_the_data_of_a_masked_array_is_an_array():
    assert _buffers.locate(np.ma.MaskedArray([1.0, 2.0], mask=[True, False]).data, writable=True).len == 2


@pytest.mark.parametrize("value", [[1.0, 2.0], 3.0, "text", None])
def test_what_is_no_buffer_is_refused(value):
    with pytest.raises(InvalidArgumentError, match="is not a buffer"):
        _buffers.locate(value, writable=True)


def test_a_numpy_scalar_is_copied_as_a_source_and_refused_as_a_result():
    scalar = np.float32(3)
    place = _buffers.locate(scalar, writable=False)
    assert (place.dtype, place.shape, place.owner[0]) == ("float32", (), 3)
    with pytest.raises(InvalidArgumentError, match="never changes"):
        _buffers.locate(scalar, writable=True)


def test_a_class_cannot_hide_where_its_array_lies():
    class Elsewhere(np.ndarray):
        @property
        def __array_interface__(self):
            return np.zeros(3).__array_interface__

    values = np.zeros(3).view(Elsewhere)
    assert _buffers.locate(values, writable=True).address == values.ctypes.data


@pytest.mark.parametrize("data", [(0x7000, False), None, bytes(12)], ids=["address", "none", "buffer"])
def test_an_array_interface_of_another_class_is_refused(data):
    class Foreign:
        __array_interface__ = {"version": 3, "typestr": "<f4", "shape": (3,), "data": data}

    for writable in (True, False):
        with pytest.raises(InvalidArgumentError, match=r"Foreign tells an address .* give numpy\.array"):
            _buffers.locate(Foreign(), writable=writable)


@pytest.mark.parametrize(
    "shared",
    [np.broadcast_to(np.float32(1), (4,)), np.lib.stride_tricks.as_strided(np.ones(4), (4, 4), (0, 8))],
)
def test_elements_that_share_memory_are_refused(shared):
    with pytest.raises(InvalidArgumentError, match="not C-contiguous"):
        _buffers.locate(shared, writable=True)


def test_structured_and_object_arrays_are_refused():
    for values in (np.zeros(3, [("a", "<f4")]), np.zeros(3, [("a", ">f4")])[0], np.zeros(3, object)):
        with pytest.raises(InvalidArgumentError):
            _buffers.locate(values, writable=False)


def test_a_released_view_is_refused():
    view = memoryview(bytearray(8))
    view.release()
    with pytest.raises(InvalidArgumentError, match="does not lend its memory: .*released"):
        _buffers.locate(view, writable=True)


def test_ctypes_arrays_are_found_where_they_lie():
    values = (ctypes.c_float * 3)(1, 2, 3)
    place = _buffers.locate(values, writable=True)
    assert (place.address, place.dtype, place.shape) == (ctypes.addressof(values), "float32", (3,))


class Copies(OnlyDLPack):
    """A producer that always copies, and says so."""

    def __dlpack__(self, *, copy=None, **arguments):
        return self.values.__dlpack__(copy=True, **arguments)


class OldCopies(Copies):
    """One that takes no wishes."""

    def __dlpack__(self, *, max_version=None):
        return super().__dlpack__(max_version=max_version)


class MustCopy(OnlyDLPack):
    """One that must copy, and fails if it may not."""

    def __dlpack__(self, *, copy=None, **arguments):
        if copy is False:
            raise BufferError("a copy would be needed")
        return self.values.__dlpack__(copy=True, **arguments)


@pytest.mark.parametrize("producer", [Copies, OldCopies, MustCopy])
def test_a_producer_that_copies_is_a_source_and_no_place_for_a_result(producer):
    values = np.arange(3.0)
    with pytest.raises(InvalidArgumentError, match="copy"):
        _buffers.locate(producer(values), writable=True)
    place = _buffers.locate(producer(values), writable=False)
    assert ctypes.string_at(place.address, 24) == values.tobytes() and place.address != values.ctypes.data


class Gives(OnlyDLPack):
    """A producer that gives this, whatever it is."""

    def __dlpack__(self, **arguments):
        return self.values


def test_what_is_no_capsule_or_is_used_up_is_refused():
    used = np.zeros(3).__dlpack__()
    np.from_dlpack(Gives(used))
    for given in (None, 7, "dltensor", used):
        with pytest.raises(InvalidArgumentError, match="Gives does not lend its memory"):
            _buffers.locate(Gives(given), writable=True)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", _dlpack._Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


def test_vectors_as_elements_and_later_versions_of_dlpack_are_refused():
    shape = (ctypes.c_int64 * 1)(4)
    tensor = {"data": 0x7000, "device_type": 1, "ndim": 1, "type_code": 2, "type_bits": 16, "shape": shape}
    pairs = Managed(tensor=_dlpack._Tensor(type_lanes=2, **tensor))
    later = _dlpack._Versioned(major=2, tensor=_dlpack._Tensor(type_lanes=1, **tensor))
    new = ctypes.pythonapi.PyCapsule_New
    new.argtypes, new.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
    with pytest.raises(InvalidArgumentError, match="dtype float16x2 cannot be reduced"):
        _buffers.locate(Gives(new(ctypes.addressof(pairs), b"dltensor", None)), writable=True)
    with pytest.raises(InvalidArgumentError, match="version 2 of DLPack"):
        _buffers.locate(Gives(new(ctypes.addressof(later), b"dltensor_versioned", None)), writable=True)


def test_memory_of_other_kinds_is_not_supported():
    torch = pytest.importorskip("torch")
    from gradlane.torch import _tensors

    with pytest.raises(UnsupportedError, match="meta"):
        _tensors.locate(torch.zeros(3, device="meta"))
