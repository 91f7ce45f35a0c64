"""The stacks of Python's threads, beside each dump of the flight recorder.

If the engine dumps, a thread here tells the stacks. It needs the interpreter lock.

If `dump_dir` is set, SIGUSR1 dumps too. Its handler is that of `faulthandler`, which needs no lock: it tells the stack of the
main thread also while that is stuck in a function of C that keeps the interpreter lock. The stacks of the other threads come
from the thread here, if it gets the lock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from gradlane import _core, _session
from gradlane.errors import Error

_SIGNAL = signal.SIGUSR1

_watched: _core.Stacks | None = None
"""Of the present session."""
_is_registered = False
_former: object = None
"""The handler in Python that was there before ours."""


def _follow(session: _core.Session | None) -> None:
    """This process has joined a job with `session`, or has left its job."""
    global _watched
    _end()
    if session is None:
        return
    try:
        with _without_signal():
            # Threads begin with the mask of their maker: the one that reads what the handler writes must not run the handler.
            _watched = _core.Stacks.of(session)
        if _watched is None:
            return
        threading.Thread(target=_answer, args=(_watched,), name="gl-stacks", daemon=True).start()
    except (Error, RuntimeError) as error:
        # A worker whose dumps have no stacks is better than none.
        _core.Stacks.warn(str(error))
        return
    if (signals := _watched.signals) is not None:
        _register(signals)


def _answer(stacks: _core.Stacks) -> None:
    requests = stacks.requests
    while os.read(requests, 1) == b"?":
        # `faulthandler` writes to file descriptors only. This file is in memory.
        with open(os.memfd_create("stacks"), "w+b") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            stacks.answer(file.read())


def _register(signals: int) -> None:
    global _is_registered, _former
    _former = signal.getsignal(_SIGNAL)
    is_pythons = callable(_former)
    if not is_pythons and _is_caught():
        # Maybe that of `faulthandler`, which has one file for a signal: a second one would replace it.
        _core.Stacks.warn("another handler is there, which was not set by Python's signal module")
        return
    # A handler of the program runs after ours. Without one, `chain` would end the process, as the signal does by default.
    # Of the thread with the signal only: with all, `faulthandler` reads the frames of threads that run or end meanwhile, and
    # Python 3.11 crashes.
    faulthandler.register(_SIGNAL, file=signals, all_threads=False, chain=is_pythons)
    _is_registered = True


def _end() -> None:
    global _watched
    stacks, _watched = _watched, None
    _unregister()
    if stacks is not None:
        stacks.close()


def _unregister() -> None:
    """Puts back the handler that was there before, unless the program has set another one meanwhile."""
    global _is_registered, _former
    if not _is_registered:
        return
    newer, former = signal.getsignal(_SIGNAL), _former
    _is_registered, _former = False, None
    faulthandler.unregister(_SIGNAL)
    if newer is not former:
        # Only the main thread may set one. Elsewhere the program has to set its handler again.
        with contextlib.suppress(ValueError):
            signal.signal(_SIGNAL, newer)


def _is_caught() -> bool:
    """Whether the signal has any handler in this process."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (_SIGNAL - 1) & 1)


@contextlib.contextmanager
def _without_signal() -> Iterator[None]:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {_SIGNAL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    # The pipes are the parent's: a signal to this process must not write there. The thread exists only in the parent.
    global _watched
    _watched = None
    _unregister()


os.register_at_fork(after_in_child=_after_fork_in_child)
_session.whenever_joined(_follow)
