"""Runs workers in forks of a process that has imported what they need already: pytest, and PyTorch with its compiler if they use it.

The imports take six to eight seconds of a core with PyTorch, and half a second without. The tests start more than 500 workers,
which would do little else.

`gradlane run` starts this file as its worker, with the arguments of pytest, or with a script or module and its arguments. It is
the stand-in of a fork: it hands over its arguments, environment and output, passes signals on, and ends as the fork ends. If the
stand-in is killed, the fork is killed too.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback

SOCKETS = "WORKER_TEST_SOCKETS"
"""In a stand-in: the folder with a socket of each server."""

SERVERS = 2
"""Workers with even ranks are forks of one server, and those with odd ranks of the other. Strings have other hashes in each, so that a
defect shows if ranks go through a set of strings in different orders."""


def stand_in(arguments: list[str]) -> None:
    """Runs these arguments in a fork, and ends this process as the fork ends."""
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    server = socket.socket(socket.AF_UNIX)
    server.connect(os.path.join(os.environ[SOCKETS], str(int(os.environ.get("GRADLANE_RANK", "0")) % SERVERS)))
    socket.send_fds(server, [b"\0"], [sys.stdout.fileno(), sys.stderr.fileno()])
    server.sendall(json.dumps(request).encode() + b"\n")
    answers = server.makefile()
    fork = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(fork, number))
    status = int(answers.readline())
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def leave(code: int) -> None:
    """Ends this process as `multiprocessing` ends its forks: what is registered for the end runs, but PyTorch is not taken apart.

    That would take half a second of a core. Tests about the end of a process start whole ones.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_program(arguments: list[str]) -> int:
    """Runs `script.py ...` or `-m module ...` as Python itself would, and returns its exit code."""
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, str):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class Server:
    """Forks for each stand-in that connects, until its standard input ends."""

    def __init__(self, socket_path: str, modules: list[str]) -> None:
        """Imports pytest and these modules, listens, and says so by a line of output."""
        self._pytest = importlib.import_module("pytest")
        for module in modules:
            importlib.import_module(module)
        # A collection writes to every object that it looks at, and a fork would copy the pages of all of them.
        gc.collect()
        gc.freeze()
        assert len(os.listdir("/proc/self/task")) == 1, "only the thread that forks would be in a fork"
        self._stand_ins: dict[int, socket.socket] = {}  # by the process that is the fork
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(socket_path)
        self._listener.listen()
        self._events = selectors.DefaultSelector()
        self._events.register(self._listener, selectors.EVENT_READ, self._accept)
        self._events.register(sys.stdin, selectors.EVENT_READ, self._end)
        print("listens", flush=True)

    def serve(self) -> None:
        while True:
            for key, _ in self._events.select():
                key.data()

    def _accept(self) -> None:
        stand_in, _ = self._listener.accept()
        _, output, _, _ = socket.recv_fds(stand_in, 1, 2)
        request = stand_in.makefile().readline()
        if request:
            self._fork(stand_in, output, **json.loads(request))
        for file in output:
            os.close(file)

    def _fork(
        self, stand_in: socket.socket, output: list[int], arguments: list[str], environment: dict[str, str], folder: str
    ) -> None:
        fork = os.fork()
        if fork == 0:
            # What `python -m pytest` does. Files that the fork has from the server stay open, because Python would close them twice.
            os.setpgid(0, 0)
            for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *output]):
                os.dup2(file, number)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            sys.path[0] = folder
            is_program = arguments[0] == "-m" or arguments[0].endswith(".py")
            leave(run_program(arguments) if is_program else self._pytest.main(arguments))
        with contextlib.suppress(OSError):  # the fork does so too, and may have ended
            os.setpgid(fork, fork)
        self._stand_ins[fork] = stand_in
        end = os.pidfd_open(fork)
        self._events.register(end, selectors.EVENT_READ, lambda: self._tell_end(fork, end))
        self._events.register(stand_in, selectors.EVENT_READ, lambda: self._kill(fork))
        stand_in.sendall(f"{fork}\n".encode())

    def _tell_end(self, fork: int, end: int) -> None:
        _, status = os.waitpid(fork, 0)
        self._events.unregister(end)
        os.close(end)
        with self._stand_ins.pop(fork) as stand_in, contextlib.suppress(OSError):
            if stand_in in self._events.get_map():
                self._events.unregister(stand_in)
            stand_in.sendall(f"{status}\n".encode())

    def _kill(self, fork: int) -> None:
        """Kills a fork whose stand-in has gone, with what it started."""
        if fork in self._stand_ins:
            self._events.unregister(self._stand_ins[fork])
            os.killpg(fork, signal.SIGKILL)

    def _end(self) -> None:
        for fork in self._stand_ins:
            os.killpg(fork, signal.SIGKILL)
        leave(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        Server(sys.argv[2], sys.argv[3:]).serve()
    else:
        stand_in(sys.argv[1:])
