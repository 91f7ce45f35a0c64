"""Narrower element types on the wire: the engine casts before the push and casts back when the sum has arrived.

The servers add float16 and bfloat16 in float32 and round once, so only each contribution and the sum are rounded. The
workers of one machine first add in the tensor's own type, and the sum of the machine is cast once. If all workers are
on one machine that adds by itself, nothing is sent or cast, and the result is more exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradlane import _core
from gradlane.errors import InvalidArgumentError

_CODECS = _core.names_table()["codecs"]


@dataclass(frozen=True, slots=True)
class Compressor:
    """The encoding of tensors on the wire. Integers and types that are as narrow are sent unchanged."""

    codec: str
    """The engine's name of the codec. The first use of a tensor's name fixes it on all workers."""


class Compression:
    """The compressors to choose from."""

    none = Compressor("none")
    """Sends tensors unchanged."""
    fp16 = Compressor("fp16")
    """Half the bytes of float32, 11 bits of precision; overflows at 65504, so scale the loss or sum few workers."""
    bf16 = Compressor("bf16")
    """Half the bytes of float32 with its range, 8 bits of precision."""


def check_compression(compression: object) -> Compressor:
    """Returns `compression` if it is one.

    Raises:
        InvalidArgumentError: it is something else, such as its name.
    """
    if isinstance(compression, Compressor):
        return compression
    hint = f"Compression.{compression}" if compression in _CODECS else "one of Compression"
    raise InvalidArgumentError(f"compression={compression!r} is no compressor; use {hint}")
