"""The command line of the packages here: `python -m gradlane.compat.NAME script.py [arguments]`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(package: str) -> None:
    """Runs what the command line names, as Python itself would."""
    arguments = sys.argv[1:]
    match arguments:
        case ["-m", module, *_]:
            sys.argv = arguments[1:]
            sys.path.insert(0, "")
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *_] if not script.startswith("-"):
            sys.argv = arguments
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
        case _:
            print(f"usage: python -m {package} (script.py | -m module) [arguments]", file=sys.stderr)
            sys.exit(0 if arguments in (["-h"], ["--help"]) else 2)
