"""Forked children of a test, each with a deadline."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import traceback
from collections.abc import Callable

SOON = 30.0
"""Seconds for a child, which has milliseconds of work and may have to share a slow machine."""


def fork(body: Callable[[], None]) -> None:
    """Runs `body` in a forked child; fails if it raises, or does not end in time.

    The standard error of a child that fails is in the message.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(writing, 2)
        try:
            body()
            os._exit(0)
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        os._exit(1)
    os.close(writing)
    with contextlib.closing(os.fdopen(reading, "rb")) as output:
        end = os.pidfd_open(child)
        try:
            selector = selectors.DefaultSelector()
            selector.register(end, selectors.EVENT_READ)
            if not selector.select(SOON):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise AssertionError(f"the child did not end within {SOON} s")
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        finally:
            os.close(end)
        text = output.read().decode(errors="replace")
    assert status == 0, f"the child ended with {status}:\n{text}"


def told_by_a_child(attempt: Callable[[], object]) -> str:
    """The class and the text of the error of `attempt` in a forked child; says so if it has none."""
    reading, writing = os.pipe()

    def tell() -> None:
        try:
            told = f"no error, but {attempt()}"
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writing, told.encode())

    with contextlib.closing(os.fdopen(reading)) as told:
        try:
            fork(tell)
        finally:
            os.close(writing)
        return told.read()


def refused(call: Callable[[], object]) -> None:
    """Checks that a call is refused in this child."""
    try:
        call()
    except Exception as error:
        if "ForkedProcessError" in f"{type(error).__name__}: {error}":
            return
        raise
    raise AssertionError("the call was not refused")
