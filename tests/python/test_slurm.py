"""Jobs that Slurm starts, by a program in the place of `srun` that gives each task the variables of Slurm."""

import re
import sys

import pytest
from fakesrun import place_on_path
from processes import SAY, run_all

WORKER = SAY + """
import array, gradlane

# As on a cluster, where each node is a machine of its own.
os.environ["GRADLANE_MACHINE"] = os.environ.get("SLURMD_NODENAME", "alone")
gradlane.init()
values = array.array("d", [gradlane.rank() + 1.0])
gradlane.push_pull(values, "ranks", op=gradlane.Sum)
place = f"{gradlane.local_rank()} of {gradlane.local_size()} on {os.environ.get('SLURMD_NODENAME')}"
rank = f"rank {gradlane.rank()} of {gradlane.size()}"
say(f"step {os.environ.get('SLURM_STEP_ID')}: {rank}, {place}, got {values[0]:.0f}")
"""


@pytest.fixture
def batch(tmp_path):
    """The environment of a batch script."""
    state = tmp_path / "state"  # on a cluster, the home that all nodes see
    state.mkdir()
    return place_on_path(tmp_path) | {"GRADLANE_STATE_DIR": str(state)}


def srun(*options):
    return ["srun", *options, sys.executable, "-c", WORKER]


def said(ended):
    return sorted(re.findall(r"^step .*", ended.output, re.MULTILINE))


def test_srun_starts_a_job_on_two_nodes(batch):
    [ended] = run_all([(srun("-N", "2", "-n", "3"), batch)], timeout=60)
    assert ended.code == 0, ended.output
    assert said(ended) == [
        "step 0: rank 0 of 3, 0 of 2 on n0, got 6",
        "step 0: rank 1 of 3, 1 of 2 on n0, got 6",
        "step 0: rank 2 of 3, 0 of 1 on n1, got 6",
    ]


def test_two_steps_of_a_job_that_run_at_once_do_not_meet(batch):
    ended = run_all([(srun("-n", "2"), batch), (srun("-n", "2"), batch)], timeout=60)
    assert [step.code for step in ended] == [0, 0], ended
    assert sorted(said(ended[0]) + said(ended[1])) == [
        f"step {step}: rank {rank} of 2, {rank} of 2 on n0, got 3" for step in range(2) for rank in range(2)
    ]


def test_the_batch_script_itself_is_a_single_process(batch):
    [ended] = run_all([([sys.executable, "-c", WORKER], batch)], timeout=60)
    assert said(ended) == ["step None: rank 0 of 1, 0 of 1 on None, got 1"], ended.output
