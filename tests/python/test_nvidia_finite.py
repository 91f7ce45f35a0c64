"""The kernel that looks for NaN and infinities: its source, compiled for the host, its PTX, interpreted, and NumPy.

A test in Rust, beside the kernel, compares the PTX with the look of the engine on the host.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hostkernels import Arena, Kernels
from nvidia import CUDA_SOURCES, kernels_of_engine

KERNEL = "gradlane_finite"
RUNS_MAX = 253


class Run(ctypes.Structure):
    """As in `finite.cu`."""

    _fields_ = [("origin", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


class Runs(ctypes.Structure):
    """As in `finite.cu`."""

    _fields_ = [
        ("exponents", ctypes.c_uint64),
        ("lowest", ctypes.c_uint64),
        ("found", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("runs", Run * RUNS_MAX),
    ]


EXPONENTS = {
    "f16": (np.uint16, 0x7C00_7C00_7C00_7C00, 0x0400_0400_0400_0400),
    "bf16": (np.uint16, 0x7F80_7F80_7F80_7F80, 0x0080_0080_0080_0080),
    "f32": (np.uint32, 0x7F80_0000_7F80_0000, 0x0080_0000_0080_0000),
    "f64": (np.uint64, 0x7FF0_0000_0000_0000, 0x0010_0000_0000_0000),
}
"""Of each type: the integers with its bits, the exponents in a word, and the lowest bit of each."""
NUMBER = 0x0123_4567_89AB_CDEF
UNTOUCHED = 0xEEEE_EEEE_EEEE_EEEE
GRID = (6, 64)
"""Blocks and threads. The blocks are a multiple of the number of runs, which is 1 or 3 here."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Kernels(CUDA_SOURCES["finite"], Runs, tmp_path_factory.mktemp("host"))


def is_finite(bits: np.ndarray, kind: str) -> np.ndarray:
    """Of each element, by its bits."""
    _, exponents, _ = EXPONENTS[kind]
    exponent = bits.dtype.type(exponents & np.iinfo(bits.dtype).max)
    return bits & exponent != exponent


def found(kernels, kind: str, bits: np.ndarray, runs: list[tuple[int, int]], on_device: bool) -> bool:
    """Whether a kernel finds an element that is not finite in runs of these elements: begin and length of each."""
    _, exponents, lowest = EXPONENTS[kind]
    memory, word = Arena(bits.nbytes), Arena(8)
    memory.bytes[:] = bits.view(np.uint8)
    word.bytes[:] = 0xEE
    parameter = Runs(exponents, lowest, word.address, NUMBER, len(runs))
    for index, (begin, length) in enumerate(runs):
        parameter.runs[index] = Run(memory.address + begin * bits.itemsize, length * bits.itemsize)
    kernels.run(KERNEL, parameter, GRID, on_device)
    written = int(word.bytes.view(np.uint64)[0])
    assert (memory.bytes == bits.view(np.uint8)).all(), "it is only read"
    memory.free()
    word.free()
    assert written in (NUMBER, UNTOUCHED)
    return written == NUMBER


@pytest.mark.parametrize("kind", EXPONENTS)
def test_source_ptx_and_numpy_find_the_same_elements(kernels, kind):
    dtype, _, _ = EXPONENTS[kind]
    chance = np.random.default_rng(7)
    # Every float of two bytes, and wider ones of every exponent.
    size = np.dtype(dtype).itemsize
    high = np.arange(0, 1 << 16, 1 if size == 2 else 13).astype(dtype) << dtype(8 * (size - 2))
    elements = high if size == 2 else high | chance.integers(0, 1 << 16, len(high), dtype)
    fine = is_finite(elements, kind)
    assert 0 < fine.sum() < len(elements)
    for some in (elements[fine], elements[~fine]):
        for at in range(0, len(some), 1 + len(some) // 30):
            assert_all_agree(kernels, kind, some[at : at + 1])
    # All that are finite together, and each of the others among them.
    many = elements[fine][:5_001]
    assert_all_agree(kernels, kind, many)
    others = elements[~fine]
    for at in (0, 1, 2, 3, len(many) // 2, len(many) - 4, len(many) - 2, len(many) - 1):
        spoilt = many.copy()
        spoilt[at] = others[at % len(others)]
        assert_all_agree(kernels, kind, spoilt)


def assert_all_agree(kernels, kind: str, elements: np.ndarray) -> None:
    """With what is not finite on both sides of the run, which begins at every element of a word."""
    for before in range(8 // elements.itemsize):
        infinite = np.array([EXPONENTS[kind][1] & np.iinfo(elements.dtype).max], elements.dtype)
        bits = np.concatenate([infinite.repeat(before), elements, infinite.repeat(3)])
        runs = [(before, len(elements))]
        for on_device in (True, False):
            due = not is_finite(elements, kind).all()
            assert found(kernels, kind, bits, runs, on_device) == due, f"{kind}: {len(elements)} from {before}"


@pytest.mark.parametrize("kind", EXPONENTS)
def test_of_several_runs_each_is_looked_at_and_empty_ones_are_none(kernels, kind):
    dtype, exponents, _ = EXPONENTS[kind]
    infinite = dtype(exponents & np.iinfo(dtype).max)
    runs = [(1, 99), (100, 0), (101, 1_501)]
    for place in (None, 0, 1, 99, 100, 101, 1_601, 1_602):
        bits = np.zeros(1_700, dtype)
        if place is not None:
            bits[place] = infinite
        due = place is not None and any(begin <= place < begin + length for begin, length in runs)
        for on_device in (True, False):
            assert found(kernels, kind, bits, runs, on_device) == due, f"{kind} at {place}"


def test_every_kernel_of_the_engine_is_compared():
    assert kernels_of_engine("finite") == [KERNEL]
