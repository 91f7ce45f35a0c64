"""Narrower element types on the wire: cast before the push, cast back when the sum has arrived.

The servers add float16 and bfloat16 in float32 and round once, so what is lost is the rounding of each contribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Compressor:
    """What element type travels. Integers and what is as narrow already travel as they are."""

    wire: torch.dtype | None

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The element type that travels for tensors of `dtype`."""
        if self.wire is None or not dtype.is_floating_point or dtype.itemsize <= self.wire.itemsize:
            return dtype
        return self.wire

    def compress(self, tensor: torch.Tensor) -> torch.Tensor:
        """What to push: `tensor` itself where nothing is to be done, else a copy."""
        return tensor.to(self.wire_dtype(tensor.dtype))


class Compression:
    """The compressors to choose from."""

    none = Compressor(None)
    """Sends what is there."""
    fp16 = Compressor(torch.float16)
    """Half the bytes of float32, 11 bits of precision; overflows at 65504, so scale the loss or sum few workers."""
    bf16 = Compressor(torch.bfloat16)
    """Half the bytes of float32 with its range, 8 bits of precision."""
