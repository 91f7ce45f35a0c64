"""Finds the memory of a user's buffer, in host memory or on a CUDA device, and checks whether it can be reduced.

Accepts, in this order: NumPy arrays, tensors on a CUDA device (DLPack, which names the device and knows bfloat16, or
else `__cuda_array_interface__`), anything with the buffer protocol, and DLPack producers in host memory. No framework is
imported. `gradlane.torch` has a faster path for PyTorch tensors; here they are read by DLPack.

The owner of a buffer keeps the memory where it is until the operation has ended. So an address alone is refused: the
`__array_interface__` of a NumPy scalar, for example, is that of a copy which is freed at once.

A group may locate a thousand arrays in every round, so each attribute of an array is read only once.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from gradlane import _core, _cuda_interface, _dlpack
from gradlane.errors import InvalidArgumentError, UnsupportedError

ITEM_BYTES = _core.names_table()["dtypes"]
"""The element types that are reduced, with the bytes of one element."""

_KIND_OF_FORMAT = {
    **dict.fromkeys("bhilqn", "int"),
    **dict.fromkeys("BHILQN", "uint"),
    **dict.fromkeys("efd", "float"),
    "?": "bool",
}

_FOREIGN_ORDER = ">!" if sys.byteorder == "little" else "<"
"""How the format of a buffer begins whose bytes are in the other order than those of this machine."""

_LEGACY_STREAM = 1
"""The device's legacy default stream in DLPack and in the driver (`CU_STREAM_LEGACY`); 0 would be ambiguous."""


