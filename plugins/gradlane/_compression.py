"""Fewer bytes on the wire: the engine encodes before the push and decodes when the sum has arrived.

The servers add in float32 and round once, so only each contribution and the sum are rounded. The
workers of one machine first add in the tensor's own type, and the sum of the machine is encoded once. If all workers are
on one machine that adds by itself, nothing is sent or encoded, and the result is more exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradlane import _core
from gradlane.errors import InvalidArgumentError

_CODECS = _core.names_table()["codecs"]


@dataclass(frozen=True, slots=True)
class Compressor:
    """The encoding of tensors on the wire. Integers and types that are as narrow are sent unchanged, but for lossless."""

    codec: str
    """The engine's name of the codec. The first use of a tensor's name fixes it on all workers."""
    compress_all: bool = False
    """Whether it acts on all parameters of a model for which it is chosen, also on small ones and vectors."""

    def __call__(self, *, compress_all: bool | None = None, **parameters: float) -> Compressor:
        """The same codec with these parameters, such as `Compression.int8(block=1024, feedback=True)`.

        Args:
            compress_all: where a wrapper chooses for the parameters of a model: whether the codec acts on all of them. If
                not, vectors, scalars and parameters with less than the setting `min_compress_bytes` travel unchanged:
                norms and biases are a small share of the bytes, and a large share of the error. `fp16` and `bf16` act on
                all in any case.
            parameters: `block` is one of the codecs with blocks. Every codec that loses something has `feedback`: what a round
                loses of a tensor is added to the tensor's next round, on the workers and on the servers. So nothing is
                lost for good, and codecs that lose much still train. It costs an f32 for each element on each machine and
                on the servers. It acts on sums and means of float32. If a worker is lost, or a round fails, it begins
                anew. `stochastic`, of bf16 and the codecs with blocks, rounds up or down by chance, so that elements are
                right on average; the same round has the same bits on every run. `momentum` or `nesterov`, beside
                `feedback`, is a factor such as 0.9 by which workers average gradients over the rounds before they are
                encoded; the optimizer then has none. `momentum` is the correction of deep gradient compression, which
                forgets the average of what was sent; it costs a second f32 for each element. The first use of the
                compressor refuses a parameter that the codec does not have.
        """
        codec, _, text = self.codec.partition(":")
        settings: dict[str, str] = dict(word.split("=", 1) for word in text.split(",") if word)
        settings.update({name: _written(name, value) for name, value in parameters.items()})
        text = ",".join(f"{name}={value}" for name, value in settings.items())
        everywhere = self.compress_all if compress_all is None else compress_all
        return Compressor(f"{codec}:{text}" if text else codec, everywhere)

    @property
    def is_cast(self) -> bool:
        """Whether it rounds each element on its own, or keeps it. Such a codec acts on every tensor."""
        return self.codec.partition(":")[0] in ("none", "fp16", "bf16", "lossless")

    @property
    def must_act(self) -> bool:
        """Whether it is an error if it acts on no parameter of a model."""
        return not self.is_cast


@dataclass(frozen=True, slots=True)
class AutoCompressor(Compressor):
    """One of several compressors, or none: the one with which the sums of this job are fastest."""

    allowed: tuple[Compressor, ...] = ()

    def __call__(  # type: ignore[override]
        self, *allowed: Compressor, compress_all: bool | None = None
    ) -> AutoCompressor:
        """The same with these compressors in place of `bf16`, such as `Compression.auto(Compression.int8)`."""
        everywhere = self.compress_all if compress_all is None else compress_all
        listed = tuple(check_compression(one) for one in allowed) or self.allowed
        return AutoCompressor(self.codec, everywhere, listed)

    @property
    def is_cast(self) -> bool:
        """Not known before it is measured."""
        return False

    @property
    def must_act(self) -> bool:
        """It may take none."""
        return False


class Compression:
    """The compressors to choose from."""

    none = Compressor("none")
    """Sends tensors unchanged."""
    fp16 = Compressor("fp16")
    """Half the bytes of float32, 11 bits of precision; overflows at 65504, so scale the loss or sum few workers."""
    bf16 = Compressor("bf16")
    """Half the bytes of float32 with its range, 8 bits of precision."""
    int8 = Compressor("int8")
    """A quarter of the bytes of float32: blocks of 256 elements with a scale each. An element is off by at most 1/254 of
    the largest magnitude in its block, in each contribution and in the sum. `Compression.int8(block=1024)` has blocks
    of 1,024 (32 to 4,096): fewer bytes, less exact.
    """
    int4 = Compressor("int4")
    """An eighth of the bytes of float32: blocks of 128 elements with a scale each. An element is off by at most 1/13.8 of
    the largest magnitude in its block, so add `feedback=True`, or `stochastic=True`.
    """
    fp8_e4m3 = Compressor("fp8_e4m3")
    """A quarter of the bytes of float32: blocks of 256 8-bit floats with a scale each. An element is off by at most 1/16 of
    itself, unless it is smaller than a 30,000th of the largest magnitude in its block.
    """
    fp8_e5m2 = Compressor("fp8_e5m2")
    """As `fp8_e4m3`, for elements of very different size: an element is off by at most 1/8 of itself, unless it is smaller
    than a billionth of the largest magnitude in its block.
    """
    lossless = Compressor("lossless")
    """All bits of elements of any type, in fewer bytes: bytes that stand at the same place in elements are compressed
    together (DEFLATE). It helps where many elements are zero, or with slow links: float32 that look random get a seventh
    shorter. A part that would not get a twentieth shorter is sent unchanged.
    """
    onebit = Compressor("onebit")
    """A bit for each element of float32: its sign. Of each part, an element becomes the mean of the magnitudes or minus
    it, so use it with `feedback=True`. `Compression.onebit(scaling=0)` sends signs alone: elements become 1 or -1. For
    sums and means; a part with a NaN or an infinity becomes NaN.
    """
    dithering = Compressor("dithering")
    """An element of float32 becomes one of 16 levels of the largest magnitude of its part, by a chance that makes it right on
    average. Levels are written in few bits: of normally distributed elements about a sixth of the bytes.
    `Compression.dithering(s=4)` has 4 levels (1 to 127): fewer bytes, less exact. With `natural=1` the levels are the powers
    of two down to 2^-(s-1) of the largest (s: 1 to 16). With `norm=1` the levels are of the root of the sum of the squares,
    so that few elements are not zero. For sums and means; a part with a NaN or an infinity is sent unchanged.
    """
    randomk = Compressor("randomk")
    """Of each part of float32, 1 % of the elements, 4 bytes each, at places that all workers draw alike; the others count as
    zero. What is sent is multiplied by 100, so that the sum is right on average. `Compression.randomk(k=100_000)` sends
    100,000 millionths (1 to 500,000), so a tenth. With `feedback=True` nothing is multiplied, and what is left out comes
    later. For sums and means; all that is sent of a part with a NaN or an infinity is NaN.
    """
    topk = Compressor("topk")
    """Of each part of float32, only the 1 % of the elements with the largest magnitudes, about 5 bytes each; the others
    count as zero. `Compression.topk(k=1000)` sends 1,000 millionths (1 to 250,000), so 0.1 %; `topk(count=500)` sends
    500 elements of each part. With `warmup=100` a quarter of the elements is sent in the first 100 rounds of a tensor's
    name, a 16th in the next 100, and so on down to `k` or `count`. Sums have the elements of all workers. For sums and
    means: minima and maxima are sent unchanged, and so are parts with a NaN or an infinity. What is left out comes later
    with `feedback=True`, else it is lost.
    """
    auto = AutoCompressor("auto", False, (bf16,))
    """For the parameters of a model: `bf16`, or none if that is not faster. When the first model is wrapped, the workers
    reduce some tensors with and without it for a few seconds, and rank 0 prints what they take from which size on.
    `Compression.auto(Compression.bf16, Compression.int8)` may also take `int8`: codecs that lose more must be named.
    """


def _written(name: str, value: float) -> str:
    """A parameter in the engine's words."""
    return str(round(value * 1_000_000) if name in ("momentum", "nesterov") else int(value))


def check_compression(compression: object) -> Compressor:
    """Returns `compression` if it is one.

    Raises:
        InvalidArgumentError: it is something else, such as its name.
    """
    if isinstance(compression, Compressor):
        return compression
    hint = f"Compression.{compression}" if compression in _CODECS else "one of Compression"
    raise InvalidArgumentError(f"compression={compression!r} is no compressor; use {hint}")
