"""Where a buffer of the user lies in host memory, and whether it can be reduced.

NumPy arrays (`__array_interface__`), anything with the buffer protocol, and DLPack producers are accepted, in this
order; no framework is imported. PyTorch tensors have a shorter way in `gradlane.torch`, and come here through DLPack.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

from gradlane import _dlpack
from gradlane.errors import InvalidArgumentError, UnsupportedError

ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "int64": 8,
    "int8": 1,
    "uint8": 1,
}
"""The element types that are reduced, with the bytes of one element."""

_KIND_OF_FORMAT = {
    **dict.fromkeys("bhilqn", "int"),
    **dict.fromkeys("BHILQN", "uint"),
    **dict.fromkeys("efd", "float"),
    "?": "bool",
}


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """Contiguous elements in host memory, valid as long as `owner` lives."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    owner: object

    @property
    def len(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes."""
        return self.len * ITEM_BYTES[self.dtype]


def locate(value: Any, *, writable: bool) -> HostBuffer:
    """Finds the memory of `value`.

    Args:
        value: NumPy array, writable buffer (`bytearray`, `array.array`, ...) or DLPack tensor on the CPU; C-contiguous.
        writable: whether a result will be written into it. Where that is not so, read-only memory is accepted, and
            copied first if nothing but the buffer protocol leads to it.
    Raises:
        InvalidArgumentError: not a buffer, not contiguous, read-only, or of an element type that cannot be reduced.
        UnsupportedError: the memory is on a device.
    """
    if hasattr(value, "__array_interface__"):
        return _of_array(value, writable)
    try:
        view = memoryview(value)
    except (TypeError, BufferError, ValueError):
        if hasattr(value, "__dlpack__"):
            return _of_dlpack(value, writable)
        raise InvalidArgumentError(
            f"{type(value).__name__} is not a buffer; give a NumPy array, a writable buffer or a DLPack tensor"
        ) from None
    return _of_memoryview(view, writable)


def check_dtype(dtype: str) -> str:
    """Returns `dtype` if it can be reduced.

    Raises:
        InvalidArgumentError: it cannot; the message advises.
    """
    if dtype in ITEM_BYTES:
        return dtype
    if dtype == "bool":
        advice = "view it as uint8 and reduce with Max for `any` or Min for `all`"
    else:
        advice = f"supported: {', '.join(ITEM_BYTES)}"
    raise InvalidArgumentError(f"dtype {dtype} cannot be reduced; {advice}")


def _of_array(array: Any, writable: bool) -> HostBuffer:
    interface = array.__array_interface__
    if interface["typestr"][0] == ">":
        raise InvalidArgumentError(f"{array.dtype} is in foreign byte order; convert it with .astype")
    # The name, as extension types such as ml_dtypes' bfloat16 have a meaningless typestr.
    dtype = check_dtype(str(array.dtype))
    address, read_only = interface["data"]
    if interface.get("strides") is not None:
        raise _not_contiguous("array", "numpy.ascontiguousarray()")
    if writable and read_only:
        raise _read_only("array")
    return HostBuffer(address, dtype, tuple(interface["shape"]), array)


def _of_memoryview(view: memoryview, writable: bool) -> HostBuffer:
    code = view.format.lstrip("@=<") or "B"
    kind = _KIND_OF_FORMAT.get(code, f"format {view.format!r} ")
    dtype = check_dtype("bool" if kind == "bool" else f"{kind}{view.itemsize * 8}")
    if not view.c_contiguous:
        raise _not_contiguous("buffer", "bytearray()")
    if writable and view.readonly:
        raise _read_only("buffer")
    shape = tuple(view.shape or ())
    if view.nbytes == 0:
        return HostBuffer(0, dtype, shape, view)
    # ctypes gives an address only of writable memory; in return it holds the export, so that a bytearray cannot be
    # resized.
    memory = bytearray(view) if view.readonly else view
    owner = (ctypes.c_char * view.nbytes).from_buffer(memory)
    return HostBuffer(ctypes.addressof(owner), dtype, shape, owner)


def _of_dlpack(tensor: Any, writable: bool) -> HostBuffer:
    try:
        header = _dlpack.read(tensor)
    except BufferError as error:
        raise InvalidArgumentError(f"{type(tensor).__name__} does not lend its memory: {error}") from error
    if header.device_type != _dlpack.CPU:
        raise UnsupportedError(
            f"{type(tensor).__name__} lies in the memory of a device; this version reduces host memory only"
        )
    if not _is_contiguous(header.shape, header.strides):
        raise _not_contiguous("tensor", "its own method for that")
    if writable and header.read_only:
        raise _read_only("tensor")
    # The capsule's destructor gives the memory back; it is never consumed, so nothing here calls the deleter.
    return HostBuffer(header.address, check_dtype(header.dtype), header.shape, (tensor, header.capsule))


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    if strides is None or 0 in shape:
        return True
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _not_contiguous(kind: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the {kind} is not C-contiguous; reduce a contiguous copy, made by {remedy}")


def _read_only(kind: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the {kind} is read-only; give a writable one, or a place for the result as out=")
