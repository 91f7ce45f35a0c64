"""Machines whose workers reduce among themselves, and that lose some of them: the others lose no step and have the same sums."""

from __future__ import annotations

import sys

import pytest
from processes import SAY, over, run_all

WORK = (
    SAY
    + """
import hashlib, signal, sys
machines, kills, when = sys.argv[1], dict(zip(map(int, sys.argv[2]), map(int, sys.argv[3].split(",")))), sys.argv[4]
os.environ["GRADLANE_MACHINE"] = machines[int(os.environ["GRADLANE_RANK"])]
import gradlane as gl
import numpy as np

gl.init()
rank, workers = gl.rank(), len(machines)
names = [f"t{at}" for at in range(12)]
sizes = [1, 700, 40_000, 1_000_003] * 3

def die():
    os.kill(os.getpid(), signal.SIGKILL)

for step in range(24):
    falls = kills.get(rank) == step
    tensors = [np.full(size, 4**rank, np.int32) for size in sizes]
    handles = [gl.push_pull_async(tensor, name, op=gl.Sum) for tensor, name in zip(tensors, names)]
    for at, handle in enumerate(handles):
        if falls and at == int(when):
            die()
        handle.wait()
    # Each element tells who is in it.
    found = sorted({int(value) for tensor in tensors for value in np.unique(tensor)})
    gone = [other for other, at in kills.items() if at < step]
    falling = [other for other, at in kills.items() if at == step]
    left = sum(4**other for other in range(workers) if other not in gone + falling)
    possible = {left} | {left + 4**other for other in falling}
    assert set(found) <= possible, (step, found, possible)
    digest = hashlib.sha256(b"".join(tensor.tobytes() for tensor in tensors)).hexdigest()
    say(f"step {step}: {len(found)} {digest}")
say(f"ends {rank}")
gl.shutdown()
"""
)

CASES = [
    # The machines of the workers, who is killed and in which step, and after how many sums of that step it is.
    ("aaa", "1", "9", 0),
    ("aaa", "0", "9", 3),
    ("aaaa", "021", "5,11,17", 5),
    ("aab", "0", "9", 1),
    ("aabb", "3", "9", 4),
    # All that are left are on one machine, and go on with the server.
    ("aab", "2", "9", 2),
    ("aabb", "02", "5,15", 2),
    ("aaab", "10", "6,14", 3),
]


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize(("machines", "victims", "steps", "when"), CASES)
def test_the_others_of_a_machine_lose_no_step_and_agree(transport, machines, victims, steps, when):
    """Each worker that is killed has sums under way with the others of its machine."""
    command = [sys.executable, "-m", "gradlane", "run", "-n", str(len(machines)), "-s", "1", "-o", "on_worker_loss=continue"]
    script = [sys.executable, "-c", WORK, machines, victims, steps, str(when)]
    environment = over(transport) | {"GRADLANE_LOCAL_REDUCE": "auto", "OMP_NUM_THREADS": "1"}
    if transport == "shm":
        # The server is on the first machine; the other machines reach it over QUIC.
        environment |= {"GRADLANE_TRANSPORT": "auto", "GRADLANE_MACHINE": machines[0]}
    [ended] = run_all([([*command, "--", *script], environment)], timeout=120)
    left = len(machines) - len(victims)
    assert ended.code == 0 and "Traceback" not in ended.output, ended.output
    lines = ended.output.splitlines()
    assert len([line for line in lines if line.startswith("ends ")]) == left, ended.output
    for step in range(24):
        told = [line for line in lines if line.startswith(f"step {step}: ")]
        assert len(told) >= left and len(set(told)) == 1, (step, told)
