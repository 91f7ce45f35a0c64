"""`byteps.tensorflow.compression`."""

from gradlane._compression import Compression

__all__ = ["Compression"]
