"""The kernels of `dithering`, whose source is compiled for the host, before their PTX in the interpreter and before bodies of a script.

So the source, the PTX and the definition of the codec (`core/src/codec/vectors/generate.py`) agree, and no two of them share code. A test in
Rust, beside the kernels, compares the PTX with the engine's codec on the host.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest
from hostkernels import Arena, Kernels
from nvidia import CUDA_SOURCES, ROOT, kernels_of_engine
from test_nvidia_codecs import script


class Part(ctypes.Structure):
    """As in `dithering.cu`."""

    _fields_ = (
        ("origin", ctypes.c_uint64),
        ("to", ctypes.c_uint64),
        ("notes", ctypes.c_uint64),
        ("len", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("levels", ctypes.c_float),
        ("is_natural", ctypes.c_uint32),
        ("is_euclid", ctypes.c_uint32),
        ("low", ctypes.c_uint32),
        ("high", ctypes.c_uint32),
        ("factor", ctypes.c_float),
    )


@dataclass(frozen=True)
class Form:
    """A codec: the number that gives its levels, whether these are powers of two, and whether its scale is the root of the squares."""

    s: int
    natural: bool = False
    euclid: bool = False

    @property
    def levels(self) -> int:
        return 1 << (self.s - 1) if self.natural else self.s

    def longest(self, elements: int) -> int:
        """Bytes of the longest body: each element has a bit of distance, one of sign, and the longest code of a level."""
        length = self.levels.bit_length()
        bits = elements * (2 + 2 * (length.bit_length() - 1) + length)
        return min(-(-bits // 32) * 4 + 8, 4 * elements)


KERNELS = ["look", "scale", "measure", "order", "write"]
FORMS = [Form(16), Form(1), Form(127), Form(9, natural=True), Form(99, euclid=True), Form(14, natural=True, euclid=True)]
BLOCK = 2048
"""Elements of two notes."""
SEED = 0x0123_4567_89AB_CDEF
REFUSED = (1 << 64) - 1
BEYOND = 8


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Kernels(CUDA_SOURCES["dithering"], Part, tmp_path_factory.mktemp("host"))


def encoded(
    kernels, form: Form, elements: bytes, on_device: bool, seed: int = SEED, grid: tuple[int, int] = (3, 64)
) -> bytes | None:
    """The body of a part, or `None` if the kernels say that it travels plain."""
    count = len(elements) // 4
    longest = form.longest(count)
    told = -(-longest // 8) * 8
    inside, outside = Arena(len(elements)), Arena(told + 8 + BEYOND)
    kept = Arena(8 + 16 * -(-count // BLOCK) + BEYOND)
    inside.bytes[:] = np.frombuffer(elements, np.uint8)
    outside.bytes[:], kept.bytes[:] = 0xEE, 0xEE
    places = (inside.address, outside.address, kept.address)
    draws = (seed & 0xFFFF_FFFF, seed >> 32)
    part = Part(*places, count, longest, form.levels, form.natural, form.euclid, *draws, 1.0)
    for name in KERNELS:
        kernels.run(f"gradlane_dithering_{name}", part, grid, on_device)
    room = outside.bytes.tobytes()
    assert room[-BEYOND:] == kept.bytes.tobytes()[-BEYOND:] == b"\xee" * BEYOND, f"{form}: written behind the end"
    assert inside.bytes.tobytes() == elements, "elements are only read"
    for arena in (inside, outside, kept):
        arena.free()
    length = int.from_bytes(room[told : told + 8], "little")
    return None if length == REFUSED else room[:length]


def parts(count: int) -> list[np.ndarray]:
    """Numbers of every sign and exponent, zeros of both signs among them; numbers of like size; few that are not zero."""
    chance = np.random.default_rng(count)
    every = chance.integers(0, 1 << 32, count, np.uint32, endpoint=False).view(np.float32)
    every = np.where(np.isfinite(every), every, np.float32(-3.0))
    kind = chance.integers(0, 40, count)
    of_every_size = np.select([kind == 0, kind == 1, kind == 2], [0.0, -0.0, -1e-45], every).astype(np.float32)
    alike = chance.standard_normal(count).astype(np.float32)
    return [of_every_size, alike, np.where(kind == 0, alike, np.float32(-0.0))]


@pytest.mark.parametrize("count", [1, 3, 31, 33, 2047, 2049, 70_001])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_source_on_the_host_makes_bodies_as_the_ptx_does(kernels, form, count):
    for elements in parts(count):
        device, host = (encoded(kernels, form, elements.tobytes(), on_device) for on_device in (True, False))
        assert device == host
        # Of three elements no body is shorter, and the root of the squares may be infinite.
        assert host is not None or count < 4 or form.euclid


@pytest.mark.parametrize("strange", [np.nan, -np.inf])
@pytest.mark.parametrize("form", [Form(16), Form(99, euclid=True)], ids=str)
def test_a_part_with_a_number_that_is_none_travels_plain_wherever_it_is(kernels, form, strange):
    for at in (0, 2047, 2048, 5_000):
        elements = parts(5_001)[1]
        elements[at] = strange
        assert [encoded(kernels, form, elements.tobytes(), on_device) for on_device in (True, False)] == [None, None]


@pytest.mark.parametrize("on_device", [True, False], ids=["ptx", "host"])
def test_bodies_are_those_of_a_script_that_shares_no_code(kernels, on_device):
    seen = 0
    for line in (ROOT / "core/src/codec/vectors/bodies.txt").read_text().splitlines():
        spec, round_, elements, due = line.split()
        codec, _, text = spec.partition(":")
        options = {name: int(value) for name, value in (word.split("=") for word in text.split(",") if word)}
        if codec != "dithering":
            continue
        form = Form(options["s"], bool(options.get("natural")), bool(options.get("norm")))
        found = encoded(kernels, form, bytes.fromhex(elements), on_device, script().seed_of(int(round_)))
        assert found is not None and found.hex() == due, spec
        seen += 1
    assert seen == 5


def test_every_kernel_of_the_engine_is_compared():
    assert sorted(f"gradlane_dithering_{name}" for name in KERNELS) == sorted(kernels_of_engine("dithering"))
