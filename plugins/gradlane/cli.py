"""The `gradlane` command; what it can do is decided in the native module, or in the benchmark's program."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

BENCH = Path(__file__).with_name("bin") / "gradlane-bench"
"""The benchmark, a program of its own: this package carries it and does not load it."""


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    if sys.argv[1:2] == ["bench"] and BENCH.exists():
        # Peers run in this interpreter's environment, as if it were activated.
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
        os.execv(BENCH, ["gradlane-bench", *sys.argv[2:]])
    from gradlane import _core

    # Python's handler would only set a flag that nobody looks at while native code runs, and Ctrl-C would be dead.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # By its own name in the help, not by that of the file which `python -m gradlane` runs.
    return _core.cli_main(["gradlane", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
