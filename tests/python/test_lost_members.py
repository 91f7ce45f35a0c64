"""A member of a launched job dies, or is held up: the survivors are told who it was, soon, and nothing is left over."""

import os
import signal
import sys
import time

import pytest
from processes import SAY, Running, children, lives, over

pytestmark = pytest.mark.over("quic")

DEAD_TIMEOUT = 2.0
SLACK = 2.0
"""What may pass beyond the dead timeout until a program has heard of a loss; the cores may be shared."""

GRACE = 2
"""What the launcher leaves the survivors to end by themselves, in seconds."""

SETTINGS = {"GRADLANE_SUSPECT_TIMEOUT": "1s", "GRADLANE_DEAD_TIMEOUT": f"{DEAD_TIMEOUT}s"}

FAILED = (1, 3)
"""The codes of a job whose members gave up: a server's or a worker's, whichever ended first."""

ENDLESS_WORK = SAY + """
import sys, time, gradlane

gradlane.init()
rank = gradlane.rank()
values = bytearray(1 << 20)
try:
    for step in range(10**9):
        gradlane.push_pull(values, "work", op=gradlane.Sum)
        if step == 3:
            say(f"at work: {rank} {os.getpid()}")
except gradlane.Error as error:
    lost = getattr(error, "member", None)
    say(f"told {rank}: {type(error).__name__} {lost} {error.code} at {time.monotonic()} {error}")
    sys.exit(3)
"""


@pytest.fixture
def job(transport):
    """A launched job of three workers and two servers in the middle of its work, and the workers' processes by rank."""
    run = ["run", "-n", "3", "-s", "2", "--grace", str(GRACE), "--"]
    command = [sys.executable, "-m", "gradlane", *run, sys.executable, "-c", ENDLESS_WORK]
    with Running(command, env=SETTINGS | over(transport)) as launcher:
        at_work = dict(launcher.line("at work: ").split()[2:] for _ in range(3))
        yield launcher, [int(at_work[str(rank)]) for rank in range(3)]


@pytest.mark.over("shm", "quic")
def test_a_server_that_is_killed_is_named_to_every_worker(job):
    launcher, workers = job
    everyone = children(launcher.pid)
    server = max(set(everyone) - set(workers))
    assert everyone[server].endswith("server")
    at = time.monotonic()
    os.kill(server, signal.SIGKILL)
    hear_in_time(launcher, at, "server", survivors=3)
    ended = launcher.end(10.0)
    assert ended.code == 128 + signal.SIGKILL, ended.output
    assert not any(map(lives, everyone))


@pytest.mark.over("shm", "quic")
def test_a_worker_that_is_killed_is_named_to_the_others(job):
    launcher, workers = job
    everyone = children(launcher.pid)
    at = time.monotonic()
    os.kill(workers[1], signal.SIGKILL)
    hear_in_time(launcher, at, "worker 1", survivors=2)
    assert launcher.end(10.0).code == 128 + signal.SIGKILL, launcher.output
    assert not any(map(lives, everyone))


def test_a_worker_that_is_held_up_is_given_up_and_learns_so_when_it_goes_on(job):
    launcher, workers = job
    everyone = children(launcher.pid)
    at = time.monotonic()
    os.kill(workers[2], signal.SIGSTOP)
    hear_in_time(launcher, at, "worker 2", survivors=2)
    os.kill(workers[2], signal.SIGCONT)
    name, _, _ = heard(launcher, at)
    assert name == "FencedError", launcher.output
    assert launcher.end(10.0).code in FAILED, launcher.output
    assert not any(map(lives, everyone))


def test_a_worker_that_is_held_up_for_good_does_not_keep_the_launcher(job):
    launcher, workers = job
    everyone = children(launcher.pid)
    os.kill(workers[0], signal.SIGSTOP)
    # A stopped process ignores SIGTERM, and is killed a second later.
    assert launcher.end(DEAD_TIMEOUT + GRACE + 1.0 + SLACK).code in FAILED, launcher.output
    assert not any(map(lives, everyone))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_the_whole_job_within_two_seconds(job, number, code):
    launcher, workers = job
    everyone = children(launcher.pid)
    assert set(workers) <= set(everyone) and len(everyone) == 5
    at = time.monotonic()
    launcher.interrupt(number)
    ended = launcher.end(10.0)
    assert ended.code == code, ended.output
    assert time.monotonic() - at < 2.0 + SLACK
    assert not any(map(lives, everyone))


def hear_in_time(launcher, at, lost, survivors):
    """Expects that so many workers are told soon after `at` who was lost: a member whose name begins so."""
    for name, member, after in (heard(launcher, at) for _ in range(survivors)):
        assert name == "PeerLostError" and member.startswith(lost), launcher.output
        assert after < DEAD_TIMEOUT + SLACK


def heard(launcher, at):
    """What the next worker that fails was told: class, member, and how long after `at`."""
    words = launcher.line("told ").split()
    end = words.index("at")
    return words[2], " ".join(words[3 : end - 1]), float(words[end + 1]) - at
