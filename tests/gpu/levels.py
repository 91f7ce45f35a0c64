"""The kernels of `dithering`, launched one after the other, against bodies that PyTorch's operations make on the host."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from typing import NamedTuple

import torch
from coding import BEYOND, BLOCKS_MAX, LAUNCHES, SEED, THREADS, WARP, drawn, numbers
from driver import Driver, timed
from parts import Functions
from places import IS_SHORT, bytes_of
from telling import figure

KERNELS = ("look", "scale", "measure", "order", "write")
"""In the order in which they follow each other."""
BLOCK = 2048
"""Elements of two notes."""
REFUSED = (1 << 64) - 1


class Part(ctypes.Structure):
    """The parameter of every kernel, as `dithering.cu` has it."""

    _fields_ = (
        ("source", ctypes.c_uint64),
        ("result", ctypes.c_uint64),
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


class Form(NamedTuple):
    """The largest level, whether all but 0 are powers of two, and whether the scale is the root of the sum of the squares."""

    levels: int
    is_natural: bool
    is_euclid: bool


FORMS = (Form(16, False, False), Form(256, True, False), Form(99, False, True), Form(8192, True, True))


def are_of_dithering(functions: Functions) -> bool:
    """Whether these kernels of a module are those of `dithering`."""
    return "gradlane_dithering_look" in functions


def check_dithering(driver: Driver, stream: ctypes.c_void_p, functions: Functions) -> None:
    """Encodes parts of all kinds, and says how fast that is."""
    assert {f"gradlane_dithering_{kernel}" for kernel in KERNELS} == set(functions), sorted(functions)
    for form in FORMS:
        for elements in cases():
            due, count = encoded(elements, form), len(elements)
            found = made(driver, stream, functions, elements, form)
            assert found == due, f"dithering, {count} elements, {form}"
    speed(driver, stream, functions)


def cases() -> list[torch.Tensor]:
    """Elements of parts: of some lengths around a row and a block, few that are not zero, and one part with what is no number."""
    lens = (1, 33, 2049) if IS_SHORT else (1, 31, 32, 33, 2047, 2048, 2049, 70_001)
    parts = [numbers(count).nan_to_num(0.0, 1.0, -1.0).clamp(-1e10, 1e10) for count in lens]
    alike = torch.randn(5_000, generator=torch.Generator().manual_seed(5))
    few = torch.zeros(5_000)
    few[torch.tensor([3, 2_047, 4_999])] = torch.tensor([1.0, -2.0, 2.0])
    return [*parts, alike, few, torch.zeros(100), numbers(6_001)]


def encoded(elements: torch.Tensor, form: Form) -> bytes | None:
    """The bytes of a body; `None` if the elements travel plain."""
    if not torch.isfinite(elements).all():
        return None
    squares = math.fsum(value * value for value in elements.tolist()) if form.is_euclid else 0.0
    scale = torch.tensor(math.sqrt(squares)).float() if form.is_euclid else elements.abs().max()
    bits, before = [], -1
    if scale > 0:
        levels = drawn_levels(elements, scale, form)
        for at in torch.nonzero(levels).flatten().tolist():
            sign = "1" if elements[at] < 0 else "0"
            bits.append(delta(at - before) + sign + delta(int(levels[at])))
            before = at
    text = "".join(bits)
    padded = text + "0" * (-len(text) % 32)
    words = [int(padded[at : at + 32], 2) for at in range(0, len(padded), 32)]
    body = struct.pack(f"<{len(words) + 1}I", *words, len(text)) + bytes_of(scale.view(1))
    return body if len(body) < elements.nbytes else None


def drawn_levels(elements: torch.Tensor, scale: torch.Tensor, form: Form) -> torch.Tensor:
    """The level of each element: one of the two beside it, by chance."""
    draws = drawn(len(elements), 0)
    steps = elements.abs() / scale * float(form.levels)
    chance = ((draws >> 16).float() + 0.5) * (1.0 / 65536.0) - 0.5
    beside = (steps + chance).round().long()
    if not form.is_natural:
        return beside
    power = (steps.view(torch.int32).long() + (draws & 0x7F_FFFF)) & ~0x7F_FFFF
    return torch.where(steps < 1.0, beside, power.to(torch.int32).view(torch.float32).long())


def delta(number: int) -> str:
    """A number in Elias' delta code."""
    length = number.bit_length()
    return "0" * (length.bit_length() - 1) + f"{length:b}" + f"{number:b}"[1:]


