"""Runs something in a forked child."""

from __future__ import annotations

import os
import signal

SECONDS = 10
"""How long a child may take."""


def told_by_a_child(attempt):
    """The class and the text of the error of `attempt` in a forked child; says so if it has none, or hangs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            told = f"no error, but {attempt()}"
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        return told.read() or f"nothing within {SECONDS} s"
