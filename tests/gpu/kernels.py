"""Every kernel of the package, launched alone, against the host's arithmetic."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from coding import check_codec, is_codec
from driver import Driver, timed
from finite import check_finite, is_of_finite
from gradlane import _core
from largest import are_of_topk, check_topk
from levels import are_of_dithering, check_dithering
from parts import are_of_parts, check_parts
from places import IS_SHORT, agree, bytes_of
from telling import figure, passed

FLOATS = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
INTEGERS = {"i8": torch.int8, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}

FACTORS = (1.0, 1.0 / 3.0, -2.5, 0.0, 1e-5, 3.0e38, float("inf"))
"""Exact and inexact, of the other sign, subnormal after the product, out of a half's range."""
DIVISORS = (1, 2, 3, 7, 255, 70_000, 4_294_967_295)

THREADS, BLOCKS_MAX = 256, 1024
RUNS_MAX = 170
WHOLE_LEN_MAX = 4096
"""Longer runs are cut, as the engine does."""
BEYOND = 64
"""Bytes behind the last element, which no kernel may touch."""


class Run(ctypes.Structure):
    """A run of memory, in elements; of the kernel that copies, in bytes."""

    _fields_ = (("source", ctypes.c_uint64), ("result", ctypes.c_uint64), ("len", ctypes.c_uint64))


class Runs(ctypes.Structure):
    """The parameter of every kernel, as `elementwise.cu` has it."""

    _fields_ = (("number", ctypes.c_uint64), ("count", ctypes.c_uint64), ("runs", Run * RUNS_MAX))


def kernels() -> None:
    """Runs each kernel over unusual values and odd lengths, in the same launches that the engine makes."""
    count = 0
    with Driver() as driver, driver.stream() as stream:
        for text in texts():
            module = ctypes.c_void_p()
            driver.call("cuModuleLoadData", ctypes.byref(module), text + b"\0")
            functions = {}
            for name in re.findall(r"\.visible \.entry (\w+)\(", text.decode()):
                function = functions[name] = ctypes.c_void_p()
                driver.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            if are_of_parts(functions):
                check_parts(driver, stream, functions)
            elif are_of_topk(functions):
                check_topk(driver, stream, functions)
            elif are_of_dithering(functions):
                check_dithering(driver, stream, functions)
            elif is_of_finite(functions):
                check_finite(driver, stream, functions)
            else:
                for name, function in functions.items():
                    check(driver, stream, function, name)
            count += len(functions)
            driver.call("cuModuleUnload", module)
    passed(f"{count} kernels compute as the host does, bit for bit, NaN included, and stay in bounds")


def check(driver: Driver, stream: ctypes.c_void_p, function: ctypes.c_void_p, name: str) -> None:
    """Runs a kernel."""
    if is_codec(name):
        check_codec(driver, stream, function, name)
    elif name == "gradlane_copy":
        small_runs(driver, stream, function)
    else:
        for values, number, expected in cases(name):
            found = launched(driver, stream, function, values, expected, number)
            assert agree(found, expected), f"{name}, {len(values)} elements, {number}"


def texts() -> list[bytes]:
    """The texts of kernels in the native module: exactly what the engine gives to the driver."""
    content = Path(_core.__file__).read_bytes()
    found, end = [], 0
    while (entry := content.find(b".visible .entry gradlane_", end)) >= 0:
        end = content.index(b"\0", entry)
        found.append(content[content.rindex(b".version", 0, entry) : end])
    return found


def cases(name: str) -> Iterator[tuple[torch.Tensor, float | int, torch.Tensor]]:
    """Values, the number that the kernel is given, and what must come out."""
    if divided := re.fullmatch(r"gradlane_divide_(\w+)", name):
        dtype = INTEGERS[divided[1]]
        for values in lengths(integers(dtype)):
            for divisor in DIVISORS[:: 3 if IS_SHORT else 1]:
                quotients = torch.div(values.long(), divisor, rounding_mode="floor")
                yield values, divisor, quotients.to(dtype)
        return
    same = re.fullmatch(r"gradlane_scale_(\w+)", name)
    cast = re.fullmatch(r"gradlane_(\w+)_to_(\w+)", name)
    assert same or cast, f"a kernel that this check does not know: {name}"
    read, written = (same[1], same[1]) if same else cast.groups()
    for values in lengths(floats(FLOATS[read])):
        for factor in FACTORS[:: 2 if IS_SHORT else 1]:
            wide = values if read == "f64" else values.float()
            product = wide * torch.tensor(factor, dtype=wide.dtype) if factor else torch.zeros_like(wide)
            yield values, factor, product.to(FLOATS[written])


