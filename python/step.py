"""Runs one long step of the set-up: says what it does, for how long, and how long it takes in all.

python step.py "Building the engine" 300 -- cargo build --release

The output of the command goes to a file in target/logs. If the command fails, its last lines are printed, and the name of the file.
Needs CPython alone, because nothing is installed yet.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

LOGS = Path("target/logs")
LAST_LINES = 40


def main() -> int:
    what, expected, separator, *command = sys.argv[1:]
    if separator != "--" or not command:
        sys.exit(__doc__)
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / (re.sub(r"[^a-z0-9.]+", "-", what.lower()).strip("-.") + ".log")
    is_terminal = sys.stderr.isatty()
    if not is_terminal:
        print(f"{what} (about {duration(float(expected))}) ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                if is_terminal:
                    show(f"{what}: {duration(time.monotonic() - started)} of about {duration(float(expected))}")
                try:
                    process.wait(1.0 if is_terminal else None)
                except subprocess.TimeoutExpired:
                    continue
        except KeyboardInterrupt:
            process.wait()
            return 130
    took = duration(time.monotonic() - started)
    if process.returncode == 0:
        show(f"{what}: done in {took}", is_last=True) if is_terminal else None
        return 0
    show(f"{what}: failed after {took}; the whole output is in {log}", is_last=True)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    print("\n".join(lines), file=sys.stderr)
    return process.returncode if process.returncode > 0 else 128 - process.returncode


def show(line: str, *, is_last: bool = False) -> None:
    """Puts a line in the place of the one before."""
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(start + line, end="\n" if is_last else "", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """As `4:05`, or `12 s`."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02} min" if whole >= 60 else f"{whole} s"


if __name__ == "__main__":
    sys.exit(main())
