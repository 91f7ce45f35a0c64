"""The kernels of codecs, whose source is compiled for the host, before their PTX in the interpreter and before bodies of a script.

So the source, the PTX and the definitions of the codecs (`core/src/codec/vectors/generate.py`) agree, and no two of them share code. A
test in Rust, beside the kernels, compares the PTX with the engine's codecs on the host.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hostkernels import Arena, Kernels
from nvidia import CUDA_SOURCES, ROOT, kernels_of_engine


class Run(ctypes.Structure):
    """As in `codecs.cu`."""

    _fields_ = [
        ("origin", ctypes.c_uint64),
        ("to", ctypes.c_uint64),
        ("len", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
    ]


class Runs(ctypes.Structure):
    """As in `codecs.cu`."""

    _fields_ = [
        ("factor", ctypes.c_float),
        ("block", ctypes.c_uint32),
        ("by_chance", ctypes.c_uint32),
        ("low", ctypes.c_uint32),
        ("high", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("runs", Run * 169),
    ]


CODECS = {"int8": (4, 1), "int4": (2, 2), "fp8_e4m3": (4, 1), "fp8_e5m2": (4, 1)}
"""Of each codec with blocks: bytes of a scale, and codes in a byte."""
GRID = (6, 64)
SEED = 0x0123_4567_89AB_CDEF


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Kernels(CUDA_SOURCES["codecs"], Runs, tmp_path_factory.mktemp("host"))


def body_bytes(codec: str, block: int, count: int) -> int:
    """The length of a body of so many elements."""
    if codec == "bf16":
        return 2 * count
    scale, per_byte = CODECS[codec]
    sizes = [block] * (count // block) + [count % block] * (count % block > 0)
    return sum(scale - -size // per_byte for size in sizes)


def made(kernels, name: str, settings: dict, given: list[bytes], sizes: list[tuple[int, int]], on_device: bool) -> list:
    """What a kernel makes of these runs, which have so many elements and become so many bytes. All lie side by side."""
    inside, outside = Arena(sum(map(len, given)) + 4), Arena(sum(size for _, size in sizes) + 64)
    inside.bytes[: sum(map(len, given))] = np.frombuffer(b"".join(given), np.uint8)
    outside.bytes[:] = 0xEE
    parameter, begin, end, first, places = Runs(factor=1.0, count=len(given), **settings), 0, 0, 11, []
    for index, (data, (count, size)) in enumerate(zip(given, sizes, strict=True)):
        parameter.runs[index] = Run(inside.address + begin, outside.address + end, count, first)
        places.append((end, end + size))
        begin, end, first = begin + len(data), end + size, first + count
    kernels.run(name, parameter, GRID, on_device)
    found = outside.bytes.copy()
    assert (found[end:] == 0xEE).all(), f"{name} wrote behind its runs"
    for arena in (inside, outside):
        arena.free()
    return [found[begin:end].tobytes() for begin, end in places]


def floats(count: int, seed: int) -> np.ndarray:
    """Numbers of every sign and exponent in blocks of one size each; here and there none, or an infinite one."""
    chance = np.random.default_rng(seed)
    bits = chance.integers(0, 1 << 32, count, np.uint32, endpoint=False)
    # Runs of numbers of similar sizes: of wild ones all but the largest become zero.
    sizes = np.repeat(chance.integers(0, 250, count // 200 + 1), 200)[:count]
    similar = bits & 0x807FFFFF | (sizes + chance.integers(0, 5, count)).astype(np.uint32) << 23
    return np.where(chance.random(count) < 0.002, bits, similar).view(np.float32)


@pytest.mark.parametrize("by_chance", [0, 1], ids=["nearest", "by_chance"])
@pytest.mark.parametrize("block", [32, 67, 256, 4096])
@pytest.mark.parametrize("codec", CODECS)
def test_the_source_on_the_host_makes_and_reads_blocks_as_the_ptx_does(kernels, codec, block, by_chance):
    settings = {"block": block, "by_chance": by_chance, "low": SEED & 0xFFFFFFFF, "high": SEED >> 32}
    # Grids are multiples of the number of runs.
    counts = [40_000, 2 * block + 1, 1] if block % 2 else [40_000, 5]
    given = [floats(count, index).tobytes() for index, count in enumerate(counts)]
    sizes = [(count, body_bytes(codec, block, count)) for count in counts]
    device, host = (made(kernels, f"gradlane_encode_{codec}", settings, given, sizes, form) for form in (True, False))
    assert device == host
    # One run, because elements lie at multiples of four bytes, and the bodies side by side do not.
    for body, count in zip(host, counts, strict=True):
        sizes = [(count, 4 * count)]
        device, host = (
            made(kernels, f"gradlane_decode_{codec}", settings, [body], sizes, form) for form in (True, False)
        )
        assert_equal(device[0], host[0])


@pytest.mark.parametrize("codec", CODECS)
def test_the_source_on_the_host_reads_any_bytes_as_the_ptx_does(kernels, codec):
    count = 20_000
    body = np.random.default_rng(3).integers(0, 256, body_bytes(codec, 40, count), np.uint8).tobytes()
    settings = {"block": 40}
    device, host = (
        made(kernels, f"gradlane_decode_{codec}", settings, [body], [(count, 4 * count)], form)
        for form in (True, False)
    )
    assert_equal(device[0], host[0])


def test_the_source_on_the_host_rounds_bf16_by_chance_as_the_ptx_does(kernels):
    settings = {"by_chance": 1, "low": 5, "high": SEED >> 32}
    counts = [100_000, 77]
    given = [np.random.default_rng(4).integers(0, 1 << 32, count, np.uint32).tobytes() for count in counts]
    sizes = [(count, 2 * count) for count in counts]
    name = "gradlane_encode_bf16_by_chance"
    device, host = (made(kernels, name, settings, given, sizes, form) for form in (True, False))
    assert device == host


@pytest.mark.parametrize("on_device", [True, False], ids=["ptx", "host"])
def test_bodies_are_those_of_a_script_that_shares_no_code(kernels, on_device):
    seen = set()
    for line in (ROOT / "core/src/codec/vectors/bodies.txt").read_text().splitlines():
        spec, round_, elements, due = line.split()
        codec, _, text = spec.partition(":")
        options = dict(word.split("=") for word in text.split(",") if word)
        by_chance = "stochastic" in options
        if codec not in CODECS and not (codec == "bf16" and by_chance):
            continue  # the host encodes it
        seed = script().seed_of(int(round_))
        block, data = int(options.get("block", "1")), bytes.fromhex(elements)
        settings = {"block": block, "by_chance": by_chance, "low": seed & 0xFFFFFFFF, "high": seed >> 32}
        count = len(data) // 4
        name = "gradlane_encode_bf16_by_chance" if codec == "bf16" else f"gradlane_encode_{codec}"
        # The runs of `made` begin elsewhere in their part.
        inside, outside = Arena(len(data)), Arena(len(bytes.fromhex(due)))
        inside.bytes[:] = np.frombuffer(data, np.uint8)
        parameter = Runs(factor=1.0, count=1, **settings)
        parameter.runs[0] = Run(inside.address, outside.address, count, 0)
        kernels.run(name, parameter, GRID, on_device)
        assert outside.bytes.tobytes().hex() == due, spec
        for arena in (inside, outside):
            arena.free()
        seen.add((codec, by_chance))
    assert seen == {(codec, by_chance) for codec in CODECS for by_chance in (False, True)} | {("bf16", True)}


def script():
    """The script that made the bodies."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", ROOT / "core/src/codec/vectors/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_equal(device: bytes, host: bytes) -> None:
    """Equal in all bits. A NaN may have any payload, which devices do not keep."""
    device, host = (np.frombuffer(elements, np.float32) for elements in (device, host))
    differ = (device.view(np.uint32) != host.view(np.uint32)) & ~(np.isnan(device) & np.isnan(host))
    assert not differ.any(), f"{differ.sum()} elements, such as {device[differ][0]} and {host[differ][0]}"


def test_every_kernel_of_the_engine_is_compared():
    compared = [f"gradlane_{way}_{codec}" for codec in CODECS for way in ("encode", "decode")]
    assert sorted([*compared, "gradlane_encode_bf16_by_chance"]) == sorted(kernels_of_engine("codecs"))
