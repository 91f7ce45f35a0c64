"""A whole script of a BytePS user, unchanged, under each of the launchers that BytePS users have."""

import re
import sys
from pathlib import Path

import forks
import pytest
import torch
from conftest import fork_servers_key
from processes import over, run_all

pytest.importorskip("sklearn")

SCRIPT = str(Path(__file__).with_name("byteps_digits.py"))
EPOCHS = 4

ACCURACY_MIN = 85.0
"""Percent of digits that the net has not seen; four epochs bring it to 92 or more."""


@pytest.mark.over("local", "quic")
def test_the_digits_script_trains_under_gradlane_run(transport, tmp_path):
    launcher = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--"]
    check_training([*launcher, sys.executable, "-m", "gradlane.compat.byteps", SCRIPT], {}, transport, tmp_path)


@pytest.mark.over("quic")
def test_the_digits_script_trains_under_bpslaunch(transport, tmp_path):
    # `bpslaunch` itself puts `byteps` on the path.
    command = [sys.executable, "-m", "gradlane.compat.byteps.launch", sys.executable, SCRIPT]
    two_processes = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "NVIDIA_VISIBLE_DEVICES": "0,1"}
    check_training(command, two_processes, transport, tmp_path)


@pytest.mark.over("quic")
def test_the_digits_script_trains_asynchronously(transport, tmp_path, request):
    launcher = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "2", "--"]
    # In forks of a process that has PyTorch imported, unlike the tests above.
    command = [*launcher, sys.executable, "-I", "-S", forks.__file__, "-m", "gradlane.compat.byteps", SCRIPT]
    variables = {"BYTEPS_ENABLE_ASYNC": "1", forks.SOCKETS: request.config.stash[fork_servers_key].started(request.path)}
    # Each worker's step moves the weights by the whole rate, so it is half of what averages take.
    check_training([*command, "--lr", "0.02"], variables, transport, tmp_path, are_equal=False)


def check_training(command, variables, transport, folder, *, are_equal=True):
    env = {"OMP_NUM_THREADS": "1"} | variables | over(transport)
    [ended] = run_all([([*command, "--epochs", str(EPOCHS), "--save", str(folder / "weights")], env)], timeout=150)
    assert ended.code == 0, ended.output
    # Of the first worker alone, which says the means of both.
    accuracies = [float(found) for found in re.findall(r"Accuracy: ([\d.]+)%", ended.output)]
    assert len(accuracies) == EPOCHS and accuracies[-1] >= ACCURACY_MIN, ended.output
    # Workers that wait for nobody end with the weights that they have read last.
    weights = [torch.load(folder / f"weights.{rank}") for rank in range(2)]
    assert are_equal == all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0]), "of the two workers"
