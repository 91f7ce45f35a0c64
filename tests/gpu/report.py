"""The facts of the machine, the table, and the JSON file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import telling
from running import Outcome, numbers

FORMAT = 1
"""Of the JSON file."""

FACTS_SECONDS_MAX = 120.0

FRAMEWORK_FACTS = """
import json, gradlane, torch
found = {"gradlane": gradlane.__version__, "package": gradlane.__path__[0]}
found |= {"pytorch": torch.__version__, "cuda of pytorch": torch.version.cuda, "gpus": []}
if torch.cuda.is_available():
    found["nccl of pytorch"] = ".".join(map(str, torch.cuda.nccl.version()))
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        found["gpus"].append(f"{facts.name}, {facts.total_memory >> 30} GiB, sm_{facts.major}{facts.minor}")
print(json.dumps(found))
"""


def frameworks(env: Mapping[str, str]) -> dict[str, Any] | None:
    """The versions of PyTorch and of the package, and the GPUs that PyTorch sees. None, after saying why, if one fails.

    They are imported in another process, so that the runner starts quickly and takes no device memory.
    """
    ended = run([sys.executable, "-c", FRAMEWORK_FACTS], env)
    if ended is None or ended.returncode:
        print(f"PyTorch or the package gradlane cannot be imported:\n{ended.stderr if ended else 'it takes too long'}")
        return None
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def facts(env: Mapping[str, str]) -> dict[str, Any]:
    """What this machine is."""
    query = ["nvidia-smi", "--query-gpu=driver_version,pci.bus_id,memory.total", "--format=csv,noheader"]
    smi, doctor = run(query, env), run([sys.executable, "-m", "gradlane", "doctor", "--json"], env)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model_of_cpu(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "nvidia-smi": smi.stdout.splitlines() if smi and smi.returncode == 0 else [],
        "doctor": json.loads(doctor.stdout) if doctor and doctor.returncode == 0 else [],
    }


def run(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str] | None:
    """How a command ended; None if there is no such command, or it does not end."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": FACTS_SECONDS_MAX}
    try:
        return subprocess.run(command, env=os.environ | dict(env), **options)
    except (OSError, subprocess.TimeoutExpired):
        return None


def model_of_cpu() -> str:
    """The name that the kernel has for the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def show_facts(found: Mapping[str, Any]) -> None:
    """The facts, a line each, and what of `doctor` is about devices."""
    for name, fact in found.items():
        if name != "doctor" and fact:
            print(f"{name}: {', '.join(fact) if isinstance(fact, list) else fact}")
    for finding in found["doctor"]:
        if finding["subject"].startswith(("cuda", "nccl", "machine", "pcie")):
            print(f"{finding['subject']}: {finding['found']}")


def show(outcome: Outcome) -> None:
    """All that a check told, as soon as it is over."""
    print(f"== {outcome.name}: {outcome.about}")
    for record in outcome.records:
        print(f"   {record['kind']:6} {telling.text_of(record)}")
    if outcome.output:
        print("   its last lines:", *outcome.output, sep="\n      ")
    print(f"{outcome.result} {outcome.name}{f': {outcome.reason}' if outcome.reason else ''}", flush=True)


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each check, in order."""
    width = max(len(outcome.name) for outcome in outcomes)
    lines = [f"{'check':{width}}  result  seconds"]
    for outcome in outcomes:
        words = outcome.reason or numbers(outcome.records)
        lines.append(f"{outcome.name:{width}}  {outcome.result:6}  {outcome.seconds:7.1f}  {words}")
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """The last line."""
    counts = {result: sum(outcome.result == result for outcome in outcomes) for result in ("PASS", "FAIL", "SKIP")}
    failed = ", ".join(outcome.name for outcome in outcomes if outcome.result == "FAIL")
    text = f"{counts['PASS']} of {len(outcomes)} checks passed, {counts['SKIP']} skipped, {counts['FAIL']} failed"
    return f"{text}: {failed}" if failed else text


def write(path: Path, run: Mapping[str, Any], machine: Mapping[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Writes the whole file anew; the runner does so after each check, in case a later one takes the machine down."""
    content = {"format": FORMAT, **run, "machine": machine, "checks": [asdict(outcome) for outcome in outcomes]}
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)
