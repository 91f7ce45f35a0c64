"""Narrower element types on the wire: the engine casts before the push and casts back when the sum has arrived.

The servers add float16 and bfloat16 in float32 and round once, so what is lost is the rounding of each contribution and
of the sum. Workers of one machine add in the tensor's own type before, and the sum of a machine is cast once. Where all
workers are on one machine that adds by itself, nothing is sent and nothing is cast: the result is more exact.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compressor:
    """How tensors travel. Integers and what is as narrow already travel as they are."""

    codec: str
    """The engine's name of it; agreed on by all workers when a name is first used."""


class Compression:
    """The compressors to choose from."""

    none = Compressor("none")
    """Sends what is there."""
    fp16 = Compressor("fp16")
    """Half the bytes of float32, 11 bits of precision; overflows at 65504, so scale the loss or sum few workers."""
    bf16 = Compressor("bf16")
    """Half the bytes of float32 with its range, 8 bits of precision."""
