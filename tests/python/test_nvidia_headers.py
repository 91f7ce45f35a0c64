"""The project's tables of functions, structures and codes before NVIDIA's own headers, by a compiler of C.

The types in the tables are read from the Rust sources, and written down in C. Where a pointer to a function of the header does not have the
type that the table gives it, the compiler refuses.
"""

from __future__ import annotations

import re

import pytest
from nvidia import ROOT, compiler, ran, wheel

CUDA_TABLE = ROOT / "core/src/cuda/api.rs"
CUDA_CODES = ROOT / "core/src/cuda/codes.rs"
NCCL_TABLE = ROOT / "core/src/collective/nccl/table.rs"
NCCL_CALLS = ROOT / "core/src/collective/nccl/comm.rs"

CALL = re.compile(r'\b\w+ = "(\w+)": fn\(([^)]*)\)(?: -> ([^;]+))?;')
NAMES = {
    "c_int": "int",
    "c_uint": "unsigned int",
    "c_char": "char",
    "c_void": "void",
    "u32": "unsigned int",
    "usize": "size_t",
    "Code": "unsigned int",
}
"""Types of Rust that are called otherwise in C. An enum of the headers is an unsigned int, and compatible with it."""

CHECK = """
#include <stddef.h>
#include <{header}>
{lines}
"""


def in_c(rust: str) -> str:
    """A type of Rust in the words of C."""
    if rust.startswith("*mut "):
        return in_c(rust.removeprefix("*mut ")) + " *"
    if rust.startswith("*const "):
        pointed = rust.removeprefix("*const ")
        return ("const " if not pointed.startswith("*") else "") + in_c(pointed) + " *"
    return NAMES.get(rust, rust)


def calls(table) -> dict[str, str]:
    """The functions of a table: a pointer of its type that is set to each."""
    found = {}
    for name, arguments, result in CALL.findall(re.sub(r"\s+", " ", table.read_text())):
        types = ", ".join(in_c(argument.strip()) for argument in arguments.split(",") if argument.strip())
        kind = in_c(result.strip()) if result else "unsigned int"
        found[name] = f"{kind} (*table_{name})({types or 'void'}) = {name};"
    return found


def compiles(tmp_path, header: str, lines: list[str]) -> None:
    source = tmp_path / "check.c"
    # Of the headers that nccl.h includes the wheels have not all parts. It needs the name of a stream alone.
    for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"):
        (tmp_path / name).touch()
    (tmp_path / "cuda_runtime.h").write_text("#include <cuda.h>\ntypedef CUstream cudaStream_t;\n")
    source.write_text(CHECK.format(header=header, lines="\n".join(lines)))
    includes = [f"-I{tmp_path}", *(f"-I{wheel(folder)}" for folder in ("nvidia/cu13/include", "nvidia/nccl/include"))]
    strict = ["-std=gnu11", "-Wall", "-Werror=incompatible-pointer-types", "-Werror=implicit-function-declaration"]
    ran(compiler("gcc"), *strict, "-fsyntax-only", *includes, source)


def test_the_driver_has_the_functions_of_the_table_with_these_types(tmp_path):
    found = calls(CUDA_TABLE)
    assert len(found) == len(re.findall(r' = "cu\w+": fn', CUDA_TABLE.read_text())) >= 35
    compiles(tmp_path, "cuda.h", list(found.values()))


def test_nccl_has_the_functions_of_the_table_with_these_types(tmp_path):
    found = calls(NCCL_TABLE)
    assert len(found) == len(re.findall(r' = "nccl\w+": fn', NCCL_TABLE.read_text())) >= 18
    compiles(tmp_path, "nccl.h", list(found.values()))


