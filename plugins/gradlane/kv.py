"""Keys and values on servers, as workers of ps-lite use them.

    import gradlane
    import numpy as np

    gradlane.init()
    kv = gradlane.KVWorker()
    kv.wait(kv.push([1, 3, 5], np.ones(6, np.float32)))      # two elements for each key
    values = np.empty(6, np.float32)
    kv.wait(kv.pull([1, 3, 5], values))

A script that all roles of a job run, as those of ps-lite are, starts its servers with `KVServer`:

    if os.environ["DMLC_ROLE"] == "server":
        gradlane.KVServer().run()

A key is an integer from 0 to 2**64 - 1, and its value a vector. A push adds to the values, and a new key begins at zero: that
is ps-lite's default handle of a server. Each key is a parameter (`gradlane.parameters`) with the name `kv/APP/KEY`, so all
that holds of parameters holds of keys. A job has at most 65,536 names, and a key is one of them. What a push does otherwise
is decided by a server of your own, in Rust: `gradlane_server::Handle`, as in `examples/kv_server`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import operator
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from gradlane import _buffers, _core, _session, parameters
from gradlane._arguments import check_priority, check_timeout
from gradlane._buffers import ITEM_BYTES, Buffer, HostBuffer
from gradlane._handle import Handle, begin_all, joined
from gradlane._operations import check_out
from gradlane._overlaps import check_apart, uses_of
from gradlane.errors import Error, FailedPreconditionError, InvalidArgumentError, MismatchError
from gradlane.parameters import Version

__all__ = ["KVServer", "KVWorker"]

KEY_MAX = 2**64 - 1
OPEN_MAX = 1024
"""Requests under way of one `KVWorker`; a further one waits for the oldest."""
FAILED_MAX = 1024
"""Requests that have failed and whose errors are kept."""


class KVWorker:
    """A worker's side of keys and values on the servers of a job.

    `push`, `pull` and `push_pull` return at once, with a *timestamp*: 0, 1, 2 and so on. `wait(timestamp)` waits for that
    request. Until then do not use or resize the tensor for what is read. What is pushed is copied first, so it may be changed
    at once; on a device it is not, and must be left alone as well. Requests of one worker for one key are made in the order
    of the calls, so a pull sees the pushes before it; requests of other workers come between them.

    A request need not be waited for. Only those that are under way, 1,024 at most, and the errors of the last 1,024 that
    failed are kept, so any number of requests takes bounded memory.

    Threads may share it. If a request fails, some of its keys may have been changed. After `gradlane.shutdown()`, requests
    that had not ended have failed. In the next job of this process all keys are new, and timestamps go on.
    """

    def __init__(self, app: int = 0, *, timeout: float | None = None) -> None:
        """Makes one; other workers meet it by the same `app`.

        Args:
            app: the keys of each app are their own; from 0.
            timeout: seconds for each request; None takes the job's step timeout, which is also the upper bound.
        Raises:
            InvalidArgumentError: an argument is not what it should be.
        """
        self.app, self._timeout = _integer("app", app, 0, KEY_MAX), timeout
        check_timeout(timeout)
        self._lock = threading.Lock()
        self._next = 0
        self._open: dict[int, _Request] = {}
        self._failed: dict[int, Error] = {}
        self._forgotten = -1
        """The last timestamp whose error is not kept any more; those before it may have failed too."""
        self._known: dict[int, tuple[str, int]] = {}
        """By key: the element type and length of its value."""
        self._generation = _session.generation()

    def push(self, keys: Iterable[int], values: Any, lens: Iterable[int] | None = None, *, priority: int = 0) -> int:
        """Add to the values of keys.

        Args:
            keys: in ascending order, each once.
            values: a flat tensor with the values of all keys, one behind the other; of any kind and type that
                `gradlane.parameters` takes. It is only read.
            lens: how many elements each key has; None if all have equally many. The first use of a key fixes its length and
                type, on all workers.
            priority: higher goes first; only the order matters.
        Returns:
            A timestamp, for `wait`.
        Raises:
            InvalidArgumentError: an argument is not what it should be; it is named.
            MismatchError: this worker has used a key with another length or type. Of a use by another one, `wait` tells.
            NotInitializedError: this process takes part in no job.
            ForkedProcessError: its parent does.
        """
        source = _copied(parameters.located_argument("values", values, writable=False))
        return self._begin("push_add", keys, ("values", source), None, lens, priority)

    def pull(self, keys: Iterable[int], out: Any, lens: Iterable[int] | None = None, *, priority: int = 0) -> int:
        """Read the values of keys into `out`, a flat and writable tensor. A key that nobody has pushed yet is zero.

        The other arguments, what it returns and what it raises are as for `push`.
        """
        target = parameters.located_argument("out", out, writable=True)
        return self._begin("pull", keys, ("out", target), target, lens, priority)

    def push_pull(
        self, keys: Iterable[int], values: Any, out: Any = None, lens: Iterable[int] | None = None, *, priority: int = 0
    ) -> int:
        """Add to the values of keys, and read what this has made, in one exchange for each key.

        Without `out`, what was read takes the place of `values`. The other arguments, what it returns and what it raises are as
        for `push`.
        """
        source = parameters.located_argument("values", values, writable=out is None)
        if out is None:
            return self._begin("push_pull_add", keys, ("values", source), None, lens, priority)
        target = parameters.located_argument("out", out, writable=True)
        check_out(source, target, "values")
        check_apart("push_pull", uses_of(source, "values", target, "out"))
        return self._begin("push_pull_add", keys, ("values", _copied(source)), target, lens, priority)

    def wait(self, timestamp: int, timeout: float | None = None) -> None:
        """Wait until a request has ended. Repeating it does nothing, or raises the same error again.

        Args:
            timestamp: what `push`, `pull` or `push_pull` of this `KVWorker` has returned.
            timeout: seconds from 0 on; None waits until the request ends, which the job's step timeout bounds.
        Raises:
            InvalidArgumentError: no request of this `KVWorker` has that timestamp.
            StillRunningError: it has not ended within `timeout`; it goes on. It is a TimeoutError.
            MismatchError: a worker has used one of the keys with another length or type (both are named). Nobody can use that key
                from then on.
            FailedPreconditionError: the job has no server, or the request is so old that its error is not kept any more, if it
                had one.
            Error: the request failed in another way.
            ForkedProcessError: this process was forked from a worker.
        """
        _session.refuse_in_fork()
        check_timeout(timeout)
        number = _integer("timestamp", timestamp, 0, KEY_MAX)
        if number >= self._next:
            given = f"it has returned 0 to {self._next - 1}" if self._next else "it has returned none yet"
            raise InvalidArgumentError(f"timestamp={number} is not of this KVWorker; {given}")
        request = self._open.get(number)
        error = self._failed.get(number) if request is None else self._settle(number, request, timeout)
        if error is not None:
            raise error
        if request is None and number <= self._forgotten:
            raise FailedPreconditionError(
                f"the request with timestamp {number} may have failed, but the errors up to {self._forgotten} are not kept any "
                f"more; wait for a request before {FAILED_MAX} others have failed"
            )

    def _begin(
        self,
        access: str,
        keys: Iterable[int],
        named: tuple[str, Buffer],
        target: Buffer | None,
        lens: Iterable[int] | None,
        priority: int,
    ) -> int:
        _session.refuse_in_fork()  # before the lock, which a thread of the parent may have held
        argument, source = named
        if len(source.shape) != 1:
            raise InvalidArgumentError(f"{argument}: its shape {list(source.shape)} is not flat; give it with one dimension")
        listed = _keys(keys)
        lengths = _lengths(lens, len(listed), argument, source.len)
        urgency = check_priority(priority)
        self._make_room()
        with self._lock:
            new = self._new_among(listed, lengths, source.dtype)
            starts = [*self._first_values(new), *self._uses(access, listed, lengths, source, target, urgency)]
            handle = joined(begin_all(starts))
            number, self._next = self._next, self._next + 1
            self._open[number] = _Request(handle, listed)
            self._known |= new
        return number

    def _uses(
        self, access: str, keys: list[int], lengths: list[int], source: Buffer, target: Buffer | None, priority: int
    ) -> Iterable[partial[Handle[Version]]]:
        begins = itertools.accumulate(lengths, initial=0)
        for key, begin, length in zip(keys, begins, lengths, strict=False):
            read, written = _part(source, begin, length), None if target is None else _part(target, begin, length)
            yield partial(parameters.begin_at, access, self._name(key), read, written, priority, self._timeout)

    def _first_values(self, new: dict[int, tuple[str, int]]) -> Iterable[partial[Handle[Version]]]:
        """The zeros with which keys begin, unless they have values."""
        for key, (dtype, length) in new.items():
            room = _buffers.locate(bytearray(length * ITEM_BYTES[dtype]), writable=True)
            zeros = HostBuffer(room.address, dtype, (length,), room.owner)
            yield partial(parameters.begin_at, "init", self._name(key), zeros, None, 0, self._timeout)

    def _new_among(self, keys: list[int], lengths: list[int], dtype: str) -> dict[int, tuple[str, int]]:
        """The keys that this worker has not used yet in its present job, with type and length."""
        if self._generation != _session.generation():
            self._generation = _session.generation()
            self._known.clear()
        new = {}
        for key, length in zip(keys, lengths, strict=True):
            known = self._known.get(key)
            if known is None:
                new[key] = (dtype, length)
            elif known != (dtype, length):
                before, now = (f"{one} [{count}]" for one, count in (known, (dtype, length)))
                rank = _session.rank()
                raise MismatchError(
                    f"key {key} is {now} here, and this worker has used it as {before}; give each key its own type and length",
                    tensor=self._name(key),
                    field="dtype" if known[0] != dtype else "shape",
                    first=(rank, before),
                    second=(rank, now),
                )
        return new

    def _make_room(self) -> None:
        """Forgets requests that have ended, the oldest first, and waits for the oldest if too many are under way."""
        while True:
            with self._lock:
                oldest, is_full = next(iter(self._open.items()), None), len(self._open) >= OPEN_MAX
            if oldest is None or not (is_full or oldest[1].handle.poll()):
                return
            self._settle(*oldest, None)

    def _settle(self, number: int, request: _Request, timeout: float | None) -> Error | None:
        """Waits for the end of a request. Returns its error, which is kept.

        Raises:
            StillRunningError: it has not ended within `timeout`.
        """
        failed = None
        try:
            request.handle.wait(timeout)
        except Error as error:
            if not request.handle.poll():
                raise
            failed = error
        with self._lock:
            if number in self._open:
                if failed is not None:
                    self._keep(number, request, failed)
                del self._open[number]  # last, because `wait` looks at it first, and takes no lock
        return failed

    def _keep(self, number: int, request: _Request, error: Error) -> None:
        self._failed[number] = error
        # The next use gives them their first value once more, which does nothing to one that has a value.
        for key in request.keys:
            self._known.pop(key, None)
        if len(self._failed) > FAILED_MAX:
            oldest = next(iter(self._failed))
            self._forgotten = max(self._forgotten, oldest)
            del self._failed[oldest]

    def _name(self, key: int) -> str:
        return f"kv/{self.app}/{key}"


class KVServer:
    """A server of a job in this process, for scripts that all roles of the job run.

    It is the same as the command `gradlane server`: the job is found by the same variables, such as `DMLC_ROLE=server`,
    `DMLC_PS_ROOT_URI` and `DMLC_PS_ROOT_PORT`, and pushes are added, as ps-lite's `KVServerDefaultHandle` does. A handle of
    your own is written in Rust: see `examples/kv_server`.
    """

    def __init__(self, *, config: Mapping[str, object] | None = None) -> None:
        """Describes the server; nothing runs yet.

        Args:
            config: settings by name, besides those of the environment.
        """
        self._settings = {name: str(value) for name, value in (config or {}).items()}

    def run(self) -> None:
        """Serve until the job ends.

        Call it in the main thread. SIGTERM ends the server, and then this raises SystemExit with 143, with which the command
        would end; after Ctrl-C it raises KeyboardInterrupt.

        Raises:
            FailedPreconditionError: this process is a worker, or its environment names another role than a server.
            ConfigError: a setting is wrong.
            UnavailableError: the coordinator was not reached.
            NotFormedError: the job did not form in time.
            Error: the job failed.
            SystemExit: a signal ended the server, or the job failed and its launcher tells why.
        """
        _session.refuse_in_fork()
        if _session.is_initialized():
            raise FailedPreconditionError("this process is a worker, because it has called init(); run a server in another one")
        for variable in ("GRADLANE_ROLE", "DMLC_ROLE"):
            if (role := os.environ.get(variable) or "server") != "server":
                raise FailedPreconditionError(f"{variable} is {role}; call KVServer().run() only where it is server")
        before = signal.getsignal(signal.SIGTERM)
        try:
            code = _core.serve(self._settings)
        finally:
            # The server leaves a handler behind that ignores the signal. A handler that is not Python's cannot be put back.
            if before is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)
        if code:
            raise SystemExit(code)


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """A request under way."""

    handle: Handle[list[Version]]
    keys: list[int]


def _keys(keys: Iterable[int]) -> list[int]:
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidArgumentError(f"keys={keys!r}; give a list of integers")
    listed = [_integer(f"keys[{place}]", key, 0, KEY_MAX) for place, key in enumerate(keys)]
    if not listed:
        raise InvalidArgumentError("keys is empty; give at least one key")
    for place, (before, key) in enumerate(itertools.pairwise(listed), 1):
        if key == before:
            raise InvalidArgumentError(f"keys[{place}]={key} comes twice; give each key once, with the sum of its values")
        if key < before:
            raise InvalidArgumentError(f"keys[{place}]={key} comes after {before}; sort the keys, and their values with them")
    return listed


def _lengths(lens: Iterable[int] | None, keys: int, argument: str, elements: int) -> list[int]:
    """How many elements each key has."""
    if lens is None:
        if elements % keys:
            raise InvalidArgumentError(f"{argument} has {elements} elements, which {keys} keys cannot share equally; give lens=")
        return [elements // keys] * keys
    if not isinstance(lens, Iterable):
        raise InvalidArgumentError(f"lens={lens!r}; give a list with the number of elements of each key")
    listed = [_integer(f"lens[{place}]", length, 1, KEY_MAX) for place, length in enumerate(lens)]
    if len(listed) != keys:
        raise InvalidArgumentError(f"lens has {len(listed)} entries for {keys} keys; give one for each key")
    if sum(listed) != elements:
        raise InvalidArgumentError(f"lens sum up to {sum(listed)}, and {argument} has {elements} elements; make them equal")
    return listed


def _integer(argument: str, value: object, least: int, most: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidArgumentError(f"{argument}={value!r}; give an integer") from error
    if not least <= number <= most:
        raise InvalidArgumentError(f"{argument}={number} is out of range; give {least} to {most}")
    return number


def _copied(source: Buffer) -> Buffer:
    """A copy of host memory. The engine takes no memory twice, and a user may push a tensor again before the first push ends."""
    if source.device is not None:
        return source
    room = _buffers.locate(bytearray(source.bytes), writable=True)
    ctypes.memmove(room.address, source.address, source.bytes)
    return HostBuffer(room.address, source.dtype, source.shape, room.owner)


def _part(whole: Buffer, begin: int, length: int) -> Buffer:
    """The memory of the elements of one key."""
    address = whole.address + begin * ITEM_BYTES[whole.dtype]
    return dataclasses.replace(whole, address=address, shape=(length,))
