"""Machines whose workers reduce their devices by NCCL, over libraries that are neither, and that lose one of them: the
workers of that machine are lost together, and those of other machines lose no step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fakecuda import LIBRARY, NCCL_LIBRARY
from processes import SAY, over, run_all

WORK = (
    SAY
    + """
import signal, sys, time
machines, victim, fatal, moment = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rank = int(os.environ["GRADLANE_RANK"])
os.environ["GRADLANE_MACHINE"] = machines[rank]
device = machines[:rank].count(machines[rank])
import gradlane as gl
import numpy as np
from fakecuda import Array, calls, closed_gate, user_stream

def die():
    os.kill(os.getpid(), signal.SIGKILL)

gl.init()
streams = [user_stream(device), user_stream(device)]
kept = []  # memory of a device is freed when all of its work is done, which no process here may wait for
sizes = [1, 700, 40_000, 300_003] * 2

def reduce(step, stream):
    arrays = [Array(np.full(size, 4**rank, np.int32), device=device, stream=stream) for size in sizes]
    kept.extend(arrays)
    return arrays, [gl.push_pull_async(array, f"t{at}", op=gl.Sum) for at, array in enumerate(arrays)]

try:
    for step in range(8):
        falls = rank == victim and step == fatal
        if falls and moment == "between":
            die()
        if falls and moment == "before its kernel":
            # NCCL has the operations of all of the machine, and the others wait in them for this one.
            gate = closed_gate(streams[0], device)
            gate.__enter__()
            before = calls("cuLaunchHostFunc")
        arrays, handles = reduce(step, streams[0])
        if falls and moment == "before its kernel":
            until = time.monotonic() + 30
            while calls("cuLaunchHostFunc") == before and time.monotonic() < until:
                time.sleep(0.01)
            die()
        for at, handle in enumerate(handles):
            if falls and at == 3:
                die()
            handle.wait()
        found = {int(value) for array in arrays for value in np.unique(array.seen_by(streams[1]))}
        say(f"step {step}: rank {rank} {sorted(found)}")
except gl.PeerLostError as error:
    say(f"lost {rank}: {error}")
    sys.exit(1)
say(f"ends {rank}")
gl.shutdown()
"""
)

MOMENTS = ["between", "before its kernel", "after some sums"]


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("machines", "victim"), [("aab", 1), ("aabb", 0), ("aabb", 3)])
def test_the_other_machine_loses_no_step(transport, machines, victim, moment):
    """Whoever reduces with the lost one is lost too or goes on; each sum has all workers that are not lost."""
    fatal = 3
    command = [sys.executable, "-m", "gradlane", "run", "-n", str(len(machines)), "-s", "1", "-o", "on_worker_loss=continue"]
    script = [sys.executable, "-c", WORK, machines, str(victim), str(fatal), moment]
    environment = over(transport) | {
        "GRADLANE_LOCAL_REDUCE": "auto",
        "GRADLANE_CUDA_LIB": LIBRARY,
        "GRADLANE_NCCL_LIB": NCCL_LIBRARY,
        "FAKECUDA_DEVICES": "2",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    if transport == "shm":
        # The server is on the first machine; the other machine reaches it over QUIC.
        environment |= {"GRADLANE_TRANSPORT": "auto", "GRADLANE_MACHINE": machines[0]}
    [ended] = run_all([([*command, "--", *script], environment)], timeout=120)
    assert ended.code == 0 and "Traceback" not in ended.output, ended.output
    lines = ended.output.splitlines()
    others = [rank for rank, machine in enumerate(machines) if machine != machines[victim]]
    for rank in others:
        assert f"ends {rank}" in lines, ended.output
    near = [rank for rank, machine in enumerate(machines) if machine == machines[victim] and rank != victim]
    for rank in near:
        assert (f"ends {rank}" in lines) != any(line.startswith(f"lost {rank}: ") for line in lines), ended.output
    for step in range(8):
        told = {line.split(" ", 4)[4] for line in lines if line.startswith(f"step {step}: ")}
        assert len(told) == 1, (step, told, ended.output)
        sums = eval(told.pop())
        whole = sum(4**rank for rank in range(len(machines)))
        if step < fatal:
            assert sums == [whole], (step, sums)
        else:
            least = sum(4**rank for rank in others)
            assert all(least <= value and value & least == least for value in sums), (step, sums)
            assert step == fatal or sums in ([least], [least + sum(4**rank for rank in near)]), (step, sums)