@pytest.mark.parametrize(
    "wrong",
    [
        "unsigned int (*table_cuMemFree_v2)(unsigned int) = cuMemFree_v2;",
        "unsigned int (*table_cuInit)(unsigned int, int) = cuInit;",
        "unsigned int (*table_cuEventQuery)(CUstream) = cuEventQuery;",
        "unsigned int (*table_cuNothing)(void) = cuNothing;",
    ],
    ids=["a narrower number", "one argument more", "another handle", "an unknown name"],
)
def test_a_table_that_is_wrong_is_found_out(tmp_path, wrong):
    with pytest.raises(AssertionError, match="error"):
        compiles(tmp_path, "cuda.h", [wrong])


WORDS = {
    "SUCCESS": "no error",
    "INVALID_VALUE": "an argument is not valid",
    "OUT_OF_MEMORY": "out of memory",
    "NOT_INITIALIZED": "the driver is not initialised",
    "DEINITIALIZED": "the driver is shutting down",
    "STUB_LIBRARY": "this libcuda is the stub for linking, not the driver",
    "DEVICE_UNAVAILABLE": "the device is not available to this process",
    "NO_DEVICE": "no CUDA device",
    "INVALID_DEVICE": "no such device",
    "INVALID_IMAGE": "the program for the device is not valid",
    "INVALID_CONTEXT": "the context is not valid",
    "NO_BINARY_FOR_GPU": "no kernel for this device",
    "ECC_UNCORRECTABLE": "uncorrectable memory error (ECC)",
    "UNSUPPORTED_LIMIT": "the device does not support it",
    "PEER_ACCESS_UNSUPPORTED": "the device does not support it",
    "INVALID_PTX": "the PTX does not suit this driver",
    "JIT_COMPILER_NOT_FOUND": "the driver's compiler is missing",
    "UNSUPPORTED_PTX_VERSION": "the PTX does not suit this driver",
    "JIT_COMPILATION_DISABLED": "the driver may not compile",
    "OPERATING_SYSTEM": "the operating system refused",
    "INVALID_HANDLE": "the handle is not valid",
    "NOT_READY": "not ready",
    "ILLEGAL_ADDRESS": "a kernel accessed an illegal address",
    "LAUNCH_OUT_OF_RESOURCES": "too few resources to launch",
    "LAUNCH_TIMEOUT": "a kernel ran too long",
    "CONTEXT_IS_DESTROYED": "the context was destroyed",
    "ASSERT": "a kernel hit an assertion",
    "HOST_MEMORY_ALREADY_REGISTERED": "this memory is registered already",
    "HOST_MEMORY_NOT_REGISTERED": "this memory is not registered",
    "HARDWARE_STACK_ERROR": "a kernel faulted",
    "ILLEGAL_INSTRUCTION": "a kernel faulted",
    "MISALIGNED_ADDRESS": "a kernel faulted",
    "INVALID_ADDRESS_SPACE": "a kernel faulted",
    "INVALID_PC": "a kernel faulted",
    "LAUNCH_FAILED": "a kernel failed to launch or faulted",
    "COOPERATIVE_LAUNCH_TOO_LARGE": "the launch is too large for a cooperative kernel",
    "NOT_PERMITTED": "not permitted",
    "NOT_SUPPORTED": "not supported",
    "SYSTEM_NOT_READY": "the system is not ready (is the fabric manager running?)",
    "SYSTEM_DRIVER_MISMATCH": "driver and kernel module are of different versions",
    "COMPAT_NOT_SUPPORTED_ON_DEVICE": "this libcuda is a compatibility package that the device does not support",
    "STREAM_CAPTURE_UNSUPPORTED": "a graph is being captured",
    "STREAM_CAPTURE_INVALIDATED": "a graph is being captured",
    "STREAM_CAPTURE_MERGE": "a graph is being captured",
    "STREAM_CAPTURE_UNMATCHED": "a graph is being captured",
    "STREAM_CAPTURE_UNJOINED": "a graph is being captured",
    "STREAM_CAPTURE_ISOLATION": "a graph is being captured",
    "STREAM_CAPTURE_IMPLICIT": "a graph is being captured",
    "CAPTURED_EVENT": "a graph is being captured",
    "STREAM_CAPTURE_WRONG_THREAD": "a graph is being captured",
}
"""The header's name of each code that the engine has words for (without `CUDA_ERROR_`), and the words."""


