"""The kernels of `topk`, launched one after the other, against bodies that PyTorch's operations make on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from coding import BEYOND, BLOCKS_MAX, LAUNCHES, THREADS, WARP, numbers
from driver import Driver, timed
from parts import Functions
from places import IS_SHORT, bytes_of
from telling import figure

KERNELS = {
    "encode": ("begin", *4 * ("count",), "compare", "list", "measure", "write"),
    "decode": ("clear", "scatter"),
}
"""What encodes and what decodes. A digit is counted in each count."""
BLOCK, ENTRIES, RUN = 2048, 256, 1024
"""Elements, entries and bytes of gaps of a note."""
SHARES = (10_000, 250_000)
"""Of a million elements, so many are sent."""
REFUSED = (1 << 64) - 1


class Part(ctypes.Structure):
    """The parameter of every kernel, as `topk.cu` has it."""

    _fields_ = (
        ("source", ctypes.c_uint64),
        ("result", ctypes.c_uint64),
        ("notes", ctypes.c_uint64),
        ("len", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("entries_max", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("digit", ctypes.c_uint32),
        ("factor", ctypes.c_float),
    )


def are_of_topk(functions: Functions) -> bool:
    """Whether these kernels of a module are those of `topk`."""
    return "gradlane_topk_begin" in functions


def check_topk(driver: Driver, stream: ctypes.c_void_p, functions: Functions) -> None:
    """Encodes parts of all kinds and decodes them, and says how fast that is."""
    launched = {f"gradlane_topk_{kernel}" for kernels in KERNELS.values() for kernel in kernels}
    assert launched == set(functions), sorted(functions)
    for share in SHARES:
        for elements in cases():
            due, count = encoded(elements, share), len(elements)
            form, given = (count, share), bytes_of(elements)
            length, found = made(driver, stream, functions, "encode", given, form, room(count, share))
            is_same = length == REFUSED if due is None else found[:length] == due
            assert is_same, f"encode topk, {count} elements, {share}: {length}"
            if due is not None:
                _, found = made(driver, stream, functions, "decode", due, form, 4 * count)
                assert found == bytes_of(kept(elements, share)), f"decode topk, {count} elements, {share}"
    speed(driver, stream, functions)


def cases() -> list[torch.Tensor]:
    """Elements of parts: numbers, of some lengths around a row and a block, equal ones, few, and one part with what is no number."""
    lens = (1, 33, 2049) if IS_SHORT else (1, 31, 32, 33, 2047, 2048, 2049, 70_001, 1_000_001)
    parts = [numbers(count).nan_to_num(0.0, 1.0, -1.0) for count in lens]
    few = torch.zeros(5_000)
    few[torch.tensor([3, 2_047, 4_999])] = torch.tensor([1e-40, -2.0, 2.0])
    return [*parts, torch.full((5_000,), -0.5), few, numbers(6_001)]


def count_of(count: int, share: int) -> int:
    return min(max(-(-count * share // 1_000_000), 1), count)


def places(elements: torch.Tensor, share: int) -> torch.Tensor:
    """Which elements are sent: of equal magnitudes those with the lower index, and no zeros."""
    order = torch.sort(elements.abs(), descending=True, stable=True).indices[: count_of(len(elements), share)]
    return torch.sort(order[elements[order] != 0]).values


def kept(elements: torch.Tensor, share: int) -> torch.Tensor:
    """The elements of a body."""
    sent = torch.zeros_like(elements)
    sent[places(elements, share)] = elements[places(elements, share)]
    return sent


def encoded(elements: torch.Tensor, share: int) -> bytes | None:
    """The bytes of a body; `None` if the elements travel plain."""
    if not torch.isfinite(elements).all():
        return None
    sent = places(elements, share)
    gaps = torch.diff(sent, prepend=torch.tensor([-1])) - 1
    numbered = b"".join(number(gap) for gap in [len(sent), *gaps.tolist()])
    body = numbered + bytes_of(elements[sent])
    return body if len(body) < elements.nbytes else None


def number(value: int) -> bytes:
    """A number with seven bits a byte, the low ones first."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + number(rest) if rest else bytes([low])


def longest(count: int, share: int) -> int:
    sent = count_of(count, share)
    return min(5 + 5 * sent + sum(min(sent, count >> bits) for bits in (7, 14, 21)), 4 * count)


