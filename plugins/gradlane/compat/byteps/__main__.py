"""`python -m gradlane.compat.byteps script.py [arguments]` runs a BytePS script; `-m module` a module."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import gradlane.compat.byteps as _  # noqa: F401  so that `import byteps` works

_USAGE = "usage: python -m gradlane.compat.byteps (script.py | -m module) [arguments]"


def main() -> None:
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
            print(_USAGE, file=sys.stderr)
            sys.exit(0 if arguments in (["-h"], ["--help"]) else 2)


main()
