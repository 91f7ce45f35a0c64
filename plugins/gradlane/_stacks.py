"""The stacks of Python's threads, beside each dump of the flight recorder.

If the engine dumps, a thread here tells the stacks. It needs the interpreter lock.

If `dump_dir` is set, SIGUSR1 dumps all members that this process has: its worker, and the coordinator and the servers that it
embeds. A worker that has not joined yet, or that records nothing, has its stacks written alone. The handler is that of
`faulthandler`, which needs no lock: it tells the stack of the main thread also while that is stuck in a function of C that keeps
the interpreter lock. The stacks of the other threads come from the thread here, if it gets the lock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gradlane import _core, _session
from gradlane.errors import Error

_SIGNAL = signal.SIGUSR1


class _Membership(NamedTuple):
    """Of this process in its job."""

    settings: Mapping[str, str] | None = None
    """Those given as arguments; None in no job."""
    session: _core.Session | None = None
    """None until it has joined."""
    embedded: _core.Embedded | None = None


_lock = threading.RLock()
_watched: _core.Stacks | None = None
"""Of the present membership and servers."""
_present = _Membership()
_servers: weakref.WeakSet[_core.Embedded] = weakref.WeakSet()
"""What the program has started by itself."""
_is_registered = False
_former: object = None
"""The handler in Python that was there before ours."""


def started(servers: _core.Embedded) -> None:
    """These servers run in this process from now on."""
    with _lock:
        _servers.add(servers)
        _watch()


def stopped(servers: _core.Embedded) -> None:
    """These servers run no more."""
    with _lock:
        _servers.discard(servers)
        _watch()


def _join(settings: Mapping[str, str], embedded: _core.Embedded | None) -> None:
    """This process is about to join a job."""
    _become(_Membership(settings, None, embedded))


def _follow(session: _core.Session | None) -> None:
    """This process has joined a job with `session`, or has left its job."""
    if session is not None:
        job = _session.current()
        _become(_Membership(job.settings, session, job.embedded))
    elif not _session.is_initialized():
        _become(_Membership())
    # Else the job forms again: the session of before is watched until the next one is there.


def _become(membership: _Membership) -> None:
    global _present
    with _lock:
        _present = membership
        _watch()


def _watch() -> None:
    """Watches the members that this process has now. Those of before are watched until then, so that no signal ends the process."""
    global _watched
    settings, session, embedded = _present
    stacks = None
    try:
        # The signal is not blocked meanwhile: a thread of the engine would get it instead, in which the handler has nothing to tell.
        servers = [*_servers] if embedded is None else [embedded, *_servers]
        stacks = _core.Stacks.of(None if settings is None else dict(settings), session, servers)
        if stacks is not None:
            threading.Thread(target=_answer, args=(stacks,), name="gl-stacks", daemon=True).start()
    except (Error, RuntimeError) as error:
        # A worker whose dumps have no stacks is better than none.
        _core.Stacks.warn(str(error))
        if stacks is not None:
            stacks.close()
        return
    if stacks is None or (signals := stacks.signals) is None:
        _unregister()
    else:
        _register(signals)
    former, _watched = _watched, stacks
    if former is not None:
        former.close()


def _answer(stacks: _core.Stacks) -> None:
    requests = stacks.requests
    while os.read(requests, 1) == b"?":
        # `faulthandler` writes to file descriptors only. This file is in memory.
        with open(os.memfd_create("stacks"), "w+b") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            stacks.answer(file.read())


def _register(signals: int) -> None:
    """From now on the handler writes to the descriptor `signals`."""
    global _is_registered, _former
    if _is_registered and signal.getsignal(_SIGNAL) is not _former:
        # The program has replaced ours.
        _unregister()
    is_first = not _is_registered
    if is_first:
        _former = signal.getsignal(_SIGNAL)
    is_pythons = callable(_former)
    if is_first and not is_pythons and _is_caught():
        # Maybe that of `faulthandler`, which has one file for a signal: a second one would replace it.
        _core.Stacks.warn("another handler is there, which was not set by Python's signal module")
        return
    # A handler of the program runs after ours. Without one, `chain` would end the process, as the signal does by default.
    # Of the thread with the signal only: with all, `faulthandler` reads the frames of threads that run or end meanwhile, and
    # Python 3.11 crashes.
    faulthandler.register(_SIGNAL, file=signals, all_threads=False, chain=is_pythons)
    _is_registered = True


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


def _after_fork_in_child() -> None:
    # The pipes are the parent's: a signal to this process must not write there. The thread exists only in the parent.
    global _lock, _watched, _present
    _lock = threading.RLock()
    _watched, _present = None, _Membership()
    _servers.clear()
    _unregister()


os.register_at_fork(after_in_child=_after_fork_in_child)
_session.whenever_joining(_join)
_session.whenever_joined(_follow)
