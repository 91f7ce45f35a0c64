"""The PTX of the kernels is what NVRTC makes of their sources."""

import importlib.util
from importlib import metadata
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "core/src/cuda/kernels"


@pytest.fixture
def generate():
    spec = importlib.util.spec_from_file_location("generate", KERNELS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        metadata.version(module.WHEEL)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{module.WHEEL} is not installed")
    return module


def test_the_ptx_that_is_checked_in_is_what_its_source_becomes(generate):
    assert generate.sources()
    for source in generate.sources():
        assert source.with_suffix(".ptx").read_text() == generate.ptx(source), f"{source.name} was changed: make ptx"


def test_a_source_with_an_error_is_refused_with_the_words_of_the_compiler(generate, tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void wrong() { nothing(); }')
    with pytest.raises(RuntimeError, match=r'wrong.cu\(1\): error: identifier "nothing" is undefined'):
        generate.ptx(source)
