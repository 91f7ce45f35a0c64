"""The kernels for devices before NVIDIA's assemblers, and those that work element by element before a compiler of C++.

The assemblers accept the PTX for each generation of devices, and say what it uses there. The source, compiled for the host, computes what
the PTX does in the interpreter of the stand-in for the driver, which all other tests of kernels trust.
"""

from __future__ import annotations

import ctypes
import itertools
import re

import numpy as np
import pytest
from hostkernels import Arena, Kernels
from nvidia import CUDA_SOURCES, KERNEL_SIZES, TRITON, kernels_of_engine, ran, wheel

DEVICES = {60: "P100", 70: "V100", 75: "T4", 80: "A100", 90: "H100", 100: "B200"}
"""A device of each capability."""
PROGRAMS = [(name, capability) for name in CUDA_SOURCES for capability in DEVICES]
# The disassembler knows no older devices.
DISASSEMBLED = [(name, capability) for name, capability in PROGRAMS if capability >= 75]


TOPK = ["count", "compare", "list", "measure", "write", "clear", "scatter"]
LOOKING = ["gradlane_finite", "gradlane_onebit_signs", "gradlane_onebit_scale", "gradlane_randomk_look"]
LOOKING += [f"gradlane_topk_{name}" for name in TOPK]
LOOKING += [f"gradlane_dithering_{name}" for name in ("look", "scale", "measure", "order", "write")]
"""Kernels that store less than they load, or at places that depend on what other lanes have."""
CLEARING = ["gradlane_randomk_clear", "gradlane_topk_begin"]
"""Kernels that load nothing."""


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: f"{program[0]}-sm_{program[1]}")
def program(request, tmp_path_factory):
    """Which kernels, the capability of a device, and the program that an assembler makes of their PTX for it. The newest devices have an
    assembler of their own."""
    kernels, capability = request.param
    assembler = wheel(TRITON / ("ptxas-blackwell" if capability >= 100 else "ptxas"))
    made = tmp_path_factory.mktemp("cubin") / "kernels.cubin"
    ptx = CUDA_SOURCES[kernels].with_suffix(".ptx")
    ran(assembler, f"-arch=sm_{capability}", "--warning-as-error", ptx, "-o", made)
    return kernels, capability, made


def test_no_kernel_spills_registers_or_needs_local_memory(program):
    kernels, capability, cubin = program
    usage = ran(wheel(TRITON / "cuobjdump"), "-res-usage", cubin)
    sizes = {name: [int(size) for size in rest] for name, *rest in KERNEL_SIZES.findall(usage)}
    assert sorted(sizes) == sorted(kernels_of_engine(kernels))
    # The 2048 threads of a multiprocessor share 65536 registers. Older assemblers' choices leave it half full at least, and those that make
    # two codes of int4, find four drawn places at once, or write numbers of any length leave it three quarters full.
    registers_max = 64 if capability < 80 else 32 if kernels == "elementwise" else 40
    for name, (registers, stack, shared, local) in sizes.items():
        assert (stack, shared, local) == (0, 0, 0), f"{name}: {usage}"
        assert registers <= registers_max, f"{name} has {registers} registers"


@pytest.mark.parametrize("program", DISASSEMBLED, indirect=True, ids=lambda program: f"{program[0]}-sm_{program[1]}")
def test_every_kernel_has_four_loads_under_way_before_it_stores(program):
    kernels, _, cubin = program
    code = ran(wheel(TRITON / "cuobjdump"), "-sass", cubin)
    functions = dict(re.findall(r"Function : (\w+)\n(.*?)(?=\n\s*Function :|\Z)", code, re.DOTALL))
    assert sorted(functions) == sorted(kernels_of_engine(kernels))
    for name, instructions in functions.items():
        accesses = "".join(re.findall(r"\b(L|S)(?:DG|TG|D|T)\.[EU]", instructions))
        # One loop for each width of words.
        loops = 4 if name == "gradlane_copy" else 1
        # Two elements of int4 are one byte, and of some parts only a word or a note is stored.
        stores = {"gradlane_encode_int4": "SS"} | dict.fromkeys(LOOKING, "") | {"gradlane_topk_begin": "S"}
        loads = "" if name in CLEARING else "LLLL"
        assert accesses.count(loads + stores.get(name, "SSSS")) >= loops, f"{name}: {accesses}"
        if name.startswith("gradlane_encode_") and "bf16" not in name:
            assert accesses.startswith("LLLL"), f"{name} looks for the largest magnitude: {accesses}"


class Run(ctypes.Structure):
    """As in `elementwise.cu`."""

    _fields_ = [("origin", ctypes.c_uint64), ("to", ctypes.c_uint64), ("len", ctypes.c_uint64)]


