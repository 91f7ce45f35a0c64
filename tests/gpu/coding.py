"""The kernels of codecs, launched alone, against codecs that PyTorch's operations make on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import torch
from driver import Driver, timed
from places import IS_SHORT, agree, bytes_of
from telling import figure

LARGEST = {"int8": 127.0, "int4": 7.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57_344.0}
"""The largest number of each codec with blocks."""
FLOATS = {"fp8_e4m3": (torch.float8_e4m3fn, 3, 7), "fp8_e5m2": (torch.float8_e5m2, 2, 15)}
"""PyTorch's types with these numbers, their bits of fraction, and the exponent of 1."""

THREADS, BLOCKS_MAX, WARP = 256, 1024, 32
RUNS_MAX = 169
WHOLE_LEN_MAX = 4096
"""Longer runs are cut, as the engine does."""
LAUNCHES = 10
"""In a row, so that what they take to begin does not count."""
BEYOND = 64
"""Bytes behind the last one, which no kernel may touch."""
SEED, FIRST = 0x0123_4567_89AB_CDEF, 2**32 - 1000
"""The seed of the draws, and the index of the first element in its part."""


class Run(ctypes.Structure):
    """A run of memory, its elements, and the index of the first of them."""

    _fields_ = (
        ("source", ctypes.c_uint64),
        ("result", ctypes.c_uint64),
        ("len", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
    )


class Runs(ctypes.Structure):
    """The parameter of every kernel, as `codecs.cu` has it."""

    _fields_ = (
        ("factor", ctypes.c_float),
        ("block", ctypes.c_uint32),
        ("by_chance", ctypes.c_uint32),
        ("low", ctypes.c_uint32),
        ("high", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("runs", Run * RUNS_MAX),
    )


def is_codec(name: str) -> bool:
    """Whether a kernel is one of these."""
    return name.startswith(("gradlane_encode_", "gradlane_decode_"))


def check_codec(driver: Driver, stream: ctypes.c_void_p, function: ctypes.c_void_p, name: str) -> None:
    """Runs a kernel over blocks of all kinds, and says how fast it is."""
    way, codec = name.removeprefix("gradlane_").removesuffix("_by_chance").split("_", 1)
    for block, by_chance, elements in cases(way, codec):
        body = encoded(codec, elements, block, by_chance)
        given, due = (elements, body) if way == "encode" else (body, decoded(codec, body, len(elements), block))
        found = launched(driver, stream, function, given, due, (codec, way, block, by_chance))
        is_right = bytes_of(found) == bytes_of(due) if way == "encode" else agree(found, due)
        assert is_right, f"{name}, {len(elements)} elements, blocks of {block}, by chance: {by_chance}"
    count = 1 << (12 if IS_SHORT else 24)
    block = 1 if codec == "bf16" else 256
    with driver.memory(4 * count) as elements_place, driver.memory(4 * count) as body_place:
        driver.fill(elements_place, 0x3D, 4 * count, stream)
        driver.fill(body_place, 0x3D, 4 * count, stream)
        places = (elements_place, body_place) if way == "encode" else (body_place, elements_place)
        begin = prepared(driver, stream, function, *places, count, (codec, way, block, False))
        seconds = timed(driver, stream, lambda: [begin() for _ in range(LAUNCHES)]) / LAUNCHES
    figure(f"{way} {codec}, of the elements", 4 * count / seconds / 1e9, "GB/s")


def cases(way: str, codec: str) -> Iterator[tuple[int, bool, torch.Tensor]]:
    """Blocks, whether they are rounded by chance, and elements."""
    if codec == "bf16":
        yield 1, True, numbers(100_001 if not IS_SHORT else 3_001)
        return
    for block in (32, 256) if IS_SHORT else (32, 77, 256, 4096):
        # The last block is shorter.
        elements = numbers((3 if IS_SHORT else 300) * block + block // 3)
        for by_chance in (False, True) if way == "encode" else (False,):
            yield block, by_chance, elements
            yield block, by_chance, elements[:1]


def numbers(count: int) -> torch.Tensor:
    """Numbers of every sign and exponent, of which neighbours are of similar sizes; here and there none, or an infinite one."""
    generator = torch.Generator().manual_seed(count)
    bits = torch.randint(-(1 << 31), 1 << 31, (count,), generator=generator, dtype=torch.int64)
    sizes = torch.randint(0, 250, (count // 100 + 1,), generator=generator).repeat_interleave(100)[:count]
    sizes += torch.randint(0, 5, (count,), generator=generator)
    similar = bits & -0x7F80_0001 | sizes << 23
    is_wild = torch.rand(count, generator=generator) < 0.001
    values = torch.where(is_wild, bits, similar).to(torch.int32).view(torch.float32)
    values[77::5003], values[78::7001] = float("nan"), float("-inf")
    return values


def encoded(codec: str, elements: torch.Tensor, block: int, by_chance: bool, first: int = FIRST) -> torch.Tensor:
    """The bytes of a body."""
    draws = drawn(len(elements), first) if by_chance else None
    if codec == "bf16":
        bits = elements.view(torch.int32).long() & 0xFFFF_FFFF
        magnitude, sign = bits & 0x7FFF_FFFF, bits & 0x8000_0000
        rounded = (magnitude + (draws >> 16)).clamp(max=0x7F7F_0000)
        special = torch.where(magnitude > 0x7F80_0000, magnitude | 1 << 22, 0x7F80_0000)
        halves = (torch.where(magnitude < 0x7F80_0000, rounded, special) | sign) >> 16
        # The low half of each word.
        return halves.to(torch.int32).view(torch.int16)[::2].contiguous().view(torch.uint8)
    whole = len(elements) // block * block
    parts = []
    for part, size in ((slice(0, whole), block), (slice(whole, len(elements)), len(elements) - whole)):
        if size and len(elements[part]):
            rows = elements[part].view(-1, size)
            parts.append(blocks_of(codec, rows, None if draws is None else draws[part].view(-1, size)).flatten())
    return torch.cat(parts)


def blocks_of(codec: str, rows: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
    """A row of bytes for each row of elements."""
    largest = LARGEST[codec]
    is_finite = torch.isfinite(rows).all(dim=1, keepdim=True)
    rows = torch.where(is_finite, rows, torch.zeros(()))
    scale = rows.abs().amax(dim=1, keepdim=True) / largest
    if codec == "int4":
        scale = ((scale.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
    scaled = (rows / scale).clamp(-largest, largest)
    # Of a block whose scale is zero there is nothing to tell.
    codes = torch.where(scale > 0, codes_of(codec, scaled.nan_to_num(), draws), 0).to(torch.uint8)
    codes = torch.where(is_finite, codes, 0).to(torch.uint8)
    scale = torch.where(is_finite, scale, torch.tensor(float("nan")))
    scale_bytes = scale.contiguous().view(torch.uint8).view(-1, 4)
    if codec != "int4":
        return torch.cat([scale_bytes, codes], dim=1)
    codes = torch.nn.functional.pad(codes & 0xF, (0, codes.shape[1] % 2))
    return torch.cat([scale_bytes[:, 2:], codes[:, ::2] | codes[:, 1::2] << 4], dim=1)


def codes_of(codec: str, scaled: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
    """The code of each number."""
    offsets = torch.zeros(()) if draws is None else ((draws >> 16).float() + 0.5) / 65536 - 0.5
    if codec not in FLOATS:
        return torch.round(scaled + offsets).long() & 0xFF
    dtype, fraction, bias = FLOATS[codec]
    if draws is None:
        return scaled.to(dtype).view(torch.uint8).long()
    rest = 23 - fraction
    bits = scaled.abs().view(torch.int32).long()
    normal = (bits + (draws & (1 << rest) - 1) >> rest) - (127 - bias << fraction)
    small = torch.round(scaled.abs() * 2.0 ** (bias + fraction - 1) + offsets).long()
    code = torch.where(scaled.abs() < 2.0 ** (1 - bias), small, normal)
    return code | torch.signbit(scaled).long() << 7


def decoded(codec: str, body: torch.Tensor, count: int, block: int) -> torch.Tensor:
    """The elements of a body."""
    scale_bytes, per_byte = (2, 2) if codec == "int4" else (4, 1)
    parts, begin = [], 0
    for size in [block] * (count // block) + [count % block] * (count % block > 0):
        end = begin + scale_bytes - -size // per_byte
        scale = torch.zeros(4, dtype=torch.uint8)
        scale[4 - scale_bytes :] = body[begin:][:scale_bytes]
        codes = body[begin + scale_bytes : end]
        if codec == "int4":
            codes = torch.stack([codes & 0xF, codes >> 4], dim=1).flatten()[:size].int()
            values = (codes - (codes >> 3) * 16).float()
        else:
            values = codes.view(FLOATS[codec][0] if codec in FLOATS else torch.int8).float()
        parts.append(values * scale.view(torch.float32))
        begin = end
    return torch.cat(parts)


def drawn(count: int, first: int) -> torch.Tensor:
    """The number of 32 bits that the seed draws for each element."""
    word = torch.arange(first, first + count) & 0xFFFF_FFFF ^ SEED & 0xFFFF_FFFF
    word = (word ^ word >> 16) * 0x21F0AAAD & 0xFFFF_FFFF ^ SEED >> 32
    word = (word ^ word >> 15) * 0x735A2D97 & 0xFFFF_FFFF
    return word ^ word >> 15


def launched(
    driver: Driver,
    stream: ctypes.c_void_p,
    function: ctypes.c_void_p,
    given: torch.Tensor,
    like: torch.Tensor,
    form: tuple[str, str, int, bool],
) -> torch.Tensor:
    """What a kernel makes; memory behind it keeps its content."""
    content = ctypes.create_string_buffer(bytes_of(given), given.nbytes)
    size = like.nbytes + BEYOND
    back = ctypes.create_string_buffer(size)
    count = len(given) if form[1] == "encode" else len(like)
    with driver.memory(given.nbytes) as source, driver.memory(size) as result:
        driver.fill(result, 0xEE, size, stream)
        driver.copy_in(ctypes.addressof(content), source, given.nbytes, stream)
        prepared(driver, stream, function, source, result, count, form)()
        driver.copy_out(ctypes.addressof(back), result, size, stream)
        driver.call("cuStreamSynchronize", stream)
    assert back.raw[like.nbytes :] == b"\xee" * BEYOND, "a kernel wrote behind the last byte"
    return torch.frombuffer(bytearray(back.raw[: like.nbytes]), dtype=like.dtype)


def prepared(
    driver: Driver,
    stream: ctypes.c_void_p,
    function: ctypes.c_void_p,
    source: int,
    result: int,
    count: int,
    form: tuple[str, str, int, bool],
) -> Callable[[], None]:
    """What begins a kernel over so many elements, cut into runs as the engine does."""
    codec, way, block, by_chance = form
    unit = 2 if codec == "bf16" else len(encoded(codec, torch.zeros(block), block, False))
    each = -(-max(WHOLE_LEN_MAX, -(-count // 64)) // block) * block
    parameter = Runs(1.0, block, by_chance, SEED & 0xFFFF_FFFF, SEED >> 32, 0)
    for run, at in enumerate(range(0, count, each)):
        elements, body = 4 * at, at // block * unit
        places = (elements, body) if way == "encode" else (body, elements)
        first = FIRST + at & 0xFFFF_FFFF
        parameter.runs[run] = Run(source + places[0], result + places[1], min(each, count - at), first)
        parameter.count = run + 1
    threads = -(-min(each, count) // block) * (1 if codec == "bf16" else WARP)
    blocks = parameter.count * max(min(BLOCKS_MAX // parameter.count, -(-threads // THREADS)), 1)

    def begin() -> None:
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        driver.call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, stream, pointer, None)

    return begin
