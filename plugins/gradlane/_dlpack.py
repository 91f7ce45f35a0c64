"""Reads the header of a DLPack capsule: address, dtype, shape and device of a tensor of any framework.

Only the fields that a reduction needs are read. Both capsule names are accepted: `dltensor` (all producers) and
`dltensor_versioned` (DLPack 1.0, the only one with a read-only flag). Layouts: `dlpack.h` 1.1.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

CPU = 1
"""The device type of host memory (`kDLCPU`)."""
CUDA = 2
"""The device type of a CUDA device's memory (`kDLCUDA`)."""
_NOWHERE = (0, 0)

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_MAJOR = 1
"""The known version; a later one may have another layout."""
_READ_ONLY = 1
_IS_COPY = 2


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


@dataclass(frozen=True, slots=True)
class Header:
    """The description of a tensor; `capsule` keeps its memory alive. Strides count elements."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    device_type: int
    device_id: int
    read_only: bool
    is_copy: bool
    """Whether the producer has copied the tensor for this export."""
    capsule: object


def device_of(value: Any) -> tuple[int, int]:
    """Type and number of the device of `value`; zeros if it names none. Exports nothing."""
    ask = getattr(value, "__dlpack_device__", None)
    if ask is None:
        return _NOWHERE
    try:
        kind, number = ask()
    except (BufferError, RuntimeError, ValueError):  # a kind of tensor that cannot be exported
        return _NOWHERE
    return int(kind), int(number)


def read(value: Any, stream: int | None = None, copy: bool | None = None) -> Header:
    """Exports `value` and reads its header.

    Args:
        stream: a stream of the tensor's device; the producer makes it wait for pending work on the tensor. None for
            host memory.
        copy: False asks the producer to fail rather than to copy the tensor; None leaves it to the producer.
    Raises:
        BufferError: the producer cannot export the tensor, or exports it in a later version of DLPack.
        ValueError: it gave something else than a tensor that nobody has taken over.
    """
    capsule = _export(value, {} if stream is None else {"stream": stream}, {} if copy is None else {"copy": copy})
    flags = 0
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _MAJOR:
            raise BufferError(f"it comes in version {versioned.major} of DLPack, and {_MAJOR} was asked for")
        tensor, flags = versioned.tensor, versioned.flags
    else:
        tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    rank = tensor.ndim
    kind = _KINDS.get(tensor.type_code, f"type{tensor.type_code}_")
    lanes = "" if tensor.type_lanes == 1 else f"x{tensor.type_lanes}"
    return Header(
        address=(tensor.data or 0) + tensor.byte_offset,
        dtype="bool" if (kind, lanes) == ("bool", "") else f"{kind}{tensor.type_bits}{lanes}",
        shape=tuple(tensor.shape[:rank]),
        strides=tuple(tensor.strides[:rank]) if tensor.strides else None,
        device_type=tensor.device_type,
        device_id=tensor.device_id,
        read_only=bool(flags & _READ_ONLY),
        is_copy=bool(flags & _IS_COPY),
        capsule=capsule,
    )


def _export(value: Any, stream: dict[str, Any], copy: dict[str, Any]) -> Any:
    """The capsule of `value`. Producers from before DLPack 1.0 know neither a version nor `copy`."""
    for known in ({"max_version": (_MAJOR, 0), **copy}, {"max_version": (_MAJOR, 0)}):
        try:
            return value.__dlpack__(**known, **stream)
        except TypeError:
            continue
    return value.__dlpack__(**stream)


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid.restype = ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer.restype = ctypes.c_void_p