def longest(count: int, form: Form) -> int:
    """Bytes of the longest body."""
    bits = count * (2 + len(delta(form.levels)))
    return min(-(-bits // 32) * 4 + 8, 4 * count)


def made(
    driver: Driver, stream: ctypes.c_void_p, functions: Functions, elements: torch.Tensor, form: Form
) -> bytes | None:
    """What the kernels make; memory behind it keeps its content."""
    count = len(elements)
    told = -(-longest(count, form) // 8) * 8
    size = told + 8 + BEYOND
    content = ctypes.create_string_buffer(bytes_of(elements), elements.nbytes)
    back = ctypes.create_string_buffer(size)
    with driver.memory(4 * count) as source, driver.memory(size) as result, driver.memory(notes_bytes(count)) as notes:
        driver.fill(result, 0xEE, size, stream)
        driver.copy_in(ctypes.addressof(content), source, elements.nbytes, stream)
        prepared(driver, stream, functions, (source, result, notes), count, form)()
        driver.copy_out(ctypes.addressof(back), result, size, stream)
        driver.call("cuStreamSynchronize", stream)
    assert back.raw[-BEYOND:] == b"\xee" * BEYOND, "a kernel wrote behind the last byte"
    length = int.from_bytes(back.raw[told : told + 8], "little")
    return None if length == REFUSED else back.raw[:length]


def prepared(
    driver: Driver,
    stream: ctypes.c_void_p,
    functions: Functions,
    where: tuple[int, int, int],
    count: int,
    form: Form,
) -> Callable[[], None]:
    """What begins the kernels over so many elements, in the grids of the engine."""
    draws = (SEED & 0xFFFF_FFFF, SEED >> 32)
    part = Part(*where, count, longest(count, form), *form, *draws, 1.0)
    blocks = max(1, min(-(-(-(-count // BLOCK) * WARP) // THREADS), BLOCKS_MAX))

    def begin() -> None:
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(part))
        for kernel in KERNELS:
            grid = 1 if kernel in ("scale", "order") else blocks
            function = functions[f"gradlane_dithering_{kernel}"]
            driver.call("cuLaunchKernel", function, grid, 1, 1, THREADS, 1, 1, 0, stream, pointer, None)

    return begin


def notes_bytes(count: int) -> int:
    return 8 + 16 * -(-count // BLOCK)


def speed(driver: Driver, stream: ctypes.c_void_p, functions: Functions) -> None:
    """How fast parts of 4 MiB and of 64 MiB, the longest, are encoded."""
    for count in (1 << 12,) if IS_SHORT else (1 << 20, 1 << 24):
        elements = torch.randn(count, generator=torch.Generator().manual_seed(count))
        content, form = ctypes.create_string_buffer(bytes_of(elements), 4 * count), FORMS[0]
        size = longest(count, form) + 16
        with driver.memory(4 * count) as source, driver.memory(size) as result:
            with driver.memory(notes_bytes(count)) as notes:
                driver.copy_in(ctypes.addressof(content), source, 4 * count, stream)
                begin = prepared(driver, stream, functions, (source, result, notes), count, form)
                seconds = timed(driver, stream, lambda begin=begin: [begin() for _ in range(LAUNCHES)]) / LAUNCHES
                figure(f"encode dithering, of {count} elements", 4 * count / seconds / 1e9, "GB/s")
