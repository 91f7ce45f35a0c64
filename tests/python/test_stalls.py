"""A worker that does not come: the others are warned long before the deadline, and told what it did last."""

import os
import socket
import sys

import pytest
from processes import SAY, over, run_all

pytestmark = pytest.mark.over("local", "shm", "quic")

WORK = SAY + """
import sys, gradlane

gradlane.init()
values = bytearray(1 << 16)
gradlane.push_pull(values, "earlier", op=gradlane.Sum)
if gradlane.rank() == int(sys.argv[1]):
    gradlane.barrier("after", timeout=60.0)
    sys.exit()
try:
    gradlane.push_pull(values, "work", op=gradlane.Sum)
except gradlane.StallError as error:
    say(f"told: {error.missing_ranks} {error}")
gradlane.barrier("after", timeout=60.0)
"""

SETTINGS = {"GRADLANE_STALL_WARN": "1s", "GRADLANE_STEP_TIMEOUT": "4s", "GRADLANE_HEARTBEAT_INTERVAL": "100ms"}


@pytest.mark.parametrize("absent", [0, 2])
def test_the_log_names_the_missing_worker_and_what_it_did_last_and_so_does_the_error(transport, absent):
    run = ["run", "-n", "3", "--", sys.executable, "-c", WORK, str(absent)]
    [ended] = run_all([([sys.executable, "-m", "gradlane", *run], over(transport) | SETTINGS)], timeout=60.0)
    check(ended, absent)


def test_without_a_launcher_rank_0_has_the_log(transport, tmp_path):
    sizes = dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), "2")
    job = {"OMPI_MCA_ess_base_jobid": str(os.getpid()), "GRADLANE_STATE_DIR": str(tmp_path)}
    common = over(transport) | SETTINGS | sizes | job
    place = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    commands = [([sys.executable, "-c", WORK, "1"], common | dict.fromkeys(place, str(rank))) for rank in range(2)]
    check(run_all(commands, timeout=60.0)[0], 1)


def check(ended, absent):
    assert ended.code == 0, ended.output
    did_last = f"worker {absent} on {socket.gethostname()} (pid "
    warned = [line for line in ended.output.splitlines() if "a sum waits" in line]
    assert warned and all('tensor="work"' in line and did_last in line for line in warned), ended.output
    told = [line for line in ended.output.splitlines() if line.startswith(f"told: [{absent}] tensor work, ")]
    assert told and all(did_last in line and "last tensor earlier, round 0" in line for line in told), ended.output
