"""Modes where workers are lost, leave, or end before others, and where the coordinator is started again."""

from __future__ import annotations

import sys

import pytest
from processes import SAY, over, run_all

TRAINING = (
    SAY
    + """
import signal, sys
import gradlane, numpy as np
from gradlane import modes, parameters, rules

how, mode = sys.argv[1], eval(sys.argv[2])
gradlane.init()
rank, size = gradlane.rank(), gradlane.size()
clock = parameters.Clock("train", mode)
names = [f"w{number}" for number in range(5)]
for name in names:
    parameters.init(name, np.zeros(3), rule=rules.SGD(lr=1.0), mode=clock)
rounds = modes.has_rounds(mode)
for step in range(1, 7):
    if (rank, step, how) == (2, 4, "at the push"):
        # Some servers have its gradients of the round, and others do not.
        for name in names[:2]:
            parameters.push(name, np.full(3, 100.0), update="step")
        os.kill(os.getpid(), signal.SIGKILL)
    if (rank, step, how) == (2, 4, "shutdown"):
        gradlane.shutdown()
        sys.exit()
    if (rank, step, how) == (2, 4, "leave"):
        clock.leave()
        break
    for name in names:
        version = parameters.push(name, np.full(3, 1.0), update="step")
        assert version.fate == ("kept" if rounds else "accepted")
    if (rank, step, how) == (2, 4, "before the tick"):
        os.kill(os.getpid(), signal.SIGKILL)
    tick = clock.tick()
    assert (tick.round, tick.fate) == (step, "accepted")
if how == "leave":
    gradlane.barrier("all are behind their last round")
values = np.zeros(3)
versions = {int(parameters.pull(name, values)) for name in names}
seen = set()
for name in names:
    parameters.pull(name, values)
    seen |= set(values.tolist())
gradlane.shutdown()
say(f"values {sorted(seen)}, versions {sorted(versions)}")
"""
)


CONTINUES = ("-o", "on_worker_loss=continue")


def train(how, mode, transport, settings=CONTINUES):
    """What the workers tell that are left, in one job of three workers and two servers."""
    command = [sys.executable, "-m", "gradlane", "run", "-n", "3", "-s", "2", *settings]
    program = [sys.executable, "-c", TRAINING, how, mode]
    [ended] = run_all([([*command, "--", *program], over(transport))], timeout=120)
    assert ended.code == 0, ended.output
    return [line for line in ended.output.splitlines() if line.startswith("values ")]


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("how", ["at the push", "before the tick"])
def test_a_worker_that_is_killed_within_a_round_is_not_in_it_on_any_server(how, transport):
    """Six rounds, whose mean gradient is 1 whoever is in them; some servers have gradients of the lost one, and others do not."""
    assert train(how, "modes.Sync()", transport) == ["values [-6.0], versions [7]"] * 2


@pytest.mark.over("shm", "quic")
def test_a_worker_that_is_killed_holds_nobody(transport):
    """Its changes that were answered count: six of each of the others, and four of its own."""
    assert train("before the tick", "modes.SSP(0)", transport) == ["values [-16.0], versions [17]"] * 2


@pytest.mark.over("shm")
@pytest.mark.parametrize(("how", "left", "settings"), [("shutdown", 2, ()), ("shutdown", 2, CONTINUES), ("leave", 3, ())])
@pytest.mark.parametrize(("mode", "told"), [("modes.Sync()", (-6.0, 7)), ("modes.SSP(0)", (-15.0, 16))])
def test_a_worker_with_fewer_rounds_holds_nobody(how, left, settings, mode, told, transport):
    value, version = told
    assert train(how, mode, transport, settings) == [f"values [{value}], versions [{version}]"] * left
