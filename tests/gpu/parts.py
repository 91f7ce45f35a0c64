"""The kernels of codecs of whole parts, launched one after the other, against codecs that PyTorch's operations make on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from coding import BEYOND, BLOCKS_MAX, LAUNCHES, SEED, THREADS, WARP, drawn, numbers
from driver import Driver, timed
from places import IS_SHORT, bytes_of
from telling import figure

Functions = dict[str, ctypes.c_void_p]

KERNELS = {
    "encode onebit": ("signs", "scale"),
    "decode onebit": ("values",),
    "encode randomk": ("look", "gather"),
    "decode randomk": ("clear", "scatter"),
}
"""What encodes and what decodes."""
BLOCK = 2048
"""Elements of a note."""
SHARES = {"onebit": (0, 1), "randomk": (10_000, 500_000)}
"""Of each codec: whether the scale is the mean of the magnitudes, and how many of a million elements are sent."""


class Part(ctypes.Structure):
    """The parameter of every kernel, as `parts.cu` has it."""

    _fields_ = (
        ("source", ctypes.c_uint64),
        ("result", ctypes.c_uint64),
        ("notes", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("len", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("factor", ctypes.c_float),
        ("has_mean", ctypes.c_uint32),
    )


def are_of_parts(functions: Functions) -> bool:
    """Whether these kernels of a module are those of whole parts."""
    return "gradlane_onebit_signs" in functions


def check_parts(driver: Driver, stream: ctypes.c_void_p, functions: Functions) -> None:
    """Encodes parts of all kinds and decodes them, and says how fast that is."""
    launched = {f"gradlane_{way.split()[1]}_{kernel}" for way, kernels in KERNELS.items() for kernel in kernels}
    assert launched == set(functions), sorted(functions)
    for codec, shares in SHARES.items():
        for share in shares:
            for elements in cases():
                body = encoded(codec, elements, share)
                for way, given, due in (
                    ("encode", elements, body),
                    ("decode", body, decoded(codec, body, len(elements), share)),
                ):
                    found = made(driver, stream, functions, f"{way} {codec}", given, due, len(elements), share)
                    assert bytes_of(found) == bytes_of(due), f"{way} {codec}, {len(elements)} elements, {share}"
        speed(driver, stream, functions, codec, shares[0])


def cases() -> list[torch.Tensor]:
    """Elements of parts: numbers, of some lengths around a word and a block, and one part with what is no number."""
    lens = (1, 33, 2049) if IS_SHORT else (1, 31, 32, 33, 2047, 2048, 2049, 70_001, 1_000_001)
    return [numbers(count).nan_to_num(0.0, 1.0, -1.0) for count in lens] + [numbers(6_001)]


def encoded(codec: str, elements: torch.Tensor, share: int) -> torch.Tensor:
    """The bytes of a body."""
    is_finite = bool(torch.isfinite(elements).all())
    if codec == "onebit":
        bits = torch.nn.functional.pad((elements < 0).long(), (0, -len(elements) % 32)).view(-1, 32)
        words = (bits << torch.arange(31, -1, -1)).sum(dim=1)
        mean = (elements.double().abs().sum() / len(elements)).float() if share else torch.tensor(1.0)
        scale = mean if is_finite else torch.tensor(float("nan"))
        return torch.cat([as_words(words), scale.view(1).view(torch.uint8)])
    places, lens = drawn_places(len(elements), share)
    values = elements[places] * lens.float()
    seed = torch.tensor([SEED & 0xFFFF_FFFF, SEED >> 32])
    sent = values if is_finite else torch.full_like(values, float("nan"))
    return torch.cat([as_words(seed), sent.contiguous().view(torch.uint8)])


def decoded(codec: str, body: torch.Tensor, count: int, share: int) -> torch.Tensor:
    """The elements of a body."""
    if codec == "onebit":
        words = body.view(torch.int32).long() & 0xFFFF_FFFF
        signs = (words[:-1].view(-1, 1) >> torch.arange(31, -1, -1) & 1).flatten()[:count]
        return as_words(signs << 31 | words[-1]).view(torch.float32)
    elements = torch.zeros(count)
    elements[drawn_places(count, share)[0]] = body.view(torch.float32)[2:]
    return elements


def drawn_places(count: int, share: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements are sent, and how many each of them stands for."""
    runs = drawn_count(count, share)
    ends = torch.arange(runs + 1) * count // runs
    lens = ends[1:] - ends[:-1]
    return ends[:-1] + (drawn(runs, 0) * lens >> 32), lens


