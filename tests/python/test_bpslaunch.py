"""`bpslaunch`, with the variables that BytePS's launcher wants."""

import os
import signal
import sys

import pytest
from processes import SAY, Running, free_port, run_all

BPSLAUNCH = [sys.executable, "-m", "gradlane.compat.byteps.launch"]

HOST = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "2",
    "DMLC_WORKER_ID": "0",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "1",
    "NVIDIA_VISIBLE_DEVICES": "0,1",
}
"""The first of two hosts, with two processes."""

WORKER = SAY + """
import byteps.common as bps

bps.init()
say(f"rank {bps.rank()} of {bps.size()}, {bps.local_rank()} of {bps.local_size()} here")
bps.shutdown()
"""


@pytest.mark.parametrize(
    ("environment", "command", "problem"),
    [
        ({}, ["true"], "DMLC_ROLE=''; give worker, server or scheduler"),
        ({"DMLC_ROLE": "boss"}, ["true"], "DMLC_ROLE='boss'"),
        ({"DMLC_ROLE": "worker"}, [], "a worker runs a command"),
        ({}, ["-WH", "hosts", "-SH", "hosts", "bpslaunch"], "launcher by ssh (dist_launcher.py) does not exist here"),
        ({}, ["--worker-hostfile=hosts"], "run bpslaunch on each host"),
        ({"DMLC_ROLE": "server"}, ["python3", "launcher/dist_launcher.py", "-WH", "hosts"], "launcher by ssh"),
        ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "two"}, ["true"], "DMLC_NUM_WORKER='two' is no number"),
        ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "0"}, ["true"], "DMLC_PS_ROOT_URI, DMLC_PS"),
    ],
)
def test_what_is_missing_is_named(environment, command, problem):
    [ended] = run_all([([*BPSLAUNCH, *command], environment)], timeout=60)
    assert ended.code == 2 and problem in ended.output, ended.output


def test_the_processes_of_one_host_form_a_job():
    environment = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "NVIDIA_VISIBLE_DEVICES": "0,1"}
    [ended] = run_all([([*BPSLAUNCH, sys.executable, "-c", WORKER], environment)], timeout=60)
    assert ended.code == 0, ended.output
    for rank in range(2):
        assert f"rank {rank} of 2, {rank} of 2 here" in ended.output


def test_hosts_scheduler_and_server_form_a_job(tmp_path):
    common = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "NVIDIA_VISIBLE_DEVICES": "0,1",
        "BYTEPS_LOCAL_SIZE": "2",
        "GRADLANE_STATE_DIR": str(tmp_path),
    }
    host = [*BPSLAUNCH, sys.executable, "-c", WORKER]
    commands = [
        (BPSLAUNCH, common | {"DMLC_ROLE": "scheduler"}),
        (BPSLAUNCH, common | {"DMLC_ROLE": "server"}),
        *((host, common | {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(index)}) for index in range(2)),
    ]
    ended = run_all(commands, timeout=90)
    assert [process.code for process in ended] == [0] * 4, ended
    for rank in range(4):
        assert f"rank {rank} of 4, {rank % 2} of 2 here" in ended[2 + rank // 2].output


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([sys.executable, "-c", "raise SystemExit(7)"], 7),
        ([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], 137),
        (["/no/such/program"], 127),
    ],
)
def test_the_exit_code_is_that_of_the_first_failure_and_nobody_is_left(command, code):
    # The first rank of the host waits until it is ended.
    waiting = "import os, subprocess, sys, threading\n" + (
        "if os.environ['BYTEPS_LOCAL_RANK'] == '0': threading.Event().wait()\n"
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    line = command if code == 127 else [sys.executable, "-c", waiting, *command]
    [ended] = run_all([([*BPSLAUNCH, *line], HOST)], timeout=60)
    assert ended.code == code, ended.output


def test_whoever_ends_it_ends_its_processes():
    waiting = "import os, threading; os.write(1, b'waits\\n'); threading.Event().wait()"
    with Running([*BPSLAUNCH, sys.executable, "-c", waiting], env=HOST) as launcher:
        for _ in range(2):
            launcher.line("waits")
        os.kill(launcher.pid, signal.SIGTERM)
        # The end of the output is that of all processes that could write to it.
        assert launcher.end(timeout=30).code == 128 + signal.SIGTERM
