"""Notices that the process ends with an error, so that the other workers are told why.

An uncaught exception comes through `sys.excepthook`. `sys.exit` raises an exception that notices when the interpreter
asks for its status in order to end the process. `raise SystemExit(3)` cannot be noticed: the interpreter keeps its
status from the functions of `atexit`. The launcher sees that status.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NoReturn

_TEXT_MAX = 1000
"""The most characters of an exception's text that are sent."""

_report: Callable[[str], None] | None = None
"""What to call with the cause; None while nobody watches."""

_excepthook, _exit = sys.excepthook, sys.exit
"""The functions before this module replaced them."""


_translations: list[Callable[[BaseException], BaseException | None]] = []


def translate(translation: Callable[[BaseException], BaseException | None]) -> None:
    """From now on an uncaught exception is printed and reported as the one that `translation` makes of it, if it makes one."""
    _translations.append(translation)


def watch(report: Callable[[str], None]) -> None:
    """From now on calls `report` with the cause in words when the process ends with an error, at most once.

    In an interactive interpreter an exception ends nothing, so there `report` is called only for `sys.exit`.
    """
    global _report, _excepthook, _exit
    _report = report
    if sys.excepthook is not _on_exception:
        _excepthook, sys.excepthook = sys.excepthook, _on_exception
    if sys.exit is not _on_exit:
        _exit, sys.exit = sys.exit, _on_exit


def ignore() -> None:
    """Ends `watch`."""
    global _report
    _report = None
    # Where somebody has wrapped the function meanwhile, ours stays below and only passes the call on.
    if sys.excepthook is _on_exception:
        sys.excepthook = _excepthook
    if sys.exit is _on_exit:
        sys.exit = _exit


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    ours = next((found for translation in _translations if (found := translation(error)) is not None), None)
    if ours is not None:
        kind, error = type(ours), ours.with_traceback(trace)
    _excepthook(kind, error, trace)
    if _is_the_end(trace):
        text = "".join(traceback.format_exception_only(error)).strip()
        _tell(f"uncaught {text[:_TEXT_MAX]}")


def _on_exit(status: object = None, /) -> NoReturn:
    raise _Exit(status)


class _Exit(SystemExit):
    """Tells the cause if the interpreter, and no Python code, reads the status."""

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name == "code" and value not in (None, 0) and sys._getframe().f_back is None:
            _tell(f"exited with status {value}" if isinstance(value, int) else f"exited: {str(value)[:_TEXT_MAX]}")
        return value


def _is_the_end(trace: TracebackType | None) -> bool:
    """Whether this exception ends the process. It does not if a program calls `sys.excepthook` to print it."""
    if hasattr(sys, "ps1") or sys.flags.interactive or threading.current_thread() is not threading.main_thread():
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if trace is not None and frame is trace.tb_frame:
            return False
        frame = frame.f_back
    return True


def _tell(cause: str) -> None:
    global _report
    report, _report = _report, None
    if report is not None:
        report(cause)
