"""The codec of a call, in the engine's words: what the caller asks for, or the job's setting.

A codec that is asked for in a call acts on the tensors of that call. One of a job leaves out what is small, as one of a
model does: see `_model_choice`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def together(codecs: Sequence[str]) -> str:
    """The codecs of the tensors of a list in one text: a line for each, or one if they are all the same."""
    return "\n".join(codecs) if len(set(codecs)) > 1 else next(iter(codecs), "none")


def codec_at(codecs: str, position: int) -> str:
    """The codec of the tensor at this position of a list whose codecs are these."""
    return codecs.split("\n")[position] if "\n" in codecs else codecs


def codecs_among(codecs: str, positions: Iterable[int]) -> str:
    """The codecs of the tensors at these positions of a list whose codecs are these."""
    if "\n" not in codecs:
        return codecs
    lines = codecs.split("\n")
    return together([lines[position] for position in positions])


def _with_word(codec: str, word: str) -> str:
    return f"{codec}{',' if ':' in codec else ':'}{word}"
