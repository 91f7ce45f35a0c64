"""The kernels of `topk`, whose source is compiled for the host, before their PTX in the interpreter and before a definition in NumPy.

No two of them share code. A test in Rust, beside the kernels, compares the PTX with the engine's codec on the host.
"""

from __future__ import annotations

import numpy as np
import pytest
import topkbodies
from hostkernels import Arena, Kernels
from nvidia import CUDA_SOURCES, kernels_of_engine
from topkbodies import DECODE, ENCODE, RUN, Part

BEYOND = 8


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Kernels(CUDA_SOURCES["topk"], Part, tmp_path_factory.mktemp("host"))


def encoded(kernels, elements: np.ndarray, count: int, on_device: bool, grid=(3, 64)) -> bytes | None:
    """The body of a part, or `None` if the kernels say that it travels plain."""
    size = len(elements)
    longest, room = topkbodies.longest(size, count), topkbodies.room(size, count)
    inside, outside = Arena(elements.nbytes), Arena(room + BEYOND)
    kept = Arena(topkbodies.encoder_notes(size, count) + BEYOND)
    inside.bytes[:] = elements.view(np.uint8)
    outside.bytes[:], kept.bytes[:] = 0xEE, 0xEE
    entries = topkbodies.entries_max(size, count)
    for name, digit in ENCODE:
        part = Part(inside.address, outside.address, kept.address, size, count, entries, longest, digit, 1.0)
        kernels.run(f"gradlane_topk_{name}", part, grid, on_device)
    written = outside.bytes.tobytes()
    assert written[-BEYOND:] == kept.bytes.tobytes()[-BEYOND:] == b"\xee" * BEYOND, "written behind the end"
    assert inside.bytes.tobytes() == elements.tobytes(), "elements are only read"
    for arena in (inside, outside, kept):
        arena.free()
    return topkbodies.told(written, longest)


def decoded(kernels, body: bytes, size: int, on_device: bool, grid=(3, 64)) -> bytes:
    """The elements of a body."""
    inside, outside, kept = Arena(max(len(body), 1)), Arena(4 * size + BEYOND), Arena(8 * -(-len(body) // RUN) + BEYOND)
    inside.bytes[: len(body)] = np.frombuffer(body, np.uint8)
    outside.bytes[:], kept.bytes[:] = 0xEE, 0xEE
    for name, _ in DECODE:
        part = Part(inside.address, outside.address, kept.address, size, 0, 0, len(body), 0, 1.0)
        kernels.run(f"gradlane_topk_{name}", part, grid, on_device)
    elements = outside.bytes.tobytes()
    assert elements[-BEYOND:] == kept.bytes.tobytes()[-BEYOND:] == b"\xee" * BEYOND, "written behind the end"
    for arena in (inside, outside, kept):
        arena.free()
    return elements[:-BEYOND]


def parts(size: int) -> dict[str, np.ndarray]:
    """Elements of several kinds."""
    chance = np.random.default_rng(size)
    bits = chance.integers(0, 1 << 32, size, np.uint32, endpoint=False).view(np.float32)
    every = np.where(np.isfinite(bits), bits, np.float32(-3.0))
    kind = chance.integers(0, 40, size)
    with_nan = every.copy()
    with_nan[size // 2] = np.nan
    return {
        "of every size": np.select([kind == 0, kind == 1, kind == 2], [0.0, -0.0, -1e-45], every).astype(np.float32),
        "of few values": chance.integers(-3, 4, size).astype(np.float32),
        "mostly zeros": np.where(kind == 0, every, np.float32(-0.0)),
        "with a NaN": with_nan,
    }


LENS = [1, 2, 31, 33, 2047, 2049, 70_001]


@pytest.mark.parametrize("size", LENS)
@pytest.mark.parametrize("millionths", [10, 10_000, 250_000, 1_000_000])
def test_source_and_ptx_make_the_bodies_of_the_definition_and_read_them(kernels, size, millionths):
    count = min(max(-(-size * millionths // 1_000_000), 1), size)
    for kind, elements in parts(size).items():
        due = topkbodies.encoded(elements, count)
        for on_device in (True, False):
            assert encoded(kernels, elements, count, on_device) == due, f"{kind}, on the device: {on_device}"
        if due is None:
            continue
        device, host = (decoded(kernels, due, size, on_device) for on_device in (True, False))
        assert device == host
        found = np.frombuffer(host, np.float32)
        is_sent = found != 0
        assert (found[is_sent].view(np.uint32) == elements[is_sent].view(np.uint32)).all()
        assert np.abs(elements[~is_sent]).max(initial=0) <= np.abs(elements[is_sent]).min(initial=np.inf)


def test_any_bytes_are_read_by_the_source_on_the_host_as_by_the_ptx(kernels):
    for seed in range(60):
        chance = np.random.default_rng(seed)
        size, most = int(chance.integers(1, 4_000)), int(chance.integers(2, 256, endpoint=True))
        body = chance.integers(0, most, int(chance.integers(0, 5_000)), np.uint8, endpoint=False)
        body[:2] = [chance.integers(0, 256), chance.integers(0, 8)][: len(body)]
        device, host = (decoded(kernels, body.tobytes(), size, on_device) for on_device in (True, False))
        assert device == host


def test_every_kernel_of_the_engine_is_compared():
    compared = {f"gradlane_topk_{name}" for name, _ in ENCODE + DECODE}
    assert sorted(compared) == sorted(kernels_of_engine("topk"))