# Never changed, but not frozen, because that would make each instance seven times as expensive.
@dataclass(slots=True)
class HostBuffer:
    """Contiguous elements in host memory, valid as long as `owner` lives."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    owner: object

    device: ClassVar[None] = None
    """Host memory lies on no device."""
    stream: ClassVar[None] = None
    """No stream writes host memory."""

    @property
    def len(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes."""
        return self.len * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """Contiguous elements in the memory of a CUDA device, valid as long as `owner` lives."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    owner: object
    device: int
    """The device's ordinal in this process: the number in `cuda:1`."""
    stream: int | None
    """Handle of the stream whose work so far must end before the memory is used; None if there is none."""

    @property
    def len(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes."""
        return self.len * ITEM_BYTES[self.dtype]


Buffer = HostBuffer | DeviceBuffer
"""Memory of either kind."""


def locate(value: Any, *, writable: bool) -> Buffer:
    """Finds the memory of `value`.

    Args:
        value: NumPy array, writable buffer (`bytearray`, `array.array`, ...), DLPack tensor on the CPU or a CUDA
            device, or anything with `__cuda_array_interface__`; C-contiguous.
        writable: whether a result will be written into it. If not, read-only memory is accepted; it is copied first if
            it is accessible only by the buffer protocol.
    Raises:
        InvalidArgumentError: not a buffer, not contiguous, read-only, or of an element type that cannot be reduced.
        UnsupportedError: the memory is on a device of another kind, or it is that of a masked array.
    """
    if _is_numpys(value, "ndarray"):
        return _of_array(value, writable)
    if _is_numpys(value, "generic"):
        if writable:
            raise InvalidArgumentError(
                f"a NumPy scalar ({type(value).__name__}) never changes, so it has no place for a result; give an array, "
                "such as numpy.array(value)"
            )
        return _of_array(_numpy().array(value), writable)
    if _dlpack.device_of(value)[0] == _dlpack.CUDA:
        return _of_dlpack(value, writable)
    if hasattr(value, "__cuda_array_interface__"):
        return _of_cuda_array(value, writable)
    try:
        view = memoryview(value)
    except (TypeError, BufferError, ValueError) as error:
        if hasattr(value, "__dlpack__"):
            return _of_dlpack(value, writable)
        raise _no_buffer(value, error) from None
    return _of_memoryview(view, writable)


def array_of_scalar(value: Any) -> Any:
    """An array without dimensions that has the value of a NumPy scalar; None if `value` is anything else."""
    return _numpy().array(value) if _is_numpys(value, "generic") else None


def check_dtype(dtype: str) -> str:
    """Returns `dtype` if it can be reduced.

    Raises:
        InvalidArgumentError: it cannot; the message says what to do.
    """
    if dtype in ITEM_BYTES:
        return dtype
    if dtype == "bool":
        advice = "view it as uint8 and reduce with Max for `any` or Min for `all`"
    else:
        advice = f"supported: {', '.join(ITEM_BYTES)}"
    raise InvalidArgumentError(f"dtype {dtype} cannot be reduced; {advice}")


def _numpy() -> Any:
    """NumPy's module; None if nobody has imported it."""
    return sys.modules.get("numpy")


def _is_numpys(value: Any, kind: str) -> bool:
    """Whether `value` is of this class of NumPy. Where nobody has imported NumPy, there is no value of it."""
    known = getattr(_numpy(), kind, None)
    return known is not None and isinstance(value, known)


def _no_buffer(value: Any, error: Exception) -> InvalidArgumentError:
    kind = type(value).__name__
    if hasattr(value, "__array_interface__"):
        return InvalidArgumentError(
            f"{kind} tells an address by __array_interface__, but nothing there keeps the memory; give "
            "numpy.array(value), and take the result from that array"
        )
    if isinstance(error, TypeError):
        return InvalidArgumentError(
            f"{kind} is not a buffer; give a NumPy array, a writable buffer or a DLPack tensor"
        )
    return InvalidArgumentError(f"{kind} does not lend its memory: {error}")


def _refuse_masked(value: object) -> None:
    """Raises for a masked array of NumPy: what it masks is in its memory, and would be reduced with the rest."""
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(value, masked):
        raise UnsupportedError(
            f"{type(value).__name__} is a masked array; reduce array.data and array.mask separately, or array.filled(0)"
        )


def _of_array(array: Any, writable: bool) -> HostBuffer:
    _refuse_masked(array)
    # Of the class, because a class that derives from it may say something else. Made anew each time it is looked at.
    interface = _numpy().ndarray.__array_interface__.__get__(array)
    if interface["typestr"][0] == ">":
        raise InvalidArgumentError(f"{array.dtype} is in foreign byte order; convert it with .astype")
    dtype = _name_of(array.dtype)
    address, read_only = interface["data"]
    if interface.get("strides") is not None:
        raise _not_contiguous("array", "numpy.ascontiguousarray()")
    if writable and read_only:
        raise _read_only("array")
    return HostBuffer(address, dtype, tuple(interface["shape"]), (array, _against_resizing(array)))


def _against_resizing(lent: Any) -> object:
    """What keeps NumPy from resizing the array whose memory `lent` shows; None if it is not that of an array.

    NumPy refuses to resize an array to which a weak reference exists. Without one, `resize(..., refcheck=False)` would
    free the memory that the engine uses: NumPy does not count those who hold a buffer of an array.
    """
    while lent is not None:
        if _is_numpys(lent, "ndarray"):
            if lent.base is None:
                return weakref.ref(lent)
            lent = lent.base
        elif isinstance(lent, memoryview):
            lent = lent.obj
        elif isinstance(lent, _OF_CTYPES):
            held = (lent._objects or {}) if lent._b_base_ is None else {}
            lent = lent._b_base_ or next((one for one in held.values() if isinstance(one, memoryview)), None)
        else:
            return None
    return None


_OF_CTYPES: tuple[Any, ...] = (ctypes.Array, ctypes.Structure, ctypes.Union, ctypes.c_char.__mro__[1])
"""The classes of ctypes whose objects have memory; the last one is that of single numbers."""


@lru_cache(maxsize=64)
def _name_of(dtype: Any) -> str:
    """The name of an array's dtype. The typestr will not do: extension types such as ml_dtypes' bfloat16 have none."""
    return check_dtype(str(dtype))


def _of_memoryview(view: memoryview, writable: bool) -> HostBuffer:
    _refuse_masked(view.obj)
    dtype = _dtype_of(view)
    if not view.c_contiguous:
        raise _not_contiguous("buffer", "bytearray()")
    if writable and view.readonly:
        raise _read_only("buffer")
    shape = tuple(view.shape or ())
    if view.nbytes == 0:
        return HostBuffer(0, dtype, shape, view)
    # ctypes gives only addresses of writable memory. It also holds the export, so that a bytearray cannot be resized.
    memory = bytearray(view) if view.readonly else view
    exported = (ctypes.c_char * view.nbytes).from_buffer(memory)
    return HostBuffer(ctypes.addressof(exported), dtype, shape, (exported, _against_resizing(memory)))


def _dtype_of(view: memoryview) -> str:
    """The name of a buffer's element type, from its format in the notation of Python's `struct`."""
    code = view.format.lstrip("@=<>!") or "B"
    kind = _KIND_OF_FORMAT.get(code)
    if kind is None:
        raise InvalidArgumentError(
            f"a buffer of format {view.format!r} cannot be reduced; supported: {', '.join(ITEM_BYTES)}"
        )
    if view.itemsize > 1 and view.format[0] in _FOREIGN_ORDER:
        raise InvalidArgumentError(
            f"a buffer of format {view.format!r} is in foreign byte order; convert it, for example with numpy's .astype"
        )
    return check_dtype("bool" if kind == "bool" else f"{kind}{view.itemsize * 8}")


def _of_cuda_array(array: Any, writable: bool) -> DeviceBuffer:
    header = _cuda_interface.read(array)
    dtype = check_dtype(header.dtype)
    if not _is_contiguous(header.shape, header.strides_of(ITEM_BYTES[dtype])):
        raise _not_contiguous("array", "its own method for that")
    if writable and header.read_only:
        raise _read_only("array")
    owner = (array, header.interface)
    return DeviceBuffer(header.address, dtype, header.shape, owner, header.device, header.stream)


def _of_dlpack(tensor: Any, writable: bool) -> Buffer:
    if getattr(tensor, "is_neg", bool)():
        # PyTorch lends such memory without a word.
        raise InvalidArgumentError(
            f"{type(tensor).__name__} is a view that negates its memory; give tensor.resolve_neg(), or use gradlane.torch"
        )
    is_cuda = _dlpack.device_of(tensor)[0] == _dlpack.CUDA
    try:
        # The producer makes this stream wait for its own stream, and the engine waits for this one. It is the legacy
        # default stream, because PyTorch and others refuse the per-thread default stream.
        header = _dlpack.read(tensor, stream=_LEGACY_STREAM if is_cuda else None, copy=False if writable else None)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{type(tensor).__name__} does not lend its memory: {error}") from error
    if header.device_type not in (_dlpack.CPU, _dlpack.CUDA):
        raise UnsupportedError(
            f"{type(tensor).__name__} lies on a device of DLPack's type {header.device_type}; only the host and CUDA "
            "devices are supported: copy the tensor to one of them first"
        )
    if not _is_contiguous(header.shape, header.strides):
        raise _not_contiguous("tensor", "its own method for that")
    if writable and header.read_only:
        raise _read_only("tensor")
    if writable and header.is_copy:
        raise InvalidArgumentError(
            f"{type(tensor).__name__} lends a copy of its memory, in which a result would be lost; give a place for the "
            "result as out="
        )
    # The capsule is never consumed, so its destructor releases the memory, and nothing here calls the deleter.
    dtype, owner = check_dtype(header.dtype), (tensor, header.capsule)
    if header.device_type == _dlpack.CUDA:
        return DeviceBuffer(header.address, dtype, header.shape, owner, header.device_id, _LEGACY_STREAM)
    return HostBuffer(header.address, dtype, header.shape, owner)


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
