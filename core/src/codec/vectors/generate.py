"""Bodies of every codec whose bodies are alike in every version, made from the definitions in exact arithmetic, for the test beside this file.

Run it after a change of a wire form: `python core/src/codec/vectors/generate.py > core/src/codec/vectors/bodies.txt`, and with the
argument `lossless` for `lossless.txt`, whose bodies are decoded only. It shares no code with the engine, and reads nothing of it.
"""

from __future__ import annotations

import sys
import zlib
from fractions import Fraction
from math import isqrt

KEY, INDEX = 5, 6
"""The part of all bodies: the key of its tensor, and its index there."""

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def mix64(word: int) -> int:
    """The output function of SplitMix64."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK64
    return word ^ word >> 31


def seed_of(round_: int) -> int:
    """The seed of the part in a round."""
    return mix64(mix64(KEY ^ INDEX) ^ round_)


def draw32(seed: int, element: int) -> int:
    """The number of 32 bits that a seed draws for an element."""
    word = (element & MASK32) ^ (seed & MASK32)
    word = ((word ^ word >> 16) * 0x21F0AAAD & MASK32) ^ seed >> 32
    word = (word ^ word >> 15) * 0x735A2D97 & MASK32
    return word ^ word >> 15


def rounded(value: Fraction, fraction_bits: int, exponent_min: int) -> Fraction:
    """The float nearest to a value, of two the even: with so many bits behind the point, and this exponent for the smallest normal one."""
    if value == 0:
        return value
    exponent = exponent_min
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - fraction_bits)
    # Python rounds a fraction half to even.
    return round(value / step) * step


def f32(value: Fraction) -> Fraction:
    return rounded(value, 23, -126)


def f32_bits(value: Fraction) -> int:
    sign, value = (1 << 31 if value < 0 else 0), abs(value)
    exponent = -126
    while value >= Fraction(2) ** (exponent + 1):
        exponent += 1
    mantissa = value / Fraction(2) ** (exponent - 23)
    assert mantissa.denominator == 1
    biased = exponent + 127 if mantissa >= 1 << 23 else 0
    return sign | biased << 23 | int(mantissa) & (1 << 23) - 1


def f32_of(bits: int) -> Fraction:
    exponent, mantissa = bits >> 23 & 0xFF, bits & (1 << 23) - 1
    assert exponent < 0xFF
    magnitude = Fraction(mantissa | (1 << 23 if exponent else 0)) * Fraction(2) ** (max(exponent, 1) - 150)
    return -magnitude if bits >> 31 else magnitude


def u16(draw: int) -> Fraction:
    """Between 0 and 1, and neither of them."""
    return (Fraction(draw >> 16) + Fraction(1, 2)) / 65536


def whole(value: Fraction, draw: int | None) -> int:
    """A whole number beside a value: the nearest, or one by chance."""
    return round(value) if draw is None else (value + u16(draw)).__floor__()


def float8(value: Fraction, fraction_bits: int, bias: int, draw: int | None) -> int:
    """The code of a float of 8 bits beside a value."""
    sign, value = (0x80 if value < 0 else 0), abs(value)
    exponent = 1 - bias
    while value >= Fraction(2) ** (exponent + 1):
        exponent += 1
    steps = value / Fraction(2) ** (exponent - fraction_bits)
    if draw is None:
        count = round(steps)
    elif value < Fraction(2) ** (1 - bias):
        count = (steps + u16(draw)).__floor__()
    else:
        rest = 1 << 23 - fraction_bits
        count = (steps + Fraction(draw % rest, rest)).__floor__()
    # The numbers of an exponent follow those of the exponent before it.
    return sign | count + (exponent - 1 + bias << fraction_bits)


def block(codec: str, elements: list[Fraction], draws: list[int | None]) -> bytes:
    """A block of these elements."""
    largest = {"int8": 127, "int4": 7, "fp8_e4m3": 448, "fp8_e5m2": 57344}[codec]
    scale = f32(max(map(abs, elements)) / largest)
    if codec == "int4":
        bits = f32_bits(scale)
        scale = f32_of(bits + (-bits & 0xFFFF))
    codes = []
    for element, draw in zip(elements, draws, strict=True):
        scaled = f32(element / scale) if scale else Fraction(0)
        scaled = max(-largest, min(largest, scaled))
        if codec in ("int8", "int4"):
            codes.append(whole(scaled, draw) & 0xFF)
        else:
            fraction_bits, bias = (3, 7) if codec == "fp8_e4m3" else (2, 15)
            codes.append(float8(scaled, fraction_bits, bias, draw))
    if codec != "int4":
        return f32_bits(scale).to_bytes(4, "little") + bytes(codes)
    halves = [code & 0xF for code in codes] + [0]
    pairs = bytes(halves[at] | halves[at + 1] << 4 for at in range(0, len(codes), 2))
    return (f32_bits(scale) >> 16).to_bytes(2, "little") + pairs


def bf16(element: Fraction, draw: int | None) -> bytes:
    """The bf16 beside an element."""
    bits = f32_bits(element)
    if draw is None:
        rounded_bits = f32_bits(rounded(element, 7, -126))
    else:
        rounded_bits = bits & 1 << 31 | (bits & (1 << 31) - 1) + (draw >> 16)
    return (rounded_bits >> 16).to_bytes(2, "little")


def random_k(elements: list[Fraction], millionths: int, seed: int, feedback: bool) -> bytes:
    """The elements at drawn places."""
    number = mix64(seed)
    count = max(1, -(-len(elements) * millionths // 1_000_000))
    values = []
    for run in range(count):
        first, end = run * len(elements) // count, (run + 1) * len(elements) // count
        at = first + (draw32(number, run) * (end - first) >> 32)
        values.append(f32(elements[at] * (1 if feedback else end - first)))
    return number.to_bytes(8, "little") + b"".join(f32_bits(value).to_bytes(4, "little") for value in values)


def onebit(elements: list[Fraction], scaling: bool) -> bytes:
    """The signs of the elements, and the mean of their magnitudes."""
    bits = "".join("1" if element < 0 else "0" for element in elements)
    bits += "0" * (-len(bits) % 32)
    words = b"".join(int(bits[at : at + 32], 2).to_bytes(4, "little") for at in range(0, len(bits), 32))
    scale = f32(sum(map(abs, elements), Fraction(0)) / len(elements)) if scaling else Fraction(1)
    return words + f32_bits(scale).to_bytes(4, "little")


def elias_delta(number: int) -> str:
    """The bits of a number of at least 1."""
    length = f"{number.bit_length():b}"
    return "0" * (len(length) - 1) + length + f"{number:b}"[1:]


def dithering(elements: list[Fraction], options: dict[str, str], seed: int) -> bytes:
    """Levels by chance, in Elias' delta code."""
    s, natural = int(options.get("s", "16")), options.get("natural") == "1"
    levels = 2 ** (s - 1) if natural else s
    scale = max(map(abs, elements))
    if options.get("norm") == "1":
        square = sum((element**2 for element in elements), Fraction(0))
        scale = f32(Fraction(isqrt((square.numerator << 400) // square.denominator), 1 << 200))
    bits, before = "", -1
    for at, element in enumerate(elements):
        steps, draw = f32(f32(abs(element) / scale) * levels), draw32(seed, at)
        level = (steps + u16(draw)).__floor__()
        if natural and steps >= 1:
            power = 1 << steps.__floor__().bit_length() - 1
            level = power * (2 if (steps / power - 1) + Fraction(draw % (1 << 23), 1 << 23) >= 1 else 1)
        if level > 0:
            bits += elias_delta(at - before) + ("1" if element < 0 else "0") + elias_delta(level)
            before = at
    padded = bits + "0" * (-len(bits) % 32)
    words = [int(padded[at : at + 32], 2) for at in range(0, len(padded), 32)]
    return b"".join(word.to_bytes(4, "little") for word in [*words, len(bits), f32_bits(scale)])


def body(spec: str, elements: list[Fraction], round_: int) -> bytes:
    """The body of a part."""
    codec, _, text = spec.partition(":")
    options = dict(word.split("=") for word in text.split(",") if word)
    seed = seed_of(round_)
    draws = [draw32(seed, at) if "stochastic" in options else None for at in range(len(elements))]
    if codec == "bf16":
        return b"".join(map(bf16, elements, draws))
    if codec == "randomk":
        return random_k(elements, int(options["k"]), seed, "feedback" in options)
    if codec == "dithering":
        return dithering(elements, options, seed)
    if codec == "onebit":
        return onebit(elements, options.get("scaling", "1") == "1")
    size = int(options["block"])
    starts = range(0, len(elements), size)
    return b"".join(block(codec, elements[at : at + size], draws[at : at + size]) for at in starts)


RUN = 1 << 15


def lossless(elements: bytes, width: int, is_float: bool) -> bytes:
    """Bytes in planes, as DEFLATE streams. An engine need not make the same streams."""
    made = b""
    for first in range(0, len(elements), RUN * width):
        words = [int.from_bytes(elements[at : at + width], "little") for at in range(first, min(first + RUN * width, len(elements)), width)]
        if is_float:
            top = 8 * width - 1
            words = [word << 1 & (1 << 8 * width) - 1 | word >> top for word in words]
        planes = []
        for at in range(width):
            plane = bytes(word >> 8 * at & 0xFF for word in words)
            maker = zlib.compressobj(9, zlib.DEFLATED, -15)
            stream = maker.compress(plane) + maker.flush()
            planes.append(stream if len(stream) < len(plane) else plane)
        made += b"".join(len(plane).to_bytes(2, "little") for plane in planes) + b"".join(planes)
    return made


def print_lossless() -> None:
    for dtype, width in [("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8), ("int8", 1), ("int32", 4), ("int64", 8)]:
        is_float = "float" in dtype
        elements, word = b"", width
        for at in range(60):
            word = mix64(word + 1)
            # Bytes that differ little in the last places of an element, and zeros.
            some = (word & (1 << 8 * width) - 1) % (1 << 8 * width - 4)
            elements += (0 if at % 3 else some).to_bytes(width, "little")
        print(dtype, elements.hex(), lossless(elements, width, is_float).hex())


def some_elements(count: int, word: int) -> list[Fraction]:
    """Elements of many magnitudes, a zero among them."""
    elements = [Fraction(0)]
    while len(elements) < count:
        word = mix64(word + 1)
        # An exponent of -20 to 11, and any sign and fraction.
        bits = (word >> 32 & 1 << 31) | (107 + (word >> 8) % 32) << 23 | word & (1 << 23) - 1
        elements.append(f32_of(bits))
    return elements


def main() -> None:
    specs = [f"{codec}:block={size}" for codec in ("int8", "int4", "fp8_e4m3", "fp8_e5m2") for size in (32, 37)]
    specs += [f"{spec},stochastic=1" for spec in specs]
    specs += ["bf16", "bf16:stochastic=1", "randomk:k=100000", "randomk:k=300000,feedback=1"]
    specs += ["onebit", "onebit:scaling=0"]
    specs += ["dithering:s=16", "dithering:s=127", "dithering:s=16,natural=1", "dithering:s=99,norm=1"]
    specs += ["dithering:s=14,natural=1,norm=1"]
    for number, spec in enumerate(specs):
        elements = some_elements(77, number)
        given = b"".join(f32_bits(element).to_bytes(4, "little") for element in elements)
        print(spec, number, given.hex(), body(spec, elements, number).hex())


if __name__ == "__main__":
    print_lossless() if sys.argv[1:] == ["lossless"] else main()
