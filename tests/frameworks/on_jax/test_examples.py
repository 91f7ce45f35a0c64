"""The page and the script of `examples/jax` run."""

import re
import sys
from pathlib import Path

import pytest
from processes import run_all

EXAMPLES = Path(__file__).parents[3] / "examples/jax"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (EXAMPLES / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_program_of_the_page_runs(block):
    [ended] = run_all([([sys.executable, "-c", block], {})], timeout=120.0)
    assert ended.code == 0, ended.output


def test_the_script_trains_on_two_workers(tmp_path):
    run = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "2", "--"]
    script = [sys.executable, str(EXAMPLES / "digits.py"), "--steps", "60", "--check", "--save", str(tmp_path)]
    [ended] = run_all([([*run, *script], {"GRADLANE_TRANSPORT": "quic"})], timeout=150.0)
    assert ended.code == 0, ended.output
    assert (tmp_path / "rank0.npz").read_bytes() == (tmp_path / "rank1.npz").read_bytes()
