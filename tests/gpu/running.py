"""Runs checks in processes of their own, with a deadline, and says what became of each."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import telling
from catalogue import Check
from telling import FAIL, FIGURE, PASS, SKIP

HERE = Path(__file__).parent
END = "END"
"""The record of a worker that came to the end of a check."""

OUTPUT_LINES = 40
"""So much of the output is kept of a check that failed."""

LAUNCHER_GRACE = 120
"""Seconds that the launcher leaves the survivors of a check that kills a worker: more than they may take."""


@dataclass
class Outcome:
    """What became of a check."""

    name: str
    about: str
    result: str
    """PASS, FAIL or SKIP."""
    reason: str = ""
    """Of FAIL and SKIP."""
    seconds: float = 0.0
    records: list[dict[str, Any]] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    """The last lines, if it failed."""


@dataclass(frozen=True)
class Options:
    """What the command line says of all checks."""

    on: str
    """`cuda`, `stand-ins` or `cpu`."""
    is_short: bool
    has_targets: bool
    env: Mapping[str, str]
    """What every check needs beyond the runner's environment."""


@dataclass(frozen=True)
class Ended:
    """How a launch ended."""

    code: int | None
    """None if it was killed at its deadline."""
    output: str
    records: list[dict[str, Any]]
    seconds: float
    deadline: float


def why_not(check: Check, options: Options, devices: int) -> str:
    """Why a check is not run here; empty if it is."""
    if options.on in check.cannot:
        return check.cannot[options.on]
    if options.on == "cuda" and devices < check.devices:
        return f"it needs {check.devices} GPUs, here is {devices}"
    if check.under and shutil.which(check.under[0]) is None:
        return f"{check.under[0]} is not installed"
    return ""


def launches(checks: Mapping[str, Check], together: bool) -> list[dict[str, Check]]:
    """One launch for each check; or, with `together`, one for all that want the same job and leave it whole."""
    found: dict[tuple[object, ...], dict[str, Check]] = {}
    for name, check in checks.items():
        job = (check.workers, tuple(sorted(check.env.items())), check.machines, check.under, check.log)
        is_whole = together and check.leaves and not check.lost
        found.setdefault(job if is_whole else (name,), {})[name] = check
    return list(found.values())


def run(checks: Mapping[str, Check], options: Options) -> list[Outcome]:
    """Runs the checks of one launch, and judges each."""
    ended = launch(checks, options)
    last = list(checks)[-1]
    return [judged(name, check, name == last, len(checks) == 1, ended, options) for name, check in checks.items()]


def launch(checks: Mapping[str, Check], options: Options) -> Ended:
    """Starts the job of these checks and waits for its end; what is left at the deadline is killed."""
    check = next(iter(checks.values()))
    deadline = sum(each.seconds_max for each in checks.values())
    with tempfile.TemporaryDirectory(prefix="gradlane-gpu-", ignore_cleanup_errors=True) as scratch:
        env = os.environ | options.env | check.env | environment(check, options, scratch)
        begun = time.monotonic()
        with tempfile.TemporaryFile() as output:
            started = subprocess.Popen(
                command(checks, check), env=env, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = started.wait(deadline)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                # Also what a launcher that ended has left behind.
                kill_group(started.pid)
                started.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        return Ended(code, text, telling.read(Path(scratch)), time.monotonic() - begun, deadline)


def kill_group(number: int) -> None:
    """Kills what is left of a process group."""
    try:
        os.killpg(number, signal.SIGKILL)
    except ProcessLookupError:
        pass


def environment(check: Check, options: Options, scratch: str) -> dict[str, str]:
    """What tells the workers how to run."""
    env = {
        "GPU_CHECK_ON": options.on,
        "GPU_CHECK_SHORT": "1" if options.is_short else "0",
        "GPU_CHECK_SCRATCH": scratch,
        "GPU_CHECK_MACHINES": check.machines,
        "GRADLANE_LOG": check.log,
    }
    if options.is_short:
        env["GRADLANE_PARTITION_BYTES"] = "256KiB"  # several parts even in the tensors of a short form
    if check.machines:
        env["GRADLANE_MACHINE"] = f"gpu-check-{check.machines[0]}"  # that of the servers
    if check.logs_nccl:
        env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL,P2P,NET"}
        env["NCCL_DEBUG_FILE"] = str(Path(scratch, "nccl.%h.%p"))
    return env


def command(checks: Mapping[str, Check], check: Check) -> list[str]:
    """The command of a launch."""
    worker = [sys.executable, str(HERE / "check.py"), "--worker", *checks]
    if check.workers:
        grace = ["--grace", str(LAUNCHER_GRACE)] if check.lost else []
        worker = [sys.executable, "-m", "gradlane", "run", "-n", str(check.workers), "-s", "1", *grace, "--", *worker]
    return [*check.under, *worker]


def judged(name: str, check: Check, is_last: bool, is_alone: bool, ended: Ended, options: Options) -> Outcome:
    """What became of a check of this launch, the last one or the only one of it."""
    records = [record for record in ended.records if record["check"] == name]
    told = [record for record in records if record["kind"] != END]
    ends = [record["seconds"] for record in records if record["kind"] == END]
    kinds = {record["kind"] for record in told}
    faults = [telling.text_of(record) for record in told if record["kind"] == FAIL]
    if options.has_targets:
        missed = [record for record in told if record["kind"] == FIGURE and not record.get("is_met", True)]
        faults += [telling.text_of(record) for record in missed]
    faults += not_ended(check, is_last, len(ends), ended)
    if options.on != "cpu":
        faults += said(check, ended.output)
    if not told and not faults:
        faults.append("it told nothing")
    seconds = ended.seconds if is_alone else max(ends, default=0.0)
    if faults:
        return Outcome(name, check.about, FAIL, faults[0], seconds, told, ended.output.splitlines()[-OUTPUT_LINES:])
    if kinds == {SKIP}:
        return Outcome(name, check.about, SKIP, telling.text_of(told[0]), seconds, told)
    return Outcome(name, check.about, PASS, "", seconds, told)


def said(check: Check, output: str) -> list[str]:
    """What is wrong with the log."""
    if check.always and check.always not in output:
        return [f"the log lacks {check.always!r}, so that it shows nothing"]
    return [f"the log has {text!r}" for text in check.never if text in output]


def not_ended(check: Check, is_last: bool, ends: int, ended: Ended) -> list[str]:
    """What is wrong with the end of a check, of which so many workers say that they came to it."""
    wanted = max(1, check.workers) - check.lost
    code = 128 + signal.SIGKILL if check.lost else 0
    if ended.code is None and (ends < wanted or is_last):
        return [f"not done within {ended.deadline:.0f} s"]
    if ends < wanted:
        return [f"{wanted - ends} of {wanted} processes did not come to its end; code {ended.code}"]
    if is_last and ended.code != code:
        return [f"it came to its end, but ended with code {ended.code} instead of {code}"]
    return []


def numbers(records: Sequence[Mapping[str, Any]]) -> str:
    """How many statements and figures there are, in words."""
    counts = {kind: sum(record["kind"] == kind for record in records) for kind in (PASS, FIGURE)}
    return f"{counts[PASS]} statements, {counts[FIGURE]} figures"
