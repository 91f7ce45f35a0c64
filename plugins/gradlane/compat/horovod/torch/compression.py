"""`horovod.torch.compression`."""

from gradlane.torch.compression import Compression

__all__ = ["Compression"]
