"""The `gradlane` command; everything it can do is decided in the native module."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    from gradlane import _core

    # Python's handler would only set a flag that nobody looks at while native code runs, and Ctrl-C would be dead.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # By its own name in the help, not by that of the file which `python -m gradlane` runs.
    return _core.cli_main(["gradlane", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
