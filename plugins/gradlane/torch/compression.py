"""Narrower element types on the wire; see `gradlane._compression`."""

from __future__ import annotations

from gradlane._compression import Compression, Compressor, check_compression

__all__ = ["Compression", "Compressor", "check_compression"]