class Runs(ctypes.Structure):
    """As in `elementwise.cu`."""

    _fields_ = [("number", ctypes.c_uint64), ("count", ctypes.c_uint64), ("runs", Run * 170)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Kernels(CUDA_SOURCES["elementwise"], Runs, tmp_path_factory.mktemp("host"))


GRID = (16, 64)
"""Blocks and threads. The blocks are a multiple of the number of runs, which is 4 at most here."""


def both(kernels, name: str, number: int, data: np.ndarray, written: type, runs: int, multiple: int = 1) -> list:
    """What the interpreter and the host make of `data`, cut into runs whose ends are multiples of `multiple` elements.

    The last `multiple` elements of a run are left out, so that what is written there shows.
    """
    read_size, written_size = data.itemsize, np.dtype(written).itemsize
    inside, outcome = Arena(data.nbytes), []
    inside.bytes[:] = data.view(np.uint8)
    ends = [len(data) * run // runs // multiple * multiple for run in range(runs + 1)]
    for on_device in (True, False):
        outside = Arena(len(data) * written_size)
        outside.bytes[:] = 0xEE
        parameter = Runs(number, runs)
        for run, (begin, end) in enumerate(itertools.pairwise(ends)):
            places = inside.address + begin * read_size, outside.address + begin * written_size
            parameter.runs[run] = Run(*places, end - begin - multiple)
        kernels.run(name, parameter, GRID, on_device)
        outcome.append(outside.bytes.view(written).copy())
        outside.free()
    inside.free()
    return outcome


def agree(device: np.ndarray, host: np.ndarray, what: str) -> None:
    """Equal in all bits. A NaN may have any payload, which devices do not keep."""
    as_bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[device.itemsize]
    differ = (device.view(as_bits) != host.view(as_bits)) & ~(np.isnan(device) & np.isnan(host))
    assert not differ.any(), f"{what}: {differ.sum()} elements, such as {device[differ][0]} and {host[differ][0]}"


LEN = 1 << 18
FACTORS = [1.0, 1 / 3, -2.5e-5, 0.0]
SCALES = {
    "gradlane_scale_f32": ("f32", "f32"),
    "gradlane_scale_f64": ("f64", "f64"),
    "gradlane_scale_f16": ("f16", "f16"),
    "gradlane_scale_bf16": ("bf16", "bf16"),
    "gradlane_f32_to_f16": ("f32", "f16"),
    "gradlane_f32_to_bf16": ("f32", "bf16"),
    "gradlane_f16_to_f32": ("f16", "f32"),
    "gradlane_bf16_to_f32": ("bf16", "f32"),
}
BITS = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}
DIVISIONS = {
    "gradlane_divide_i8": np.int8,
    "gradlane_divide_u8": np.uint8,
    "gradlane_divide_i32": np.int32,
    "gradlane_divide_i64": np.int64,
}


def floats(bits: np.ndarray, kind: str) -> np.ndarray:
    """The numbers that have these bits."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind])


def samples(kind: str) -> np.ndarray:
    """The bits of every half-size float, or of many floats of every sign and exponent, NaN and infinities among them."""
    if BITS[kind] == np.uint16:
        return np.arange(1 << 16, dtype=np.uint16)
    return np.random.default_rng(7).integers(0, np.iinfo(BITS[kind]).max, LEN, BITS[kind], endpoint=True)


@pytest.mark.parametrize("name", SCALES)
def test_the_source_on_the_host_scales_and_casts_as_the_ptx_does(kernels, name):
    read, written = SCALES[name]
    for runs, factor in enumerate(FACTORS, 1):
        number = int(np.float64(factor).view(np.uint64))
        # A grid is a multiple of the number of runs.
        found = both(kernels, name, number, samples(read), BITS[written], {3: 2}.get(runs, runs))
        device, ours = (floats(bits, written) for bits in found)
        agree(device, ours, f"{name}, times {factor}")


@pytest.mark.parametrize("name", DIVISIONS)
def test_the_source_on_the_host_divides_as_the_ptx_does(kernels, name):
    dtype = DIVISIONS[name]
    limits = np.iinfo(dtype)
    data = np.random.default_rng(7).integers(limits.min, limits.max, LEN // 2, dtype, endpoint=True)
    data[:4] = [limits.min, limits.max, 0, limits.min + 1]
    for divisor in (1, 3, 8, 255):
        device, ours = both(kernels, name, divisor, data, dtype, 4)
        assert (device == ours).all(), f"{name}, by {divisor}"


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_source_on_the_host_copies_as_the_ptx_does(kernels, width):
    data = np.random.default_rng(7).integers(0, 255, LEN // 4 * width, np.uint8)
    device, ours = both(kernels, "gradlane_copy", 0, data, np.uint8, 4, multiple=width)
    assert (device == ours).all()
    assert (device[:1000] == data[:1000]).all()


def test_every_kernel_of_the_engine_is_compared():
    assert sorted([*SCALES, *DIVISIONS, "gradlane_copy"]) == sorted(kernels_of_engine("elementwise"))
