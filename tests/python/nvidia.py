"""NVIDIA's compilers, headers and libraries, as the wheels hold them that PyTorch for Linux depends on.

None of them needs a GPU or a driver. A test that asks for one that is not installed is skipped, and the skip names it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CUDA_SOURCES = {path.stem: path for path in sorted((ROOT / "core/src/cuda/kernels").glob("*.cu"))}
"""The sources of kernels by their names; the PTX lies beside each."""
LISTS = {name: f"kernels/{name}.rs" for name in CUDA_SOURCES} | {"elementwise": "kernels.rs"}
"""Where the engine lists the kernels of each source."""

PACKAGES = Path(sysconfig.get_path("purelib"))
TRITON = Path("triton/backends/nvidia/bin")
NCCL = Path("nvidia/nccl/lib/libnccl.so.2")


def wheel(path: Path | str) -> Path:
    """A file or folder of an installed wheel; skips the test if it is not there."""
    found = PACKAGES / path
    if not found.exists():
        pytest.skip(f"needs {path}, which a wheel has that PyTorch for Linux depends on")
    return found


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def ran(*command: object) -> str:
    """What a program wrote, of which the code must be 0."""
    ended = subprocess.run([str(word) for word in command], capture_output=True, encoding="utf-8", check=False)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr


KERNEL_SIZES = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


def kernels_of_engine(source: str) -> list[str]:
    """The names under which the engine looks up the kernels of a source."""
    return re.findall(r'"(gradlane_\w+)\\0"', (ROOT / "core/src/cuda" / LISTS[source]).read_text())
