"""The codec of a call, in the engine's words: what the caller asks for, or the job's setting.

A codec that is asked for in a call acts on the tensors of that call. One of a job leaves out what is small, as one of a
model does: see `_model_choice`.
"""

from __future__ import annotations

from gradlane import _session
from gradlane._compression import AutoCompressor, Compressor, check_compression
from gradlane.errors import InvalidArgumentError


def codec_of_call(compression: Compressor | None) -> str:
    """The codec of the tensors of a call, in the engine's words; of None the job's choice.

    Raises:
        InvalidArgumentError: it is no compressor.
    """
    settings = _session.compression()
    if compression is None:
        return settings.default if settings.default == "none" else among(settings.default, settings.min_bytes)
    if isinstance(check_compression(compression), AutoCompressor):
        raise InvalidArgumentError(
            "compression=Compression.auto chooses for the parameters of a model; give a call one of the others"
        )
    if settings.may_fall_back and not compression.is_cast:
        return _with_word(compression.codec, "fallback=1")
    return compression.codec


def among(codec: str, min_bytes: int) -> str:
    """A codec for tensors with two dimensions or more, and so many bytes, among others."""
    return _with_word(codec, f"min_bytes={min_bytes}")


def _with_word(codec: str, word: str) -> str:
    return f"{codec}{',' if ':' in codec else ':'}{word}"
