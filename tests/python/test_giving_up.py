"""A training process that ends with an error: the others are told at once, by rank and host, and with its own words."""

import os
import socket
import sys

import pytest
from processes import SAY, Running, over, run_all

pytestmark = pytest.mark.over("local", "shm", "quic")

SOON = 9.0
"""Seconds; a process that leaves in order waits longer for the others, and a sum much longer for a contribution."""

WORK = SAY + """
import sys, gradlane

gradlane.init()
rank = gradlane.rank()
values = bytearray(1 << 16)
try:
    for step in range(10**9):
        gradlane.push_pull(values, "work", op=gradlane.Sum)
        if step == 3 and rank == FAILS:
            say(f"pid: {os.getpid()}")
            END
except gradlane.Error as error:
    say(f"told {rank}: {type(error).__name__} {getattr(error, 'member', None)}: {error}")
    os._exit(3)
"""

ENDINGS = {
    "an exception": ("raise KeyError('no such sample')", "uncaught KeyError: 'no such sample'", 1),
    "a status": ("sys.exit(7)", "exited with status 7", 7),
    "a message": ("sys.exit('the disk is full')", "exited: the disk is full", 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_others_are_told_who_failed_where_and_why(transport, ending):
    end, cause, code = ENDINGS[ending]
    with launched(work(fails=1, end=end), transport) as launcher:
        pid = launcher.line("pid: ").split()[1]
        for _ in range(2):
            told = launcher.line("told ", SOON)
            said = f"PeerLostError worker 1: lost worker 1 on {socket.gethostname()} (pid {pid}): {cause}"
            assert said in told, launcher.output
        ended = launcher.end(30.0)
    assert ended.code == code, ended.output
    assert f"lost worker 1 on {socket.gethostname()} (pid {pid}): {cause}" in without_workers(ended.output)


def test_a_rank_0_that_brings_the_servers_tells_the_others_before_it_ends(transport, tmp_path):
    with_servers = alone(transport, tmp_path)
    script = work(fails=0, end="raise ValueError('boom')")
    commands = [([sys.executable, "-c", script], with_servers(rank)) for rank in range(3)]
    ended = run_all(commands, timeout=60.0)
    assert [process.code for process in ended] == [1, 3, 3], ended
    for process in ended[1:]:
        assert "PeerLostError worker 0" in process.output and "uncaught ValueError: boom" in process.output
    assert "ValueError: boom" in ended[0].output and "Traceback" in ended[0].output


@pytest.mark.over("local")
@pytest.mark.parametrize("end", ["sys.exit()", "sys.exit(0)", "break"])
def test_a_process_that_ends_well_leaves_in_order(transport, end):
    script = work(fails=0, end="pass").replace("step == 3 and rank == 0", "step == 3").replace("pass", end)
    with launched(script, transport) as launcher:
        ended = launcher.end(60.0)
    assert ended.code == 0 and "told" not in ended.output, ended.output


@pytest.mark.over("local")
def test_a_program_that_handles_its_exceptions_goes_on(transport):
    handled = """
            try:
                sys.exit(3)
            except SystemExit as ending:
                assert ending.code == 3
            try:
                raise ValueError("handled")
            except ValueError:
                sys.excepthook(*sys.exc_info())
            say("goes on")
        if step == 6:
            break
"""
    with launched(work(fails=1, end="pass").replace("            pass\n", handled), transport) as launcher:
        launcher.line("goes on")
        ended = launcher.end(60.0)
    assert ended.code == 0 and "told" not in ended.output, ended.output


def work(*, fails, end):
    return WORK.replace("FAILS", str(fails)).replace("END", end)


def launched(script, transport):
    run = ["run", "-n", "3", "-s", "1", "--"]
    return Running([sys.executable, "-m", "gradlane", *run, sys.executable, "-c", script], env=over(transport))


def alone(transport, directory):
    """The environment of each rank of a job of three without a launcher; rank 0 brings the servers."""

    def environment(rank):
        place = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
        sizes = dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), "3")
        job = {"OMPI_MCA_ess_base_jobid": str(os.getpid()), "GRADLANE_STATE_DIR": str(directory)}
        return over(transport) | place | sizes | job

    return environment


def without_workers(output):
    """The lines that the launcher and its servers wrote."""
    return "\n".join(line for line in output.splitlines() if not line.startswith(("told ", "pid: ")))
