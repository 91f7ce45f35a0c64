"""`byteps.torch.parallel`: the wrapper of a module, with BytePS's arguments."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gradlane import torch as gl
from gradlane.compat.byteps.common import refuse_asynchronous
from gradlane.torch.compression import Compression, Compressor

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(gl.DistributedDataParallel):
    """Averages the gradients of a module over all workers when `backward()` returns.

    As in BytePS, a parameter that gets no gradient counts as zeros. All averages are complete after `backward()`, so
    `synchronize()` has nothing left to do.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[object] | None = None,
        broadcast_buffers: bool = True,
        compression: Compressor = Compression.none,
    ) -> None:
        """Broadcasts the state of rank 0; see `gradlane.torch.DistributedDataParallel` for arguments and more errors.

        As in BytePS, `device_ids` may also be given for a module that is wholly on the CPU, where it says nothing.

        Raises:
            UnsupportedError: `BYTEPS_ENABLE_ASYNC` asks for asynchronous training.
        """
        refuse_asynchronous("DistributedDataParallel", "DistributedOptimizer of byteps.torch")
        on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
        super().__init__(
            module,
            None if on_cpu else device_ids,
            broadcast_buffers=broadcast_buffers,
            find_unused_parameters=True,
            compression=compression,
        )

    def synchronize(self) -> None:
        """Does nothing: the averages are complete when `backward()` returns."""
