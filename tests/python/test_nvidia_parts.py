"""The kernels of codecs of whole parts, whose source is compiled for the host, before their PTX in the interpreter and before a script.

So the source, the PTX and the definitions of the codecs (`core/src/codec/vectors/generate.py`) agree, and no two of them share code. A
test in Rust, beside the kernels, compares the PTX with the engine's codecs on the host.
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
    """As in `parts.cu`."""

    _fields_ = [
        ("origin", ctypes.c_uint64),
        ("to", ctypes.c_uint64),
        ("notes", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("len", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("factor", ctypes.c_float),
        ("has_mean", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class Form:
    """A codec with its parameter: millionths of the elements, or whether the scale is a mean."""

    codec: str
    number: int

    def count(self, elements: int) -> int:
        """How many elements are drawn."""
        return min(max(-(-elements * self.number // 1_000_000), 1), elements) if self.codec == "randomk" else 0

    def body_bytes(self, elements: int) -> int:
        return 8 + 4 * self.count(elements) if self.codec == "randomk" else 4 * -(-elements // 32) + 4


KERNELS = {
    "onebit": (["gradlane_onebit_signs", "gradlane_onebit_scale"], ["gradlane_onebit_values"]),
    "randomk": (
        ["gradlane_randomk_look", "gradlane_randomk_gather"],
        ["gradlane_randomk_clear", "gradlane_randomk_scatter"],
    ),
}
"""What encodes a part, and what decodes it."""
FORMS = [Form("onebit", 1), Form("onebit", 0), Form("randomk", 10_000), Form("randomk", 500_000)]
BLOCK = 2048
"""Elements of a note."""
SEED = 0x0123_4567_89AB_CDEF
BEYOND = 8


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Kernels(CUDA_SOURCES["parts"], Part, tmp_path_factory.mktemp("host"))


def encoded(kernels, form: Form, elements: bytes, on_device: bool, seed: int = SEED, grid=(3, 64)) -> bytes:
    """The body of a part."""
    count = len(elements) // 4
    notes = 8 * -(-count // BLOCK)
    inside, outside, kept = Arena(len(elements) + 4), Arena(form.body_bytes(count) + BEYOND), Arena(notes + BEYOND)
    # At a multiple of 4 that is none of 8.
    inside.bytes[4:] = np.frombuffer(elements, np.uint8)
    outside.bytes[:], kept.bytes[:] = 0xEE, 0xEE
    places = (inside.address + 4, outside.address, kept.address, seed)
    part = Part(*places, count, form.count(count), 1.0, form.codec == "onebit" and form.number)
    for name in KERNELS[form.codec][0]:
        kernels.run(name, part, grid, on_device)
    body = outside.bytes.tobytes()
    assert body[-BEYOND:] == kept.bytes.tobytes()[-BEYOND:] == b"\xee" * BEYOND, f"{form}: written behind the end"
    assert inside.bytes[4:].tobytes() == elements, "elements are only read"
    for arena in (inside, outside, kept):
        arena.free()
    return body[:-BEYOND]


def decoded(kernels, form: Form, body: bytes, count: int, on_device: bool, grid=(3, 64)) -> bytes:
    """The elements of a body."""
    inside, outside = Arena(len(body)), Arena(4 * count + BEYOND)
    inside.bytes[:], outside.bytes[:] = np.frombuffer(body, np.uint8), 0xEE
    part = Part(inside.address, outside.address, 0, 0, count, form.count(count), 1.0, 0)
    for name in KERNELS[form.codec][1]:
        kernels.run(name, part, grid, on_device)
    elements = outside.bytes.tobytes()
    assert elements[-BEYOND:] == b"\xee" * BEYOND, f"{form}: written behind the end"
    for arena in (inside, outside):
        arena.free()
    return elements[:-BEYOND]


def finite(count: int) -> np.ndarray:
    """Numbers of every sign and exponent, zeros of both signs and the smallest numbers among them."""
    chance = np.random.default_rng(count)
    values = chance.integers(0, 1 << 32, count, np.uint32, endpoint=False).view(np.float32)
    values = np.where(np.isfinite(values), values, np.float32(-3.0))
    kind = chance.integers(0, 40, count)
    return np.select([kind == 0, kind == 1, kind == 2], [0.0, -0.0, -1e-45], values).astype(np.float32)


LENS = [1, 2, 31, 32, 33, 1023, 1024, 1025, 2047, 2048, 2049, 32 * 2048, 100_001]


@pytest.mark.parametrize("count", LENS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_source_on_the_host_makes_and_reads_bodies_as_the_ptx_does(kernels, form, count):
    elements = finite(count).tobytes()
    device, host = (encoded(kernels, form, elements, on_device) for on_device in (True, False))
    assert device == host
    device, host = (decoded(kernels, form, host, count, on_device) for on_device in (True, False))
    assert device == host


@pytest.mark.parametrize("strange", [np.nan, -np.inf])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_number_that_is_none_spoils_its_part_wherever_it_is(kernels, form, strange):
    for at in (0, 2047, 2048, 5_000):
        elements = finite(5_001)
        elements[at] = strange
        device, host = (encoded(kernels, form, elements.tobytes(), on_device) for on_device in (True, False))
        assert device == host
        sent = np.frombuffer(host, np.float32)[-1:] if form.codec == "onebit" else np.frombuffer(host, np.float32)[2:]
        assert np.isnan(sent).all()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_any_bytes_are_read_by_the_source_on_the_host_as_by_the_ptx(kernels, form):
    for number in range(20):
        chance = np.random.default_rng(number)
        count = int(chance.integers(1, 4_000))
        body = chance.integers(0, 256, form.body_bytes(count), np.uint8).tobytes()
        device, host = (decoded(kernels, form, body, count, on_device) for on_device in (True, False))
        assert device == host


@pytest.mark.parametrize("on_device", [True, False], ids=["ptx", "host"])
def test_bodies_are_those_of_a_script_that_shares_no_code(kernels, on_device):
    seen = set()
    for line in (ROOT / "core/src/codec/vectors/bodies.txt").read_text().splitlines():
        spec, round_, elements, due = line.split()
        codec, _, text = spec.partition(":")
        options = dict(word.split("=") for word in text.split(",") if word)
        if codec not in KERNELS or "feedback" in options:
            continue  # the host encodes it
        form = Form(codec, int(options.get("k", options.get("scaling", "1"))))
        seed = script().mix64(script().seed_of(int(round_)))
        assert encoded(kernels, form, bytes.fromhex(elements), on_device, seed).hex() == due, spec
        seen.add(codec)
    assert seen == set(KERNELS)


def test_every_kernel_of_the_engine_is_compared():
    compared = [name for ways in KERNELS.values() for names in ways for name in names]
    assert sorted(compared) == sorted(kernels_of_engine("parts"))
