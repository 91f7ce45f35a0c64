"""Which memory of CUDA devices can be reduced, and what is said of the rest. Nothing here touches a device."""

from types import SimpleNamespace

import numpy as np
import pytest
from fakecuda import capsule
from gradlane import InvalidArgumentError, UnsupportedError, _buffers
from gradlane._operations import check_out


class Interface:
    """An array that says this of itself."""

    def __init__(self, device=1, dtype=np.dtype(np.float32), **said):
        self.device, self.dtype = device, dtype
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (0x7000, False),
            "version": 3,
            "stream": 77,
        } | said


@pytest.mark.parametrize("version", [2, 3])
def test_an_array_is_found_where_it_lies(version):
    place = _buffers.locate(Interface(version=version), writable=True)
    assert isinstance(place, _buffers.DeviceBuffer)
    assert (place.address, place.dtype, place.shape, place.bytes) == (0x7000, "float32", (2, 3), 24)
    assert (place.device, place.stream) == (1, 77)


def test_memory_that_is_another_each_time_is_refused():
    class Temporary(Interface):
        def __getattribute__(self, name):
            value = super().__getattribute__(name)
            if name == "__cuda_array_interface__":
                address, read_only = value["data"]
                value["data"] = (address + 0x100, read_only)
                return dict(value)
            return value

    with pytest.raises(InvalidArgumentError, match="another address each time"):
        _buffers.locate(Temporary(), writable=True)


@pytest.mark.parametrize("version", [None, 0, 1, 4])
def test_versions_that_are_not_known_are_refused(version):
    with pytest.raises(UnsupportedError, match=f"version {version} of __cuda_array_interface__; known are 2 and 3"):
        _buffers.locate(Interface(version=version), writable=True)


@pytest.mark.parametrize("stream", [None, 1, 2, 0x5550])
def test_the_stream_is_the_one_that_the_array_names(stream):
    assert _buffers.locate(Interface(stream=stream), writable=True).stream == stream


def test_stream_0_is_refused_because_it_could_be_either_of_two():
    with pytest.raises(InvalidArgumentError, match=r"stream 0.* 1 is .* of a device, 2 that of a thread"):
        _buffers.locate(Interface(stream=0), writable=True)


@pytest.mark.parametrize(
    ("typestr", "dtype"),
    [("<f2", "float16"), ("<f8", "float64"), ("<i4", "int32"), ("<i8", "int64"), ("|i1", "int8"), ("|u1", "uint8")],
)
def test_element_types_are_told_by_their_code(typestr, dtype):
    assert _buffers.locate(Interface(typestr=typestr), writable=True).dtype == dtype


def test_bfloat16_has_no_code_and_is_told_by_its_name():
    place = _buffers.locate(Interface(typestr="<V2", dtype="bfloat16"), writable=True)
    assert (place.dtype, place.bytes) == ("bfloat16", 12)


@pytest.mark.parametrize(
    ("typestr", "complaint"),
    [("|b1", "view it as uint8"), ("<c8", "supported: float32"), ("<i2", "supported"), (">f4", "foreign byte order")],
)
def test_other_element_types_are_refused_with_advice(typestr, complaint):
    with pytest.raises(InvalidArgumentError, match=complaint):
        _buffers.locate(Interface(typestr=typestr), writable=True)


@pytest.mark.parametrize("strides", [None, (12, 4)])
def test_contiguous_strides_are_accepted_written_out_or_not(strides):
    assert _buffers.locate(Interface(strides=strides), writable=True).len == 6


@pytest.mark.parametrize("strides", [(4, 8), (24, 4), (-12, 4)])
def test_strided_memory_is_refused_with_a_remedy(strides):
    with pytest.raises(InvalidArgumentError, match=r"not C-contiguous; .* copy"):
        _buffers.locate(Interface(strides=strides), writable=True)


def test_a_masked_array_is_refused():
    with pytest.raises(UnsupportedError, match="masked"):
        _buffers.locate(Interface(mask=Interface()), writable=True)


def test_read_only_memory_is_refused_for_a_result_and_accepted_as_a_source():
    frozen = Interface(data=(0x7000, True))
    with pytest.raises(InvalidArgumentError, match="out="):
        _buffers.locate(frozen, writable=True)
    assert _buffers.locate(frozen, writable=False).len == 6


@pytest.mark.parametrize("device", [2, SimpleNamespace(id=2), SimpleNamespace(index=2)])
def test_the_device_is_a_number_or_an_object_that_has_one(device):
    assert _buffers.locate(Interface(device=device), writable=True).device == 2


def test_an_array_that_does_not_say_where_it_is_is_refused_with_a_remedy():
    with pytest.raises(InvalidArgumentError, match="does not name its device.*DLPack"):
        _buffers.locate(Interface(device=None), writable=True)


class Lent:
    """A DLPack tensor on a device of this type."""

    def __init__(self, device_type, dtype=np.float32, is_bfloat16=False):
        self._header = SimpleNamespace(address=0x7000, dtype=np.dtype(dtype), shape=(2, 3), device=3)
        self._device_type, self._is_bfloat16 = device_type, is_bfloat16
        self.streams = []

    def __dlpack_device__(self):
        return self._device_type, 3

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        return capsule(self._header, self._is_bfloat16, self._device_type)


def test_a_dlpack_tensor_is_asked_to_be_ready_in_the_default_stream():
    tensor = Lent(2)
    place = _buffers.locate(tensor, writable=True)
    assert (place.address, place.dtype, place.shape, place.device, place.stream) == (0x7000, "float32", (2, 3), 3, 1)
    assert tensor.streams == [1]


def test_a_dlpack_tensor_tells_bfloat16():
    assert _buffers.locate(Lent(2, np.uint16, is_bfloat16=True), writable=True).dtype == "bfloat16"


def test_a_tensor_that_offers_both_is_taken_by_dlpack_which_names_the_device():
    class Both(Lent, Interface):
        def __init__(self):
            Interface.__init__(self)
            Lent.__init__(self, 2)

    assert _buffers.locate(Both(), writable=True).device == 3


def test_memory_of_other_devices_is_refused_and_the_host_s_is_asked_for_without_a_stream():
    with pytest.raises(UnsupportedError, match="DLPack's type 10"):
        _buffers.locate(Lent(10), writable=True)
    host = Lent(1)
    assert isinstance(_buffers.locate(host, writable=True), _buffers.HostBuffer) and host.streams == [None]


@pytest.mark.parametrize(
    ("source", "target", "complaint"),
    [
        (Interface(), np.zeros((2, 3), np.float32), "out is on the host, buffer on cuda:1"),
        (np.zeros((2, 3), np.float32), Interface(), "out is on cuda:1, buffer on the host"),
        (Interface(), Interface(device=0), "out is on cuda:0, buffer on cuda:1"),
        (Interface(), Interface(typestr="<i4"), "out is int32"),
    ],
)
def test_a_result_goes_to_the_memory_that_the_contribution_is_in(source, target, complaint):
    with pytest.raises(InvalidArgumentError, match=complaint):
        check_out(_buffers.locate(source, writable=False), _buffers.locate(target, writable=True))
