"""Frameworks on top of PyTorch train over Gradlane, in their own processes (`make test-frameworks`)."""

import sys
from pathlib import Path

import pytest
from processes import run_all

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers", "ray"])
def test_two_workers_train_over_gradlane(framework, tmp_path):
    launcher = [sys.executable] if framework == "ray" else TORCHRUN
    command = [*launcher, str(HERE / f"train_{framework}.py")]
    [ended] = run_all([(command, {"OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"})], timeout=600, cwd=tmp_path)
    assert ended.code == 0, ended.output
    for rank in range(2):
        assert f"rank {rank} of 2 over gradlane: weights are equal: True" in ended.output, ended.output


def test_the_example_of_ray_trains_and_checks_itself(tmp_path):
    command = [sys.executable, str(EXAMPLES / "ray" / "digits.py"), "--check", "--storage", str(tmp_path)]
    [ended] = run_all([(command, {"OMP_NUM_THREADS": "1"})], timeout=600, cwd=tmp_path)
    assert ended.code == 0, ended.output
    assert "accuracy 9" in ended.output, ended.output
