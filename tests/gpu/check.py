"""What only a machine with a GPU can show: `make gpu-check`, or `python check.py` in the bundle of `make gpu-bundle`.

Needs PyTorch, and nothing else but the files beside it. Each check runs in processes of its own with a deadline below
ten minutes; one that crashes or hangs fails, and the next one runs. Prints what each check told and a table, and writes
both, with the facts of the machine, to a JSON file. The exit code is 1 if a check failed. Without a CUDA device this
prints `SKIP: no CUDA device`. `README.md` beside this file lists what each check verifies.

    python check.py                       # all checks, in their order
    python check.py sums training         # some of them
    python check.py --short               # few repetitions and small sizes: the figures mean nothing
    python check.py --on stand-ins        # over stand-ins of the driver and NCCL; in the repository, after `make fakes`
    python check.py --on cpu sums         # on tensors in host memory
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent / "python"
"""In the repository: what these checks share with the tests. In a bundle that lies beside this file."""

INSTALL = "pip install --no-deps gradlane-*.whl"


def main() -> int:
    """Runs what the command line asks for; the exit code."""
    sys.path[:0] = [str(HERE), str(SHARED)]
    arguments = parsed()
    if arguments.worker:
        return work(arguments.worker)
    if importlib.util.find_spec("torch") is None:
        print("SKIP: no PyTorch, which makes the tensors of these checks")
        return 0
    import report

    with package(arguments.installed) as env:
        if env is None:
            return 2
        machine = report.frameworks(env)
        if machine is None:
            return 2
        if arguments.on == "cuda" and not machine["gpus"]:
            print("SKIP: no CUDA device")
            return 0
        return check(arguments, env | settings_of(arguments.on), machine)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", help="names of checks; all of them if none is given")
    parser.add_argument("--on", choices=["cuda", "stand-ins", "cpu"], default="cuda", help="where tensors lie")
    parser.add_argument("--short", action="store_true", help="few repetitions and small sizes")
    parser.add_argument(
        "--together",
        action="store_true",
        help="one launch for all checks that want the same job: quicker, but one that fails takes later ones along",
    )
    parser.add_argument("--targets", action="store_true", help="fail where a figure misses its target")
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"), help="default: %(default)s")
    parser.add_argument("--installed", action="store_true", help="check what is installed, not the wheel here")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    from catalogue import CHECKS

    unknown = set(arguments.checks) - CHECKS.keys()
    if unknown:
        parser.error(f"no check is called {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    if arguments.on == "stand-ins" and not (SHARED / "fakecuda.py").exists():
        parser.error("the stand-ins are in the repository, not in a bundle")
    return arguments


def check(arguments: argparse.Namespace, env: dict[str, str], machine: dict[str, Any]) -> int:
    """Runs the checks and reports, with what is known of the machine; the exit code."""
    import report
    import running
    from catalogue import CHECKS

    options = running.Options(arguments.on, arguments.short, arguments.targets, env)
    wanted = {name: one for name, one in CHECKS.items() if name in (arguments.checks or CHECKS)}
    told = {"begun": time.strftime("%Y-%m-%d %H:%M:%S %z"), "command": sys.argv[1:], "on": arguments.on}
    machine = report.facts(env) | machine
    report.show_facts(machine)
    outcomes = {}
    for name, one in wanted.items():
        if reason := running.why_not(one, options, len(machine["gpus"])):
            outcomes[name] = running.Outcome(name, one.about, "SKIP", reason)
    rest = {name: one for name, one in wanted.items() if name not in outcomes}
    for launch in running.launches(rest, arguments.together):
        for outcome in running.run(launch, options):
            report.show(outcome)
            outcomes[outcome.name] = outcome
        ordered = [outcomes[name] for name in wanted if name in outcomes]
        report.write(arguments.json, told, machine, ordered)
    ordered = [outcomes[name] for name in wanted]
    report.write(arguments.json, told, machine, ordered)
    where = {"cuda": "", "stand-ins": "over stand-ins, ", "cpu": "in host memory, "}[arguments.on]
    print(f"\n{report.table(ordered)}\n\n{where}{report.summary(ordered)}; all of it is in {arguments.json}")
    return 1 if any(outcome.result == "FAIL" for outcome in ordered) else 0


def work(names: Sequence[str]) -> int:
    """Runs checks in this process, as one worker of their job, if it is one."""
    import telling
    from catalogue import CHECKS

    one, rank = CHECKS[names[0]], int(os.environ.get("GRADLANE_RANK", "0"))
    if one.machines:
        os.environ["GRADLANE_MACHINE"] = f"gpu-check-{one.machines[rank]}"
    if "GPU_CHECK_HOSTID" in os.environ:
        os.environ["NCCL_HOSTID"] = f"h{rank}"
    telling.begin(names[0])
    try:
        import gradlane.torch as gl
        import places

        with places.entered():
            if one.workers:
                gl.init()
            for name in names:
                telling.begin(name)
                if len(names) > 1 and one.workers:
                    gl.barrier(name)
                begun = time.monotonic()
                getattr(importlib.import_module(CHECKS[name].module), name)()
                telling.tell("END", rank=rank, seconds=time.monotonic() - begun)
            if one.leaves:
                gl.shutdown()
    except BaseException as error:
        telling.failed(f"rank {rank}: {type(error).__name__}: {error}")
        raise
    return 0


@contextlib.contextmanager
def package(installed: bool) -> Iterator[dict[str, str] | None]:
    """What the processes of the checks need to find the package: the wheel beside this file, else what is installed.

    The wheel is put into a temporary folder, so that neither the environment nor another version in it matters. None,
    after saying why, if there is no package.
    """
    wheels = sorted(HERE.glob("gradlane-*.whl"), key=lambda path: path.stat().st_mtime)
    if installed or not wheels:
        found = importlib.util.find_spec("gradlane") is not None
        if not found:
            print(f"The package gradlane is not installed, and its wheel does not lie in {HERE}, where")
            print(f"`make gpu-bundle` puts it for a copy of this folder. Or install the wheel: {INSTALL}")
        yield {} if found else None
        return
    with tempfile.TemporaryDirectory(prefix="gradlane-gpu-package-") as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        pip += ["--disable-pip-version-check", "--target", folder, str(wheels[-1])]
        ended = subprocess.run(pip, capture_output=True, encoding="utf-8")
        if ended.returncode:
            print(f"{ended.stdout}{ended.stderr}\npip does not install {wheels[-1].name}, see above.")
            print(f"Install it into this environment, such as by `{INSTALL}`, and run this again with --installed.")
            yield None
            return
        searched = os.environ.get("PYTHONPATH")
        yield {"PYTHONPATH": os.pathsep.join([folder, searched] if searched else [folder])}


def settings_of(on: str) -> dict[str, str]:
    """What all processes need where PyTorch computes on the CPU, and what makes the engine use the stand-ins."""
    if on == "cuda":
        return {}
    settings = {"OMP_NUM_THREADS": "1"}  # several workers share the cores
    if on == "stand-ins":
        from fakecuda import LIBRARY, NCCL_LIBRARY

        settings |= {"GRADLANE_CUDA_LIB": LIBRARY, "GRADLANE_NCCL_LIB": NCCL_LIBRARY}
        settings["FAKECUDA_DEVICES"] = os.environ.get("FAKECUDA_DEVICES", "2")
    return settings


if __name__ == "__main__":
    sys.exit(main())
