"""The kernels for devices in two forms: their source, built by compilers of C and C++, and their PTX in the interpreter of the stand-in."""

from __future__ import annotations

import ctypes
from pathlib import Path

import fakecuda
import numpy as np
from nvidia import ROOT, compiler, ran

REPLACEMENTS = {
    'asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));': "value = half_to_float(bits);",
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));': "bits = float_to_half(value);",
}
"""Lines of assembly, and what they become on the host."""


class Kernels:
    """Both forms of the kernels of one source, whose parameter is a structure of this type and this name."""

    def __init__(self, source: Path, parameter: type[ctypes.Structure], folder: Path) -> None:
        here = ROOT / "tests/python"
        text = source.read_text()
        for assembly, call in REPLACEMENTS.items():
            assert text.count(assembly) <= 1, assembly
            text = text.replace(assembly, call)
        assert "asm" not in text
        kernels, halves, library = folder / "kernels.inc", folder / "halves.o", folder / "kernels.so"
        kernels.write_text(text)
        # No product may be joined with another operation, which would round once instead of twice.
        exact = ["-O2", "-fPIC", "-ffp-contract=off", f"-I{source.parent}"]
        ran(compiler("gcc"), *exact, "-c", here / "halves_on_host.c", "-o", halves)
        sizes = [f"-DPARAMETER={parameter.__name__}", f"-DPARAMETER_BYTES={ctypes.sizeof(parameter)}"]
        defines = [f'-DKERNELS="{kernels}"', *sizes]
        ran(compiler("g++"), *exact, "-shared", *defines, here / "kernels_on_host.cpp", halves, "-o", library)
        self._host = ctypes.CDLL(str(library))
        self._module = ctypes.c_void_p()
        ptx = source.with_suffix(".ptx").read_bytes()
        fakecuda.in_context(0, "cuModuleLoadData", ctypes.byref(self._module), ptx + b"\0")

    def run(self, name: str, parameter: ctypes.Structure, grid: tuple[int, int], on_device: bool) -> None:
        """Runs a kernel with so many blocks and threads, by the interpreter or on the host."""
        if not on_device:
            self._host.run_on_host(getattr(self._host, name), ctypes.byref(parameter), *grid)
            return
        function = ctypes.c_void_p()
        fakecuda.in_context(0, "cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        sizes = (grid[0], 1, 1, grid[1], 1, 1)
        fakecuda.in_context(0, "cuLaunchKernel", function, *sizes, 0, None, arguments, None)
        fakecuda.finish(0)


class Arena:
    """Memory that the host and the device have at the same address."""

    def __init__(self, size: int) -> None:
        self.address = fakecuda.allocate(size)
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))

    def free(self) -> None:
        fakecuda.free(self.address)
