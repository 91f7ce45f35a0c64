"""`python -m gradlane.timeline merge`: merges timelines, and prints how well their clocks agree."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gradlane.errors import Error
from gradlane.timeline import Merged, merge

VIOLATIONS_SHOWN = 10


def main() -> int:
    """Runs the command line, and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m gradlane.timeline", description="Works with timelines of gradlane.")
    command = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "merge", help="put timelines of several members, and of PyTorch's profiler, on one clock"
    )
    command.add_argument("files", nargs="+", type=Path, metavar="FILE")
    command.add_argument("--out", type=Path, metavar="FILE.json", help="one file for Perfetto or chrome://tracing")
    command.add_argument("--perfetto", type=Path, metavar="FILE.tar", help="a tar for Perfetto of version 58 or later")
    options = parser.parse_args()
    if options.out is None and options.perfetto is None:
        parser.error("give --out, --perfetto, or both")
    try:
        merged = merge(*options.files, out=options.out, perfetto=options.perfetto)
    except (Error, OSError) as error:
        print(f"error: {_printable(str(error))}", file=sys.stderr)
        return 1
    print(describe(merged))
    return 0


def describe(merged: Merged) -> str:
    """How good the picture is, in words."""
    if merged.error is None:
        lines = [f"{len(merged.by_wall_clock)} files could only be placed by the wall clocks of their hosts:"]
        lines += [f"  {path}" for path in merged.by_wall_clock]
    else:
        lines = [f"times are within {_time(merged.error)} of the coordinator's clock"]
    for pair in merged.pairs:
        clocks = "by wall clocks" if pair.error is None else f"clocks within {_time(pair.error)} of each other"
        found = f"{pair.violations} of {pair.orders} orders of events cannot have been"
        worst = f", the worst by {_time(pair.worst)}" if pair.violations else ""
        lines.append(f"workers on {pair.worker} and servers on {pair.server}, {clocks}: {found}{worst}")
    lines += [f"  {_time(one.seconds)}: {one.what}" for one in merged.violations[:VIOLATIONS_SHOWN]]
    return "\n".join(map(_printable, lines))


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _printable(text: str) -> str:
    """Names in files come from anywhere: without what a terminal would obey."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


if __name__ == "__main__":
    sys.exit(main())
