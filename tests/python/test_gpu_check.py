"""The checks for machines with a GPU, where there is none: they say so, and are themselves sound on the CPU."""

import sys
from pathlib import Path

import pytest
from processes import run_all

torch = pytest.importorskip("torch")

CHECK = str(Path(__file__).parents[1] / "gpu" / "check.py")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_they_say_so_and_pass():
    [ended] = run_all([([sys.executable, CHECK], {})], timeout=60.0)
    assert (ended.code, ended.output) == (0, "SKIP: no CUDA device\n")


@pytest.mark.parametrize("check", ["sums", "amp", "overlap", "ranks_on_one_gpu"])
def test_a_check_passes_on_tensors_in_host_memory(check):
    [ended] = run_all([([sys.executable, CHECK, "--on", "cpu", check], {})], timeout=120.0)
    assert ended.code == 0 and "PASS" in ended.output and "1 of 1 checks passed" in ended.output, ended.output
