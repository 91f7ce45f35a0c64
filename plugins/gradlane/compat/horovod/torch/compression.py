"""`horovod.torch.compression`."""

from gradlane.compat._compression import Compression

__all__ = ["Compression"]
