"""Keras with PyTorch as its backend trains over Gradlane as one process does."""

import sys
from pathlib import Path

from processes import run_all

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_of_keras_proves_its_three_claims_on_pytorch():
    command = [sys.executable, str(DEMO), "--framework", "keras"]
    [ended] = run_all([(command, {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"})], timeout=600)
    assert ended.code == 0, ended.output
    assert ended.output.count("PASS  ") == 3, ended.output
