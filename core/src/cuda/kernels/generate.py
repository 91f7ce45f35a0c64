"""Makes the PTX beside each CUDA source with NVRTC, which needs neither a GPU nor a driver.

`make ptx` runs it with the release of NVRTC that `python/requirements-dev.txt` names, the first of CUDA 12: it writes
PTX 8.0, which drivers from 525 on load. The PTX is checked in, so that nobody needs NVRTC to build or run.
"""

import ctypes
import sys
from importlib import metadata
from pathlib import Path

WHEEL = "nvidia-cuda-nvrtc-cu12"
HERE = Path(__file__).parent
# Pascal, because nothing here needs a newer device, and drivers of branch 580 still serve it; a driver compiles the PTX for
# whatever newer GPU there is. With a later standard than C++03 NVRTC declares what nobody asked for, four kilobytes of it.
OPTIONS = [b"--gpu-architecture=compute_60", b"--std=c++03"]


def sources() -> list[Path]:
    """The CUDA sources, in the order of their names."""
    return sorted(HERE.glob("*.cu"))


def library() -> Path:
    """The NVRTC of the wheel; not any other that the machine may have, because its text would differ.

    Raises:
        importlib.metadata.PackageNotFoundError: the wheel is not installed.
    """
    files = metadata.files(WHEEL) or []
    return Path(next(file for file in files if file.name == "libnvrtc.so.12").locate())


def ptx(source: Path) -> str:
    """What NVRTC makes of `source`.

    Raises:
        RuntimeError: it does not compile; the compiler's words are in it.
    """
    nvrtc = ctypes.CDLL(str(library()))
    program = ctypes.c_void_p()
    text, name = source.read_bytes(), source.name.encode()
    files = sorted(HERE.glob("*.cuh"))
    headers = (ctypes.c_char_p * len(files))(*(file.read_bytes() for file in files))
    names = (ctypes.c_char_p * len(files))(*(file.name.encode() for file in files))
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, len(files), headers, names))
    try:
        options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
        result = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
        if result != 0:
            raise RuntimeError(f"{source}: {read(nvrtc, program, 'ProgramLog')}")
        return read(nvrtc, program, "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    """One of the texts that a program has; NVRTC counts the zero at its end."""
    size = ctypes.c_size_t()
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.value.decode()


def check(nvrtc: ctypes.CDLL, result: int) -> None:
    """Raises what NVRTC calls an error."""
    if result != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(nvrtc.nvrtcGetErrorString(result).decode())


if __name__ == "__main__":
    for source in sources():
        made = source.with_suffix(".ptx")
        made.write_text(ptx(source))
        sys.stdout.write(f"{made}\n")
