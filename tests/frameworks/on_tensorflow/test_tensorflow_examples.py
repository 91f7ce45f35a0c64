"""The examples and the programs of their pages run."""

import re
import sys
from pathlib import Path

import pytest
from processes import run_all

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("framework", ["tensorflow", "keras", "keras on jax"])
def test_the_demo_proves_its_three_claims(framework):
    name, _, backend = framework.partition(" on ")
    if backend:
        pytest.importorskip(backend)  # not beside the oldest TensorFlow, which needs an older NumPy
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--framework", name]
    [ended] = run_all([(command, {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": backend or "tensorflow"})], timeout=600)
    assert ended.code == 0, ended.output
    assert ended.output.count("PASS  ") == 3, ended.output


def programs_of(framework):
    """The blocks of a page that are whole programs."""
    page = (EXAMPLES / framework / "README.md").read_text()
    return [block for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if "gl.init()" in block]


PROGRAMS = [(framework, number) for framework in ("tensorflow", "keras") for number in range(len(programs_of(framework)))]


@pytest.mark.parametrize(("framework", "number"), PROGRAMS)
def test_a_program_of_the_page_runs_on_two_workers(framework, number, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(programs_of(framework)[number])
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", sys.executable, str(script)]
    [ended] = run_all([(command, {"OMP_NUM_THREADS": "1"})], timeout=120, cwd=tmp_path)
    assert ended.code == 0, ended.output


def test_the_training_fails_its_check_if_it_is_too_short():
    command = [sys.executable, str(EXAMPLES / "keras" / "digits.py"), "--steps", "1", "--check"]
    assert run_all([(command, {})], timeout=90)[0].code == 1
