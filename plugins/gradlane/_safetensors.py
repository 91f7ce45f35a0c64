"""Files in the form of safetensors, which other tools read: arrays by name, behind a header that says where they are."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

_DTYPES = {"float32": "F32", "int64": "I64", "uint32": "U32"}
_HEADER_BYTES_MAX = 100 << 20


def write(file: Any, arrays: Mapping[str, Any], about: Mapping[str, str]) -> None:
    """Writes arrays, little-endian and contiguous, with notes about them.

    Args:
        file: a binary file that is open for writing.
    """
    header: dict[str, Any] = {"__metadata__": dict(about)}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    # Numbers begin at a multiple of 8 bytes, so that they can be used where they lie.
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for array in arrays.values():
        file.write(memoryview(array).cast("B") if array.nbytes else b"")


def read(data: bytes, wanted: Mapping[str, tuple[str, tuple[int, ...]]], numpy: Any) -> dict[str, Any]:
    """Reads the arrays of a file, each of which has this dtype and, but for its first number, this shape.

    Raises:
        ValueError: the file is none, or does not have these arrays.
    """
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    if not 2 <= length <= min(_HEADER_BYTES_MAX, len(data) - 8):
        raise ValueError("it has no header")
    header = json.loads(data[8 : 8 + length])
    if not isinstance(header, dict) or set(header) - {"__metadata__"} != set(wanted):
        raise ValueError(f"it has not the arrays {', '.join(wanted)}")
    found = {}
    for name, (dtype, behind) in wanted.items():
        try:
            said, shape, (begin, end) = (header[name][field] for field in ("dtype", "shape", "data_offsets"))
            numbers = math.prod(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error!r}") from None
        size = numpy.dtype(dtype).itemsize
        if said != _DTYPES[dtype] or tuple(shape[1:]) != behind or not 0 <= begin <= end <= len(data) - 8 - length:
            raise ValueError(f"{name} has {said} of shape {shape}")
        if end - begin != size * numbers:
            raise ValueError(f"{name} has {end - begin} bytes for shape {shape}")
        array = numpy.frombuffer(data, numpy.dtype(dtype).newbyteorder("<"), numbers, 8 + length + begin)
        found[name] = array.reshape(shape)
    return found


def write_whole(path: str | os.PathLike[str], write_to: Callable[[Any], None]) -> None:
    """Writes a file under another name, brings it to the disk, and gives it its name."""
    directory, name = os.path.split(os.path.abspath(path))
    part = os.path.join(directory, f".partial-{name}-{os.getpid()}")
    try:
        with open(part, "wb") as file:
            write_to(file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, path)
    except BaseException:
        if os.path.exists(part):
            os.remove(part)
        raise
    sync_directory(directory)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Brings the names in a directory to the disk."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
