"""Reads `__cuda_array_interface__`: address, dtype and shape of an array of CuPy, Numba or alike on a CUDA device.

Versions 2 and 3 are supported; 3 added the stream. The interface does not name the device, so the array is asked.
Source: "CUDA Array Interface (Version 3)" in the documentation of Numba.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlane.errors import InvalidArgumentError, UnsupportedError

_VERSIONS = (2, 3)
_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "complex"}


@dataclass(frozen=True, slots=True)
class Header:
    """The description of an array."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In bytes; None if it is C-contiguous."""
    read_only: bool
    device: int
    stream: int | None
    """Handle of the stream that computes the array; None if there is nothing to wait for."""
    interface: object
    """The description itself, which may refer to what owns the memory."""

    def strides_of(self, item_bytes: int) -> tuple[int, ...] | None:
        """The strides in elements of this size."""
        return None if self.strides is None else tuple(stride // item_bytes for stride in self.strides)


def read(array: Any) -> Header:
    """Reads the description of `array`.

    Raises:
        UnsupportedError: the version is unknown, or the array is masked.
        InvalidArgumentError: the description violates the interface, or the device cannot be found.
    """
    kind, interface = type(array).__name__, array.__cuda_array_interface__
    version = interface.get("version")
    if version not in _VERSIONS:
        raise UnsupportedError(
            f"{kind} has version {version} of __cuda_array_interface__; known are {_VERSIONS[0]} and {_VERSIONS[1]}"
        )
    if interface.get("mask") is not None:
        raise UnsupportedError(f"{kind} is a masked array; reduce its data and its mask separately")
    stream = interface.get("stream")
    if stream == 0:
        # Ambiguous: it could be either default stream.
        raise InvalidArgumentError(
            f"{kind} names stream 0, which __cuda_array_interface__ does not allow; 1 is the default stream of a device, "
            "2 that of a thread"
        )
    address, read_only = interface["data"]
    if array.__cuda_array_interface__["data"][0] != address:
        raise InvalidArgumentError(
            f"{kind} tells another address each time, so its __cuda_array_interface__ is that of memory which nobody "
            "keeps; give an array that owns its memory"
        )
    strides = interface.get("strides")
    return Header(
        address=address or 0,
        dtype=_dtype(array, interface["typestr"]),
        shape=tuple(interface["shape"]),
        strides=None if strides is None else tuple(strides),
        read_only=bool(read_only),
        device=_device(array),
        stream=stream,
        interface=interface,
    )


def _dtype(array: Any, typestr: str) -> str:
    if typestr[0] == ">":
        raise InvalidArgumentError(f"{typestr} is in foreign byte order; convert it with .astype")
    if typestr[1] == "V":  # extension types such as ml_dtypes' bfloat16, whose name says more
        return str(array.dtype)
    if typestr[1] == "b":
        return "bool"
    return f"{_KINDS.get(typestr[1], typestr[1])}{int(typestr[2:]) * 8}"


def _device(array: Any) -> int:
    """The ordinal of the array's device: `array.device` is a number, or an object with one (CuPy, PyTorch)."""
    device = getattr(array, "device", None)
    for number in (device, getattr(device, "id", None), getattr(device, "index", None)):
        if isinstance(number, int):
            return number
    raise InvalidArgumentError(
        f"{type(array).__name__} does not name its device; give a DLPack tensor, such as "
        "torch.as_tensor(array) or cupy.asarray(array)"
    )
