"""Bodies of `topk` by its definition alone (`core/src/codec/topk.rs`): NumPy sorts all elements of a part."""

from __future__ import annotations

import ctypes

import numpy as np

BLOCK, ENTRIES, RUN = 2048, 256, 1024
"""Elements, entries and bytes of gaps for which the kernels keep a note."""
REFUSED = (1 << 64) - 1


class Part(ctypes.Structure):
    """The parameter of every kernel, as `topk.cu` has it."""

    _fields_ = (
        ("origin", ctypes.c_uint64),
        ("to", ctypes.c_uint64),
        ("notes", ctypes.c_uint64),
        ("len", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("entries_max", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("digit", ctypes.c_uint32),
        ("factor", ctypes.c_float),
    )


COUNTS = [("count", digit) for digit in range(4)]
ENCODE = [("begin", 0), *COUNTS, ("compare", 0), ("list", 0), ("measure", 0), ("write", 0)]
"""The kernels of an encoder, and the digit that is counted."""
DECODE = [("clear", 0), ("scatter", 0)]


def entries_max(elements: int, count: int) -> int:
    """The most entries of a body that is shorter than its elements, if so many are sent."""
    return min(count, elements * 4 // 5)


def longest(elements: int, count: int) -> int:
    """Bytes of the longest body."""
    return min(5 + count * 5 + sum(min(count, elements >> bits) for bits in (7, 14, 21)), 4 * elements)


def room(elements: int, count: int) -> int:
    """Bytes of the longest body and of its length."""
    return -(-longest(elements, count) // 8) * 8 + 8


def encoder_notes(elements: int, count: int) -> int:
    """Bytes of the notes of an encoder."""
    entries = entries_max(elements, count)
    return 4 * 256 * 4 + 8 + 8 * (-(-elements // BLOCK) + -(-entries // ENTRIES)) + 4 * entries


def number(value: int) -> bytes:
    """A number with seven bits a byte, the low ones first."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + number(rest) if rest else bytes([low])


def encoded(elements: np.ndarray, count: int) -> bytes | None:
    """A body; `None` if the elements travel plain."""
    if not np.isfinite(elements).all():
        return None
    largest = np.lexsort((np.arange(len(elements)), -np.abs(elements)))[:count]
    places = np.sort(largest[elements[largest] != 0])
    gaps = np.diff(places, prepend=-1) - 1
    body = number(len(places)) + b"".join(number(int(gap)) for gap in gaps) + elements[places].tobytes()
    return body if len(body) < elements.nbytes else None


def told(room_bytes: bytes, longest_bytes: int) -> bytes | None:
    """The body of a room that a kernel has written."""
    at = -(-longest_bytes // 8) * 8
    length = int.from_bytes(room_bytes[at : at + 8], "little")
    return None if length == REFUSED else room_bytes[:length]
