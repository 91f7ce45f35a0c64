"""Which memory can be reduced, and what is said of the rest."""

import array

import numpy as np
import pytest
from gradlane import InvalidArgumentError, UnsupportedError, _buffers

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


@pytest.mark.parametrize("value", [[1.0, 2.0], 3.0, "text", None])
def test_what_is_no_buffer_is_refused(value):
    with pytest.raises(InvalidArgumentError, match="is not a buffer"):
        _buffers.locate(value, writable=True)


def test_memory_of_other_kinds_is_not_supported():
    torch = pytest.importorskip("torch")
    from gradlane.torch import _tensors

    with pytest.raises(UnsupportedError, match="meta"):
        _tensors.locate(torch.zeros(3, device="meta"))
