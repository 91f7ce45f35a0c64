"""The kernel that looks for NaN and infinities, before PyTorch on the host."""

from __future__ import annotations

import ctypes

import torch
from driver import Driver, timed
from parts import Functions
from places import IS_SHORT, bytes_of
from telling import figure

KERNEL = "gradlane_finite"
EXPONENTS = {
    torch.float16: (0x7C00_7C00_7C00_7C00, 0x0400_0400_0400_0400),
    torch.bfloat16: (0x7F80_7F80_7F80_7F80, 0x0080_0080_0080_0080),
    torch.float32: (0x7F80_0000_7F80_0000, 0x0080_0000_0080_0000),
    torch.float64: (0x7FF0_0000_0000_0000, 0x0010_0000_0000_0000),
}
"""Of each type: the exponents in a word of 8 bytes, and the lowest bit of each."""
SPECIAL = (float("nan"), float("inf"), float("-inf"))
THREADS, BLOCKS_MAX, RUNS_MAX = 256, 1024, 253
SHARES, WHOLE_BYTES_MAX = 64, 32 << 10
"""Longer runs are cut, as the engine does."""
NUMBER = 7


class Run(ctypes.Structure):
    """A run of memory, in bytes."""

    _fields_ = (("source", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class Runs(ctypes.Structure):
    """The parameter of the kernel, as `finite.cu` has it."""

    _fields_ = (
        ("exponents", ctypes.c_uint64),
        ("lowest", ctypes.c_uint64),
        ("found", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("runs", Run * RUNS_MAX),
    )


def is_of_finite(functions: Functions) -> bool:
    """Whether this kernel of a module is the one that looks."""
    return KERNEL in functions


def check_finite(driver: Driver, stream: ctypes.c_void_p, functions: Functions) -> None:
    """Looks at floats of each type, of several lengths and alignments, and says how fast that is."""
    assert set(functions) == {KERNEL}, sorted(functions)
    lens = (1, 5, 1_001) if IS_SHORT else (1, 2, 3, 5, 255, 70_001, 2_000_003)
    for dtype in EXPONENTS:
        for index, length in enumerate(lens):
            before = 1 + index % 3
            values = torch.ones(before + length + 2, dtype=dtype)
            # What lies beside the run is not looked at.
            values[:before] = values[before + length :] = float("nan")
            places = {None, 0, length // 2, length - 1}
            for place in places:
                content = values.clone()
                if place is not None:
                    content[before + place] = SPECIAL[index % 3]
                found = is_found(driver, stream, functions, content, (before, length))
                assert found == (place is not None), f"{dtype}: {place} of {length} from {before}"
    speed(driver, stream, functions)


def is_found(
    driver: Driver, stream: ctypes.c_void_p, functions: Functions, content: torch.Tensor, run: tuple[int, int]
) -> bool:
    """Whether the kernel finds something in this run of elements: its begin and its length."""
    given = ctypes.create_string_buffer(bytes_of(content), content.nbytes)
    word = ctypes.c_uint64()
    begin, length = (elements * content.itemsize for elements in run)
    with driver.memory(content.nbytes) as there, driver.memory(8) as found:
        driver.fill(found, 0xEE, 8, stream)
        driver.copy_in(ctypes.addressof(given), there, content.nbytes, stream)
        launch(driver, stream, functions, content.dtype, (there + begin, length), found)
        driver.copy_out(ctypes.addressof(word), found, 8, stream)
        driver.call("cuStreamSynchronize", stream)
    assert word.value in (NUMBER, 0xEEEE_EEEE_EEEE_EEEE)
    return word.value == NUMBER


def launch(
    driver: Driver,
    stream: ctypes.c_void_p,
    functions: Functions,
    dtype: torch.dtype,
    run: tuple[int, int],
    found: int,
) -> None:
    """Begins a look at a run of bytes, cut as the engine does."""
    begin, size = run
    each = max(WHOLE_BYTES_MAX, -(-size // SHARES) + 7 & ~7)
    cuts = [begin, *range((begin & ~7) + each, begin + size, each), begin + size]
    runs = [Run(start, end - start) for start, end in zip(cuts, cuts[1:], strict=False)]
    parameter = Runs(*EXPONENTS[dtype], found, NUMBER, len(runs), (Run * RUNS_MAX)(*runs))
    pointer = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
    longest = max(-(-run.bytes // 8) for run in runs)
    blocks = len(runs) * min(BLOCKS_MAX // len(runs), -(-longest // THREADS))
    driver.call("cuLaunchKernel", functions[KERNEL], blocks, 1, 1, THREADS, 1, 1, 0, stream, pointer, None)


def speed(driver: Driver, stream: ctypes.c_void_p, functions: Functions) -> None:
    """Says how many bytes a second are looked at."""
    size = 1 << 16 if IS_SHORT else 64 << 20
    with driver.memory(size) as there, driver.memory(8) as found:
        driver.fill(there, 0, size, stream)

        def look() -> None:
            launch(driver, stream, functions, torch.float32, (there, size), found)

        figure(f"a look for NaN at {size >> 10} KiB", size / timed(driver, stream, look) / 1e9, "GB/s")
