"""The compressors of BytePS and Horovod for PyTorch, which scripts also call themselves."""

from __future__ import annotations

import torch

from gradlane._compression import Compression as Ours
from gradlane._compression import Compressor

__all__ = ["Compression"]


class _TorchCompressor(Compressor):
    """A compressor that can also compress a tensor of PyTorch without sending it."""

    __slots__ = ()

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Returns the tensor in its element type on the wire, and what `decompress` needs."""
        narrow = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.codec)
        if narrow is None:
            return tensor, None
        return (tensor.to(narrow) if tensor.is_floating_point() else tensor), tensor.dtype

    def decompress(self, tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Returns the tensor in the element type that it had before `compress`."""
        return tensor if ctx is None or not ctx.is_floating_point else tensor.to(ctx)


class Compression:
    """The compressors to choose from; see `gradlane.Compression`."""

    none = _TorchCompressor(Ours.none.codec)
    """Sends tensors unchanged."""
    fp16 = _TorchCompressor(Ours.fp16.codec)
    """Half the bytes of float32."""
    bf16 = _TorchCompressor(Ours.bf16.codec)
    """Half the bytes of float32 with its range."""
