"""The `gradlane` command: calls the native module, or the program of the benchmark."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

BENCH = Path(__file__).with_name("bin") / "gradlane-bench"
"""The benchmark, a separate program in this package."""


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    if sys.argv[1:2] == ["bench"] and BENCH.exists():
        # Peers use this interpreter's environment, as if it were activated.
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
        os.execv(BENCH, ["gradlane-bench", *sys.argv[2:]])
    from gradlane import _core

    # Python's handler would only set a flag that nobody reads while native code runs, so Ctrl-C would do nothing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The help shows this name, not that of the file that `python -m gradlane` runs.
    return _core.cli_main(["gradlane", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