def lengths(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """The values in several lengths, most of them odd; the longest needs more than one turn of each thread."""
    for count in (1, 255, 257, min(len(values), 1_001) if IS_SHORT else len(values)):
        yield values[len(values) // 3 :][:count] if count < 300 else values[:count]
    if not IS_SHORT:
        yield values.repeat(THREADS * BLOCKS_MAX // len(values) + 2)[: THREADS * BLOCKS_MAX + 1]


def floats(dtype: torch.dtype) -> torch.Tensor:
    """Every pattern of bits of a half; of wider types some of every exponent, and NaN, infinities, and ties.

    A tie lies in the middle between two bf16, or two f16; rarely would a random number show how it is rounded.
    """
    if dtype.itemsize == 2:
        patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
        return patterns[torch.randperm(len(patterns), generator=torch.Generator().manual_seed(1))].view(dtype)
    generator = torch.Generator().manual_seed(2)
    size, bits = (torch.int32, 32) if dtype == torch.float32 else (torch.int64, 64)
    patterns = torch.randint(-(1 << (bits - 1)), (1 << (bits - 1)) - 1, (40_001,), generator=generator, dtype=size)
    if dtype == torch.float32:
        for place, low_bits, tie in ((3, 16, 0x8000), (4, 16, 0x8001), (5, 13, 0x1000), (6, 13, 0x1001)):
            patterns[place::9] = patterns[place::9] >> low_bits << low_bits | tie
    values = patterns.view(dtype)
    values[:: 97] = float("nan")
    values[1 :: 97] = float("inf")
    values[2 :: 97] = 0.0
    return values


def integers(dtype: torch.dtype) -> torch.Tensor:
    """Values of the whole range, its ends among them."""
    limits, generator = torch.iinfo(dtype), torch.Generator().manual_seed(3)
    values = torch.randint(limits.min, limits.max, (40_001,), generator=generator, dtype=dtype)
    values[::7], values[1::7], values[2::7] = limits.min, limits.max, 0
    return values


def launched(
    driver: Driver,
    stream: ctypes.c_void_p,
    function: ctypes.c_void_p,
    values: torch.Tensor,
    like: torch.Tensor,
    number: float | int,
) -> torch.Tensor:
    """What a kernel makes of the values; memory behind them keeps its content."""
    given = ctypes.create_string_buffer(bytes_of(values), values.nbytes)
    size = like.nbytes + BEYOND
    back = ctypes.create_string_buffer(size)
    with driver.memory(values.nbytes) as source, driver.memory(size) as result:
        driver.fill(result, 0xEE, size, stream)
        # Both are memory that is not pinned: the copy is made before the call returns, or in the order of its stream.
        driver.copy_in(ctypes.addressof(given), source, values.nbytes, stream)
        word = ctypes.c_double(number) if values.is_floating_point() else ctypes.c_uint64(int(number))
        starts = range(0, len(values), max(WHOLE_LEN_MAX, -(-len(values) // 64)))
        runs = [
            Run(source + at * values.itemsize, result + at * like.itemsize, min(starts.step, len(values) - at))
            for at in starts
        ]
        launch(driver, stream, function, runs, int.from_bytes(bytes(word), "little"))
        driver.copy_out(ctypes.addressof(back), result, size, stream)
        driver.call("cuStreamSynchronize", stream)
    assert back.raw[like.nbytes :] == b"\xee" * BEYOND, "a kernel wrote behind the last element"
    return torch.frombuffer(bytearray(back.raw[: like.nbytes]), dtype=like.dtype)


def launch(driver: Driver, stream: ctypes.c_void_p, function: ctypes.c_void_p, runs: list[Run], number: int) -> None:
    """Begins a kernel, in as many launches as the runs need."""
    for at in range(0, len(runs), RUNS_MAX):
        some = runs[at : at + RUNS_MAX]
        parameter = Runs(number, len(some), (Run * RUNS_MAX)(*some))
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        each = min(BLOCKS_MAX // len(some), -(-max(run.len for run in some) // THREADS))
        blocks = len(some) * max(each, 1)
        driver.call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, stream, pointer, None)


def small_runs(driver: Driver, stream: ctypes.c_void_p, function: ctypes.c_void_p) -> None:
    """Gathers and scatters runs of any length and alignment, and compares with a copy for each; what both take."""
    chance = random.Random(5)
    for longest in (3, 40, 4_000):
        lens = [chance.randrange(longest) for _ in range(200 if IS_SHORT else 1_000)]
        starts, end = [], 0
        for length in lens:
            starts.append(end + chance.randrange(8))
            end = starts[-1] + length
        total = sum(lens)
        places = [sum(lens[:index]) for index in range(len(lens))]
        with (
            driver.memory(end + BEYOND) as there,
            driver.memory(total + BEYOND) as buffer,
            driver.pinned(total + BEYOND) as host,
        ):
            content = ctypes.create_string_buffer(chance.randbytes(end + BEYOND), end + BEYOND)
            driver.copy_in(ctypes.addressof(content), there, end + BEYOND, stream)
            each = [(there + start, place, length) for start, place, length in zip(starts, places, lens, strict=True)]

            def one_by_one(each: list = each, host: int = host) -> None:
                for source, place, length in each:
                    if length:
                        driver.copy_out(host + place, source, length, stream)

            def gathered(each: list = each, host: int = host, buffer: int = buffer, total: int = total) -> None:
                launch(driver, stream, function, [Run(source, buffer + at, length) for source, at, length in each], 0)
                driver.copy_out(host, buffer, total, stream)

            seconds = [timed(driver, stream, copies) for copies in (one_by_one, gathered)]
            expected = b"".join(content.raw[start:][:length] for start, length in zip(starts, lens, strict=True))
            assert ctypes.string_at(host, total) == expected, f"gathered runs of up to {longest} bytes"
            back = [Run(buffer + place, source, length) for source, place, length in each]
            ctypes.memset(host, 0x5A, total)
            driver.copy_in(host, buffer, total, stream)
            launch(driver, stream, function, back, 0)
            found = ctypes.create_string_buffer(end + BEYOND)
            driver.copy_out(ctypes.addressof(found), there, end + BEYOND, stream)
            driver.call("cuStreamSynchronize", stream)
            replaced = bytearray(content.raw)
            for start, length in zip(starts, lens, strict=True):
                replaced[start : start + length] = b"\x5a" * length
            assert found.raw == bytes(replaced), f"scattered runs of up to {longest} bytes, and what lies between them"
        for way, took in zip(("a copy for each", "a kernel and one copy"), seconds, strict=True):
            figure(f"{len(lens)} runs of up to {longest} bytes to the host, {way}", took * 1e6, "us")