def drawn_count(count: int, share: int) -> int:
    return min(max(-(-count * share // 1_000_000), 1), count)


def as_words(numbers: torch.Tensor) -> torch.Tensor:
    """The bytes of the low 32 bits of each number."""
    return numbers.contiguous().view(torch.uint8).view(-1, 8)[:, :4].flatten()


def made(
    driver: Driver,
    stream: ctypes.c_void_p,
    functions: Functions,
    way: str,
    given: torch.Tensor,
    like: torch.Tensor,
    count: int,
    share: int,
) -> torch.Tensor:
    """What the kernels make; memory behind it keeps its content."""
    content = ctypes.create_string_buffer(bytes_of(given), given.nbytes)
    size = like.nbytes + BEYOND
    back = ctypes.create_string_buffer(size)
    noted = notes_bytes(count)
    with driver.memory(given.nbytes) as source, driver.memory(size) as result, driver.memory(noted) as notes:
        driver.fill(result, 0xEE, size, stream)
        driver.copy_in(ctypes.addressof(content), source, given.nbytes, stream)
        prepared(driver, stream, functions, way, (source, result, notes), count, share)()
        driver.copy_out(ctypes.addressof(back), result, size, stream)
        driver.call("cuStreamSynchronize", stream)
    assert back.raw[like.nbytes :] == b"\xee" * BEYOND, "a kernel wrote behind the last byte"
    return torch.frombuffer(bytearray(back.raw[: like.nbytes]), dtype=like.dtype)


def prepared(
    driver: Driver,
    stream: ctypes.c_void_p,
    functions: Functions,
    way: str,
    places: tuple[int, int, int],
    count: int,
    share: int,
) -> Callable[[], None]:
    """What begins the kernels over so many elements, in the grids of the engine."""
    codec = way.split()[1]
    runs = drawn_count(count, share) if codec == "randomk" else 0
    part = Part(*places, SEED, count, runs, 1.0, share if codec == "onebit" else 0)
    blocks_of_elements = -(-count // BLOCK) * WARP
    threads = {"signs": blocks_of_elements, "look": blocks_of_elements, "scale": 1, "gather": runs, "scatter": runs}

    def begin() -> None:
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(part))
        for kernel in KERNELS[way]:
            blocks = max(1, min(-(-threads.get(kernel, count) // THREADS), BLOCKS_MAX))
            function = functions[f"gradlane_{codec}_{kernel}"]
            driver.call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, stream, pointer, None)

    return begin


def notes_bytes(count: int) -> int:
    return -(-count // BLOCK) * 8


def speed(driver: Driver, stream: ctypes.c_void_p, functions: Functions, codec: str, share: int) -> None:
    """How fast a codec is with parts of 64 MiB, the longest."""
    count = 1 << (12 if IS_SHORT else 24)
    size, noted = 4 * count, notes_bytes(count)
    with driver.memory(size) as elements, driver.memory(size) as body, driver.memory(noted) as notes:
        driver.fill(elements, 0x3D, size, stream)
        driver.fill(body, 0x3D, size, stream)
        for way, places in (("encode", (elements, body, notes)), ("decode", (body, elements, notes))):
            begin = prepared(driver, stream, functions, f"{way} {codec}", places, count, share)
            seconds = timed(driver, stream, lambda begin=begin: [begin() for _ in range(LAUNCHES)]) / LAUNCHES
            figure(f"{way} {codec}, of the elements", size / seconds / 1e9, "GB/s")
