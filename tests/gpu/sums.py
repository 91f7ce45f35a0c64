"""Sums through a server: exact, in order with the streams of PyTorch, and the same as in host memory."""

from __future__ import annotations

import statistics
import time

import gradlane.torch as gl
import torch
from places import IS_SHORT, agree, count_wrong, fill_late, is_here, put, settle
from telling import figure, passed

COUNTS = (1, 1000, (1 << 18) + 3) if IS_SHORT else (1, 1000, 1 << 20, (1 << 22) + 3)
"""Below a part, in several parts, and neither a multiple of anything."""

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def sums() -> None:
    """Sums of tensors that a slow kernel is still to write."""
    total = sum(range(1, gl.size() + 1))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        for count in COUNTS:
            pattern = put((torch.arange(count) % 40).to(dtype))
            mine, expected = pattern * (gl.rank() + 1), (pattern * total)
            tensor = put(torch.full((count,), -7).to(dtype))
            settle()
            for _ in range(1 if IS_SHORT else 2):
                fill_late(tensor, mine)
                gl.push_pull_(tensor, f"{dtype} {count}", op=gl.Sum)
                wrong = count_wrong(tensor, expected)
                assert wrong == 0, f"{wrong} of {count} sums of {dtype} are wrong"
    passed("sums are exact in f32, bf16, f16 and i32: after a slow kernel, seen by a stream that waited for nothing")
    average = gl.push_pull(put(torch.full((5,), float(gl.rank()))), "average")
    assert is_here(average) and (average == (gl.size() - 1) / 2).all()
    group = [torch.full((10,), float(gl.rank())) for _ in range(100)]
    group = [put(tensor) if index % 2 else tensor for index, tensor in enumerate(group)]
    gl.grouped_push_pull_(group, "mixed group", op=gl.Sum)
    assert all((tensor == total - gl.size()).all() for tensor in group)
    passed("a group on the device and the CPU is reduced in one call")


sanitizer = sums
"""The same, under compute-sanitizer."""


def small() -> None:
    """Sums many small tensors of odd lengths, a group for each type; what a step of them takes."""
    count = 200 if IS_SHORT else 1_000
    total = sum(range(1, gl.size() + 1))
    for dtype in (torch.float32, torch.float16, torch.int8):
        patterns = [put((torch.arange(1 + 7 * index % 601) % 11).to(dtype)) for index in range(count)]
        tensors, sums = ([put(pattern * factor) for pattern in patterns] for factor in (gl.rank() + 1, total))
        settle()
        gl.grouped_push_pull_(tensors, f"small {dtype}", op=gl.Sum)
        for tensor, expected in zip(tensors, sums, strict=True):
            assert count_wrong(tensor, expected) == 0, f"sums of {len(expected)} elements of {dtype} are wrong"
        seconds = []
        for _ in range(3 if IS_SHORT else 30):
            settle()
            begun = time.perf_counter()
            gl.grouped_push_pull_(tensors, f"small {dtype}", op=gl.Average)
            settle()
            seconds.append(time.perf_counter() - begun)
        figure(f"{count} small tensors of {dtype} there and back", statistics.median(seconds) * 1e3, "ms")
    passed(f"{count} small tensors of each type are summed exactly")


def as_on_the_host() -> None:
    """Reduces the same values on the device and in host memory, unusual ones too."""
    for dtype in FLOATS + INTEGERS:
        for count in (1, 33, 4097):
            values = unusual(dtype, count)
            weighted = [{"op": gl.WeightedAverage, "weight": gl.rank() + 0.3}] if dtype.is_floating_point else []
            # What is rounded by chance depends on the name of a tensor, so two of them differ.
            codecs = ("fp16", "bf16", "int8", "int4", "fp8_e4m3", "fp8_e5m2", "onebit", "topk")
            narrow = [{"compression": getattr(gl.Compression, codec)} for codec in codecs]
            forms = [{"op": op} for op in (gl.Sum, gl.Average, gl.Min, gl.Max)] + weighted
            for number, form in enumerate(forms + (narrow if dtype == torch.float32 else [])):
                name = f"{dtype} {count} {number}"
                there = gl.push_pull(values.clone(), f"host {name}", **form)
                here = gl.push_pull(put(values.clone()), f"device {name}", **form)
                assert is_here(here)
                assert agree(here.cpu(), there), f"{dtype}, {count} elements, {form}"
    passed("sums, means, weighted means, extremes and narrowed ones have the bits of those in host memory")


def unusual(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Values of every size, the same in each run and others on each rank; some floats are no numbers, or infinite."""
    generator = torch.Generator().manual_seed(count + gl.rank())
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min // 4, limits.max // 4, (count,), generator=generator, dtype=dtype)
    exponents = torch.randint(-24, 12, (count,), generator=generator)
    values = torch.ldexp(torch.randn(count, generator=generator), exponents).to(dtype)
    for place, value in ((7, float("nan")), (11, float("inf")), (13, float("-inf")), (17, -0.0)):
        values[place::19] = value
    return values
