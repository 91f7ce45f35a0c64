"""Which parameters of a model travel with which codec.

A codec that is chosen for a model leaves out what is small: see `Compressor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradlane import _core, _session
from gradlane._auto import decide
from gradlane._choice import among, codec_of_call
from gradlane._compression import AutoCompressor, Compressor, check_compression
from gradlane.errors import InvalidArgumentError

Chooser = Callable[[str, tuple[int, ...]], Compressor]
"""Gives the compressor for a parameter, by its name and shape."""

Choice = Compressor | Chooser | None
"""What a wrapper of a model takes: a compressor, a function that gives one for a parameter's name and shape, or None for
the job's choice."""


def chooser_of(choice: Choice) -> Chooser | None:
    """The function that chooses, if it is one. A compressor can be called, too, and is none."""
    return choice if callable(choice) and not isinstance(choice, Compressor) else None


def codec_of_model(compression: Choice) -> str:
    """The codec of all tensors of a model, in the engine's words, which choose among the tensors.

    Raises:
        InvalidArgumentError: it is no compressor.
    """
    if compression is None:
        return codec_of_call(None)
    compressor = check_compression(compression)
    if isinstance(compressor, AutoCompressor):
        return _codec_decided(compressor)
    if compressor.is_cast or compressor.compress_all:
        return codec_of_call(compressor)
    return among(compressor.codec, _session.compression().min_bytes)


def codecs_of_model(choice: Choice, tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> list[str]:
    """The codec of each tensor of a model, by its name, element type and shape.

    Raises:
        InvalidArgumentError: it is no compressor and no function that gives one, a tensor's elements are such as the codec
            does not encode, or the compressor would act on no tensor at all.
    """
    choose = chooser_of(choice)
    if choose is not None:
        chosen = [codec_of_call(_checked(choose, name, shape)) for name, _, shape in tensors]
        return [_core.codec_of(codec, *tensor) for codec, tensor in zip(chosen, tensors, strict=True)]
    codec = codec_of_model(choice)
    found = [_core.codec_of(codec, *tensor) for tensor in tensors]
    if isinstance(choice, Compressor) and choice.must_act and tensors and set(found) == {"none"}:
        raise InvalidArgumentError(
            f"compression={choice.codec} would act on none of the {len(tensors)} parameters, because none is of float32, has "
            f"two dimensions or more and {_session.compression().min_bytes} bytes; set min_compress_bytes, give "
            "compress_all=True, or leave out the compression"
        )
    return found


def _codec_decided(compression: AutoCompressor) -> str:
    """That of the compressor which the workers take; all must call this."""
    decision = decide(compression.allowed)
    if decision.codec == "none":
        return "none"
    least = 0 if compression.compress_all else max(decision.min_bytes, _session.compression().min_bytes)
    return among(decision.codec, least)


def _checked(choose: Chooser, name: str, shape: tuple[int, ...]) -> Compressor:
    chosen = choose(name, shape)
    if isinstance(chosen, Compressor):
        return chosen
    raise InvalidArgumentError(f"compression gave {chosen!r} for {name}, which is no compressor; give one of Compression")
