"""Narrower elements on the wire: the engine encodes before the push and decodes when the sum has arrived.

The servers add in float32 and round once, so only each contribution and the sum are rounded. The
workers of one machine first add in the tensor's own type, and the sum of the machine is encoded once. If all workers are
on one machine that adds by itself, nothing is sent or encoded, and the result is more exact.
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
    int8 = Compressor("int8")
    """A quarter of the bytes of float32: blocks of 256 elements with a scale each. An element is off by at most 1/254 of
    the largest magnitude in its block, in each contribution and in the sum. `Compressor("int8:block=1024")` has blocks
    of 1,024 (32 to 4,096): fewer bytes, less exact.
    """


def check_compression(compression: object) -> Compressor:
    """Returns `compression` if it is one.

    Raises:
        InvalidArgumentError: it is something else, such as its name.
    """
    if isinstance(compression, Compressor):
        return compression
    hint = f"Compression.{compression}" if compression in _CODECS else "one of Compression"
    raise InvalidArgumentError(f"compression={compression!r} is no compressor; use {hint}")
