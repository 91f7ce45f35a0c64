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
_READ_ONLY = 1


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


def read(value: Any, stream: int | None = None) -> Header:
    """Exports `value` and reads its header.

    Args:
        stream: a stream of the tensor's device; the producer makes it wait for pending work on the tensor. None for
            host memory.
    """
    wanted = {} if stream is None else {"stream": stream}
    try:
        capsule = value.__dlpack__(max_version=(1, 0), **wanted)
    except TypeError:  # a producer from before DLPack 1.0 does not know the version
        capsule = value.__dlpack__(**wanted)
    flags = 0
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        tensor, flags = versioned.tensor, versioned.flags
    else:
        tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    rank = tensor.ndim
    kind = _KINDS.get(tensor.type_code, f"type{tensor.type_code}_")
    return Header(
        address=(tensor.data or 0) + tensor.byte_offset,
        dtype="bool" if kind == "bool" else f"{kind}{tensor.type_bits * tensor.type_lanes}",
        shape=tuple(tensor.shape[:rank]),
        strides=tuple(tensor.strides[:rank]) if tensor.strides else None,
        device_type=tensor.device_type,
        device_id=tensor.device_id,
        read_only=bool(flags & _READ_ONLY),
        capsule=capsule,
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid.restype = ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer.restype = ctypes.c_void_p