def room(count: int, share: int) -> int:
    """Bytes of the longest body, and of its length behind it."""
    return -(-longest(count, share) // 8) * 8 + 8


def made(
    driver: Driver,
    stream: ctypes.c_void_p,
    functions: Functions,
    way: str,
    given: bytes,
    form: tuple[int, int],
    size: int,
) -> tuple[int, bytes]:
    """The last number and all bytes of what the kernels make; memory behind it keeps its content."""
    content, back = ctypes.create_string_buffer(given, len(given)), ctypes.create_string_buffer(size + BEYOND)
    noted = notes_bytes(*form, len(given))
    with driver.memory(len(given)) as source, driver.memory(size + BEYOND) as result, driver.memory(noted) as notes:
        driver.fill(result, 0xEE, size + BEYOND, stream)
        driver.copy_in(ctypes.addressof(content), source, len(given), stream)
        prepared(driver, stream, functions, way, (source, result, notes), form, len(given))()
        driver.copy_out(ctypes.addressof(back), result, size + BEYOND, stream)
        driver.call("cuStreamSynchronize", stream)
    assert back.raw[size:] == b"\xee" * BEYOND, "a kernel wrote behind the last byte"
    return int.from_bytes(back.raw[size - 8 : size], "little"), back.raw[:size]


def prepared(
    driver: Driver,
    stream: ctypes.c_void_p,
    functions: Functions,
    way: str,
    where: tuple[int, int, int],
    form: tuple[int, int],
    given_bytes: int,
) -> Callable[[], None]:
    """What begins the kernels over so many elements, in the grids of the engine."""
    count, sent = form[0], count_of(*form)
    entries = min(sent, count * 4 // 5)
    size = longest(*form) if way == "encode" else given_bytes
    part = Part(*where, count, sent, entries, size, 0, 1.0)
    blocks, runs = -(-count // BLOCK) * WARP, -(-size // RUN) * WARP
    threads = {
        "begin": 1,
        "count": blocks,
        "compare": blocks,
        "list": blocks,
        "measure": -(-entries // ENTRIES) * WARP,
        "write": -(-entries // ENTRIES) * WARP,
        "clear": max(count, runs),
        "scatter": runs,
    }

    def begin() -> None:
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(part))
        digit = 0
        for kernel in KERNELS[way]:
            part.digit = digit
            digit += kernel == "count"
            grid = max(1, min(-(-threads[kernel] // THREADS), BLOCKS_MAX))
            function = functions[f"gradlane_topk_{kernel}"]
            driver.call("cuLaunchKernel", function, grid, 1, 1, THREADS, 1, 1, 0, stream, pointer, None)

    return begin


def notes_bytes(count: int, share: int, given_bytes: int) -> int:
    """Enough for an encoder, and for a decoder."""
    entries = count_of(count, share)
    encoder = 4 * 256 * 4 + 8 + 8 * (-(-count // BLOCK) + -(-entries // ENTRIES)) + 4 * entries
    return max(encoder, 8 * -(-given_bytes // RUN))


def speed(driver: Driver, stream: ctypes.c_void_p, functions: Functions) -> None:
    """How fast parts of 4 MiB and of 64 MiB, the longest, are encoded and decoded."""
    for count in (1 << 12,) if IS_SHORT else (1 << 20, 1 << 24):
        elements = numbers(count).nan_to_num(0.0, 1.0, -1.0)
        body = encoded(elements, SHARES[0])
        assert body is not None
        for way, given, size in (("encode", bytes_of(elements), room(count, SHARES[0])), ("decode", body, 4 * count)):
            content = ctypes.create_string_buffer(given, len(given))
            noted = notes_bytes(count, SHARES[0], len(given))
            with driver.memory(len(given)) as source, driver.memory(size) as result, driver.memory(noted) as notes:
                driver.copy_in(ctypes.addressof(content), source, len(given), stream)
                form = (count, SHARES[0])
                begin = prepared(driver, stream, functions, way, (source, result, notes), form, len(given))
                seconds = timed(driver, stream, lambda begin=begin: [begin() for _ in range(LAUNCHES)]) / LAUNCHES
                figure(f"{way} topk, of {count} elements", 4 * count / seconds / 1e9, "GB/s")
