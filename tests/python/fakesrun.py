"""Slurm's `srun` as far as a program sees it: starts the tasks of a step, each with the variables that Slurm gives it.

    srun -N 2 -n 4 python train.py

The nodes are all this machine. `place_on_path` makes a program of it. The names and meanings of the variables are those
of "OUTPUT ENVIRONMENT VARIABLES" in the manual of srun; tasks are placed in blocks, as by default. The environment must
be that of an allocation: SLURM_JOB_ID. As with srun, the exit code is the largest of the tasks'.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="srun")
    parser.add_argument("-N", "--nodes", type=int, default=1)
    parser.add_argument("-n", "--ntasks", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    counts = tasks_per_node(options.ntasks, options.nodes)
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    environment = os.environ | of_step(counts)
    tasks = [
        subprocess.Popen(options.command, env=environment | of_task(counts, rank, node, local))
        for rank, (node, local) in enumerate(places)
    ]
    codes = [task.wait() for task in tasks]
    return max(code if code >= 0 else 128 - code for code in codes)


def tasks_per_node(tasks: int, nodes: int) -> list[int]:
    """How many tasks each node gets."""
    return [tasks // nodes + (node < tasks % nodes) for node in range(nodes)]


def of_step(counts: list[int]) -> dict[str, str]:
    """The variables that all tasks of the step have alike."""
    nodes, tasks = str(len(counts)), str(sum(counts))
    names = f"n[0-{len(counts) - 1}]" if len(counts) > 1 else "n0"
    job, step = os.environ["SLURM_JOB_ID"], next_step()
    same = {
        names: ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
        nodes: ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
        shortened(counts): ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    }
    variables = {name: value for value, group in same.items() for name in group}
    variables |= dict.fromkeys(("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), tasks)
    variables |= dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), step)
    variables |= dict.fromkeys(("SLURM_SRUN_COMM_HOST", "SLURM_LAUNCH_NODE_IPADDR"), "127.0.0.1")
    return variables | {"SLURM_JOBID": job}


def of_task(counts: list[int], rank: int, node: int, local: int) -> dict[str, str]:
    """The variables of one task."""
    first = sum(counts[:node])
    on_node = ",".join(str(first + other) for other in range(counts[node]))
    numbers = {"SLURM_PROCID": rank, "SLURM_NODEID": node, "SLURM_LOCALID": local, "SLURM_CPUS_ON_NODE": os.cpu_count()}
    return {name: str(value) for name, value in numbers.items()} | {
        "SLURM_GTIDS": on_node,
        "SLURMD_NODENAME": f"n{node}",
    }


def shortened(counts: list[int]) -> str:
    """Tasks by node as Slurm writes them: `2(x3),1` for three nodes with two tasks and one with one."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(str(count) if hosts == 1 else f"{count}(x{hosts})" for count, hosts in runs)


def next_step() -> str:
    """The number of this step in its job: 0 for the first."""
    folder, number = Path(os.environ["FAKESRUN_STEPS"]), 0
    while True:
        try:
            Path(folder, str(number)).touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return str(number)


def place_on_path(folder: Path) -> dict[str, str]:
    """Makes the program `srun` in a folder. Returns the environment of a batch script of a job that runs there."""
    program, steps = Path(folder, "bin", "srun"), Path(folder, "steps")
    program.parent.mkdir()
    steps.mkdir()
    program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
    program.chmod(0o755)
    batch = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4"}
    batch |= {"SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_NODELIST": "n[0-1]"}
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    return batch | {"FAKESRUN_STEPS": str(steps), "PATH": path}


if __name__ == "__main__":
    sys.exit(main())
