"""What only a machine with a GPU can show: `make gpu-check`, or `python check.py` where wheel and PyTorch are.

Each check runs in processes of its own, under `gradlane run` where it is about a job, and prints lines: PASS or FAIL
with what was held, FIGURE with what was measured. Where there is no CUDA device this prints `SKIP: no CUDA device`, and
nothing else depends on it. `README.md` beside this file lists which statement each check verifies.

    python check.py                # all of them
    python check.py sums training  # some of them
    python check.py --on cpu       # tries out the checks themselves, on tensors in host memory
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
DEVICE = "GPU_CHECK_DEVICE"
"""In a worker: where its tensors are. Not named GRADLANE_*, where unknown names are warned of."""

CHECK_SECONDS_MAX = 180.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", help="names of checks; all of them if none is given")
    parser.add_argument("--on", choices=["cuda", "cpu"], default="cuda", help="cpu tries out the checks themselves")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("SKIP: no PyTorch, which the tensors of these checks are made by")
        return 0
    import torch

    if arguments.on == "cuda" and not torch.cuda.is_available():
        print("SKIP: no CUDA device")
        return 0
    # What it shares with the tests lies beside it in a bundle, and else with those.
    sys.path[:0] = [str(HERE), str(HERE.parent / "python")]
    from checks import CHECKS

    if arguments.worker:
        CHECKS[arguments.worker].body()
        return 0
    unknown = set(arguments.checks) - CHECKS.keys()
    if unknown:
        parser.error(f"no check is called {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    outcomes = {}
    for name, check in CHECKS.items():
        if name in (arguments.checks or CHECKS) and (arguments.on == "cuda" or check.is_for_host):
            print(f"== {name}: {check.about}", flush=True)
            outcomes[name] = run(name, check, arguments.on)
    failed = [name for name, passed in outcomes.items() if not passed]
    told = f"; failed: {', '.join(failed)}" if failed else ""
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} checks passed{told}")
    return 1 if failed else 0


def run(name: str, check, device: str) -> bool:
    """Runs a check and shows what it prints; whether it passed: it ended well and said so."""
    worker = [sys.executable, str(HERE / "check.py"), "--on", device, "--worker", name]
    command = worker
    if check.workers:
        launch = ["run", "-n", str(check.workers), "-s", str(check.servers), "--"]
        command = [sys.executable, "-m", "gradlane", *launch, *worker]
    if check.under:
        if shutil.which(check.under[0]) is None:
            print(f"SKIP {check.under[0]} is not installed")
            return True
        command = [*check.under, *command]
    with tempfile.TemporaryDirectory(prefix="gradlane-gpu-") as scratch:
        env = os.environ | {DEVICE: device, "GPU_CHECK_SCRATCH": scratch} | check.env
        started = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            output, _ = started.communicate(timeout=CHECK_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            output, _ = started.communicate()
            output += f"\nFAIL {name}: not done within {CHECK_SECONDS_MAX:.0f} s"
    lines = output.splitlines()
    told = [line for line in lines if line.startswith(("PASS", "FAIL", "FIGURE", "SKIP"))]
    passed = started.returncode == 0 and bool(told) and not any(line.startswith("FAIL") for line in told)
    print("\n".join(told))
    if not passed:
        print(f"FAIL {name}: code {started.returncode}; its last lines:\n    " + "\n    ".join(lines[-30:]))
    sys.stdout.flush()
    return passed


if __name__ == "__main__":
    sys.exit(main())
