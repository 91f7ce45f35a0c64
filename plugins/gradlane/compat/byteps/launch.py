"""`bpslaunch`: starts what `DMLC_ROLE` says, with BytePS's variables.

    DMLC_ROLE=worker DMLC_WORKER_ID=0 ... bpslaunch python train.py    # one process for each visible GPU
    DMLC_ROLE=server ... bpslaunch
    DMLC_ROLE=scheduler ... bpslaunch

The exit code is that of the first process that failed, 128+n if signal n ended it, and 2 if a variable is missing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

_COMMANDS = {"server": "server", "scheduler": "coordinator"}
_ENDING_TIMEOUT = 10.0
"""Seconds between SIGTERM and SIGKILL for the other processes of a host where one failed."""
_POLL_SECONDS = 0.1


def main() -> int:
    """Runs the command line of this process, and returns its exit code."""
    command, environment = sys.argv[1:], dict(os.environ)
    role = environment.get("DMLC_ROLE", "")
    if role in _COMMANDS and not _asks_for_ssh(command):
        _become(["-m", "gradlane", _COMMANDS[role]], environment)
    try:
        _refuse_hosts(command)
        if role != "worker":
            raise _Misuse(f"DMLC_ROLE={role!r}; give worker, server or scheduler")
        if not command:
            raise _Misuse("a worker runs a command; give it, as in `bpslaunch python train.py`")
        local_size = _local_size(environment)
        environment["PYTHONPATH"] = _with_stand_in(environment.get("PYTHONPATH", ""))
        if not _is_distributed(environment):
            _become(["-m", "gradlane", "run", "-n", str(local_size), "--", *command], environment)
        _require(environment, "DMLC_NUM_WORKER", "DMLC_WORKER_ID", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
    except _Misuse as misuse:
        print(f"bpslaunch: {misuse}", file=sys.stderr)
        return 2
    return _run(command, environment, local_size)


class _Misuse(Exception):
    """What is wrong with the environment or the command line, and what to do."""


_OF_SSH = ("-WH", "-SH", "--worker-hostfile", "--server-hostfile", "--scheduler-ip", "--scheduler-port")
"""Options of BytePS's `dist_launcher.py`, which starts a job by ssh."""


def _asks_for_ssh(command: Sequence[str]) -> bool:
    first = command[0] if command else ""
    return first.partition("=")[0] in _OF_SSH or any(Path(word).name == "dist_launcher.py" for word in command[:2])


def _refuse_hosts(command: Sequence[str]) -> None:
    if _asks_for_ssh(command):
        raise _Misuse(
            "BytePS's launcher by ssh (dist_launcher.py) does not exist here; run bpslaunch on each host with DMLC_ROLE and "
            "the other DMLC variables, by your scheduler or by ssh, or use `gradlane run`, torchrun, mpirun or srun"
        )


def _become(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    os.execve(sys.executable, [sys.executable, *arguments], environment)


def _local_size(environment: Mapping[str, str]) -> int:
    """The number of processes on this host, as BytePS counts them: one for each GPU that is listed, or one."""
    listed = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    return len([device for device in listed.split(",") if device.strip()]) or 1


def _is_distributed(environment: Mapping[str, str]) -> bool:
    """Whether servers take part: with several hosts, or if that is asked for."""
    hosts = environment.get("DMLC_NUM_WORKER", "1")
    if not hosts.isdecimal() or int(hosts) < 1:
        raise _Misuse(f"DMLC_NUM_WORKER={hosts!r} is no number of hosts; give 1 or more")
    return int(hosts) > 1 or environment.get("BYTEPS_FORCE_DISTRIBUTED", "0") not in ("", "0")


def _require(environment: Mapping[str, str], *names: str) -> None:
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise _Misuse(f"{', '.join(missing)} must be set for a worker of a job on several hosts")


def _with_stand_in(path: str) -> str:
    """The module path of the processes, on which `import byteps` finds this package."""
    return os.pathsep.join([str(Path(__file__).with_name("_path")), *([path] if path else [])])


def _run(command: Sequence[str], environment: Mapping[str, str], local_size: int) -> int:
    """Runs the command once for each local rank. If one fails, or this process is to end, the others are ended."""
    processes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for local_rank in range(local_size):
            place = {"BYTEPS_LOCAL_RANK": str(local_rank), "BYTEPS_LOCAL_SIZE": str(local_size)}
            processes.append(subprocess.Popen(command, env={**environment, **place}))
        while True:
            codes = [process.poll() for process in processes]
            failed = [code for code in codes if code]
            if failed:
                return failed[0] if failed[0] > 0 else 128 - failed[0]
            if None not in codes:
                return 0
            time.sleep(_POLL_SECONDS)
    except OSError as error:
        print(f"bpslaunch: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    except KeyboardInterrupt:
        return 130
    finally:
        _end(processes)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()  # does nothing to one that has ended
    deadline = time.monotonic() + _ENDING_TIMEOUT
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