def described() -> dict[int, str]:
    """The engine's words for each code."""
    source = CUDA_CODES.read_text()
    constants = dict(re.findall(r"pub\(crate\) const (\w+): Code = (\d+);", source))
    words = {}
    table = source[source.index("let words = match code {") : source.index("_ => return format!")]
    for codes, text in re.findall(r'([\w |.=]+) => "(.*)",', table):
        for code in codes.split("|"):
            first, _, last = code.strip().partition("..=")
            first = constants.get(first, first)
            words |= dict.fromkeys(range(int(first), int(last or first) + 1), text)
    return words


def test_the_words_for_a_code_of_the_driver_are_about_the_code_that_the_header_calls_so(tmp_path):
    by_words: dict[str, list[int]] = {}
    for code, words in described().items():
        by_words.setdefault(words, []).append(code)
    assert sorted(WORDS.values()) == sorted(described().values())
    lines = []
    for name, words in WORDS.items():
        full = "CUDA_SUCCESS" if name == "SUCCESS" else f"CUDA_ERROR_{name}"
        is_any = " || ".join(f"{full} == {code}" for code in by_words[words])
        lines.append(f'_Static_assert({is_any}, "{name}");')
    compiles(tmp_path, "cuda.h", lines)


def layout() -> dict[str, int]:
    """Where each field of the configuration lies that the engine hands to NCCL; the Rust compiler has checked it."""
    table = re.search(r"laid_out! \{(.*?)\}", NCCL_CALLS.read_text(), re.DOTALL)
    return {name: int(offset) for name, offset in re.findall(r"(\w+) at (\d+)", table[1])}


def test_the_configuration_of_nccl_is_laid_out_as_in_its_header(tmp_path):
    fields = layout()
    assert list(fields)[:4] == ["size", "magic", "version", "blocking"]
    lines = [f'_Static_assert(offsetof(ncclConfig_t, {name}) == {at}, "{name}");' for name, at in fields.items()]
    lines += ['_Static_assert(sizeof(ncclUniqueId) == 128 && NCCL_UNIQUE_ID_BYTES == 128, "the id");']
    lines += ['_Static_assert(NCCL_CONFIG_UNDEF_INT == -2147483647 - 1 && NCCL_API_MAGIC == 0xcafebeef, "marks");']
    # A newer header only adds fields at the end; the library reads as many bytes as the configuration says that it has.
    lines += [f'_Static_assert(sizeof(ncclConfig_t) >= {max(fields.values()) + 4}, "the whole");']
    compiles(tmp_path, "nccl.h", lines)


def test_the_numbers_that_stand_for_results_types_and_reductions_are_those_of_nccl(tmp_path):
    names = {"SUCCESS": "ncclSuccess", "REMOTE_ERROR": "ncclRemoteError", "IN_PROGRESS": "ncclInProgress"}
    constants = dict(re.findall(r"pub\(super\) const (\w+): Code = (\d+);", NCCL_TABLE.read_text()))
    lines = [f'_Static_assert({name} == {constants[ours]}, "{name}");' for ours, name in names.items()]
    # As cudarc has them, whose names the engine uses.
    types = ["Int8", "Uint8", "Int32", "Uint32", "Int64", "Uint64", "Float16", "Float32", "Float64", "Bfloat16"]
    lines += [f'_Static_assert(nccl{name} == {code}, "{name}");' for code, name in enumerate(types)]
    operations = ["Sum", "Prod", "Max", "Min", "Avg"]
    lines += [f'_Static_assert(nccl{name} == {code}, "{name}");' for code, name in enumerate(operations)]
    compiles(tmp_path, "nccl.h", lines)
