"""What the operating system does to a job: it has no room on its disk or in its memory, kills for memory, or sets its clock."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from processes import SAY, over, run_all

RUN = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1"]

SUMS = SAY + """
import gradlane, numpy as np

def sums(count):
    for step in range(count):
        summed = gradlane.push_pull(np.full(40_000, 1 + gradlane.rank(), np.float32), "weights", op=gradlane.Sum)
        assert (summed == 3).all(), summed
"""


@pytest.mark.over("local", "shm", "quic")
def test_a_full_disk_under_the_log_ends_no_job(transport):
    script = SUMS + "gradlane.init(); sums(5); gradlane.shutdown(); say('done')"
    # `/dev/full` has no room, as a file of a full disk. Warnings of the settings are written too.
    command = [*RUN, "--log", "debug", "--", sys.executable, "-c", script]
    silent = ["sh", "-c", 'exec "$@" 2> /dev/full', "sh", *command]
    [ended] = run_all([(silent, over(transport) | {"BYTEPS_KEY_HASH_FN": "djb2"})], timeout=60)
    assert (ended.code, ended.output) == (0, "done\n" * 2)


@pytest.mark.over("quic")
def test_a_coordinator_whose_state_has_no_room_says_so_and_keeps_what_was_there(tmp_path):
    command = [sys.executable, "-m", "gradlane", "coordinator", "-n", "1", "-s", "1", "--state-dir", str(tmp_path)]
    command += ["-o", "join_timeout=1s"]
    [formed] = run_all([(command, {})], timeout=60)
    assert "missing" in formed.output, formed.output
    before = files(tmp_path)
    assert before, "there is a journal"
    [ended] = run_all([(limited(command), {})], timeout=60)
    assert ended.code == 1, ended.output
    assert ended.output.startswith(f"gradlane: writing {tmp_path}/") and "File too large" in ended.output, ended.output
    assert files(tmp_path) == before


@pytest.mark.over("local", "shm")
def test_a_process_without_shared_memory_names_it_at_the_start(transport):
    script = SUMS + """
try:
    gradlane.init(timeout=20)
    sums(1)
except gradlane.ResourceExhaustedError as error:
    say(f"{type(error).__name__}: {error}")
"""
    [ended] = run_all([(limited([*RUN, "--", sys.executable, "-c", script]), over(transport))], timeout=90)
    assert "shared memory" in ended.output and "ulimit -f" in ended.output, ended.output


@pytest.mark.over("local", "shm", "quic")
def test_a_wall_clock_that_jumps_by_days_disturbs_no_job(transport, tmp_path):
    # Certificates are good for one day.
    script = SUMS + """
import struct, sys, time
gradlane.init()
clock, started = os.open(sys.argv[1], os.O_WRONLY), time.time()
for days in (0, 2, -2, 0):
    gradlane.barrier()
    if gradlane.rank() == 0:
        os.pwrite(clock, struct.pack("=q", days * 86_400), 0)
    sums(50)
    if gradlane.rank() == 0:
        say(f"{round((time.time() - started) / 86_400)} days")
gradlane.shutdown()
"""
    offset = tmp_path / "offset"
    offset.write_bytes(bytes(8))
    preloaded = {"LD_PRELOAD": str(wall_clock(tmp_path)), "WALL_CLOCK_OFFSET": str(offset)}
    command = [*RUN, "--", sys.executable, "-c", script, str(offset)]
    [ended] = run_all([(command, over(transport) | preloaded)], timeout=90)
    assert (ended.code, ended.output) == (0, "0 days\n2 days\n-2 days\n0 days\n")


def wall_clock(folder: Path) -> Path:
    """Builds a library that moves the wall clock of a process by the seconds in a file, whenever they change."""
    library, source = folder / "wall_clock.so", Path(__file__).with_name("wall_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@contextlib.contextmanager
def memory_group(bytes_max: int) -> Iterator[list[str]]:
    """A memory cgroup with a limit. Yields the beginning of a command that is to run in it (cgroups(7))."""
    groups = Path("/sys/fs/cgroup")
    is_v1 = (groups / "memory").is_dir()
    group = (groups / "memory" if is_v1 else groups) / f"gradlane-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(bytes_max))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        # Its processes have ended, and the kernel needs a moment to notice.
        deadline = time.monotonic() + 10
        while group.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.01)


def limited(command: Sequence[str]) -> list[str]:
    """The command where no file can grow, and no shared memory. Its output goes through a pipe, which can."""
    return ["bash", "-o", "pipefail", "-c", '(ulimit -f 0; exec "$@" 2>&1) | cat', "bash", *command]


def files(folder: Path) -> dict[str, bytes]:
    """The files in a folder, by their names."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.over("local", "shm", "quic")
def test_a_full_dev_shm_disturbs_no_job(transport):
    # Shared memory has no name in /dev/shm, so its room does not matter (memfd_create(2)).
    if os.geteuid() != 0:
        pytest.skip("needs root: a /dev/shm of its own")
    script = SUMS + "gradlane.init(); sums(5); gradlane.shutdown(); say('done')"
    fill = "mount -t tmpfs -o size=64k none /dev/shm && ! head -c 1M /dev/zero > /dev/shm/full 2>/dev/null"
    command = ["unshare", "-m", "sh", "-c", f'{fill} && exec "$@"', "sh", *RUN, "--", sys.executable, "-c", script]
    [ended] = run_all([(command, over(transport))], timeout=60)
    assert (ended.code, ended.output) == (0, "done\n" * 2)


@pytest.mark.over("local", "shm", "quic")
def test_a_job_runs_within_the_memory_of_its_group(transport):
    script = SUMS + "gradlane.init(); sums(50); gradlane.shutdown(); say('done')"
    with memory_group(384 << 20) as enter:
        [ended] = run_all([([*enter, *RUN, "--", sys.executable, "-c", script], over(transport))], timeout=60)
    assert (ended.code, ended.output) == (0, "done\n" * 2)


@pytest.mark.over("local", "shm", "quic")
def test_a_worker_that_its_memory_group_kills_is_named_to_the_others(transport):
    script = SUMS + """
gradlane.init()
sums(2)
if gradlane.rank() == 1:
    # More than the group has, in pieces, so that the kernel kills and the allocation does not fail.
    hoard = [bytearray(os.urandom(1 << 20) * 16) for _ in range(128)]
try:
    sums(1)
except gradlane.PeerLostError as error:
    say(f"lost rank {error.rank}")
"""
    with memory_group(384 << 20) as enter:
        [ended] = run_all([([*enter, *RUN, "--", sys.executable, "-c", script], over(transport))], timeout=60)
    assert ended.code != 0, ended.output
    assert "lost rank 1\n" in ended.output, ended.output
