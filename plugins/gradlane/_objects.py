"""Gathers and broadcasts data of variable length: bytes and Python objects.

A name fixes a shape, so every new length would leave a name behind. Therefore bytes travel in blocks, whose sizes are
the powers of two from 256 bytes to 64 MiB. `NAME.lengths` carries one int64 for each rank (a sum of vectors that are
zero except at the own rank). Then the blocks of each rank are broadcast under names `NAME.RANK.SIZE`, all at once. The
last block may be longer than what is left for it: by a twentieth of all bytes, or by 255 bytes where that is more. So
there are two or three blocks as a rule and five at most, apart from those of 64 MiB. A rank leaves at most 19 such
names, and some seven where its lengths stay within a factor of four. Fewer sizes were slower: several blocks would have
one name, and rounds of one name follow each other.

Objects are pickled, and unpickling runs code that the sender chose. The bytes pass through servers, which must not be
able to choose. So before pickled bytes stands their HMAC-SHA256 under a key that only the coordinator and the workers
of the job have, and nothing is unpickled whose MAC is wrong. The MAC also covers the operation, its name and the
sender's rank. It does not tell an earlier object of the same name and sender from the present one. With `plain=` only
plain values are sent (`gradlane._plain`), and nothing that is received can run code, not even code of a worker.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import pickle
from array import array
from functools import partial
from typing import Any

from gradlane import _buffers, _plain, _session
from gradlane._handle import Handle, begin_all, joined
from gradlane._operations import check_name, check_root, submit
from gradlane._reduction import Reduction, broadcast_of
from gradlane._sets import ProcessSet, name_in_job, places_of
from gradlane.errors import AuthError, InvalidArgumentError, RootLostError

_BLOCK_BYTES = tuple(256 << shift for shift in range(18, -1, -1))
"""The sizes of blocks, the largest first."""
_PADDING_SHARE = 20
"""One of so many bytes may be padding, and any number of bytes below the smallest block."""
_MAC_BYTES = 32


class Gathering:
    """Gathers one contribution of bytes from each worker that takes part: first the lengths, then the bytes.

    A worker sends its own bytes once and receives those of all: so sending costs what the own contribution costs, and
    receiving grows with the workers. To both come a twentieth at most, or 255 bytes for each rank, and 8 bytes for each
    rank of lengths. Where servers add, they send each worker its own bytes, too.

    Several may be started before the first is finished. They then take one round trip for all lengths and one for all
    bytes.
    """

    def __init__(
        self,
        payload: bytes | bytearray | memoryview | Exception,
        name: str,
        *,
        process_set: ProcessSet | None = None,
        timeout: float | None = None,
    ) -> None:
        """Announces the length of `payload`, or that this worker has none and why."""
        self._failure = payload if isinstance(payload, Exception) else None
        content = _in_words(payload) if isinstance(payload, Exception) else payload
        self._payload, self._name, self._set, self._timeout = content, name, process_set, timeout
        self._places = places_of(process_set)
        self._lengths = array("q", bytes(8 * len(self._places)))
        own = _session.rank() if process_set is None else process_set.rank()
        # One more than the length, so that it is not that of a worker that was lost.
        self._lengths[own] = len(content) + 1 if self._failure is None else -len(content) - 1
        place = _buffers.locate(self._lengths, writable=True)
        lengths = Reduction("sum", process_set=process_set, timeout=timeout)
        self._announced = submit(f"{name}.lengths", place, place, lengths, result=None)
        self._transfers: dict[int, Handle[memoryview]] = {}

    def exchange(self) -> None:
        """Waits for the lengths and starts the transfers. Only of a worker that was lost there is no length."""
        self._announced.wait()
        roots = [(root, abs(length) - 1) for root, length in zip(self._places, self._lengths, strict=True) if length]
        handles = begin_all(partial(self._transfer, *root) for root in roots)
        self._transfers = {root: handle for (root, _), handle in zip(roots, handles, strict=True)}

    def received(self) -> dict[int, memoryview]:
        """Waits for the transfers. Returns the bytes by rank, in rank order; the memory belongs to the caller.

        A worker that was lost before all had its bytes has none. All workers agree on that.
        """
        received = {}
        for root, handle in self._transfers.items():
            with contextlib.suppress(RootLostError):
                received[root] = handle.wait()
        return received

    def finish(self) -> dict[int, memoryview]:
        """Does both.

        Raises:
            Exception: on a worker that gave an exception, that exception.
            InvalidArgumentError: another worker gave one; the message has its text.
        """
        self.exchange()
        gathered = self.received()
        if self._failure is not None:
            raise self._failure
        for root, length in zip(self._places, self._lengths, strict=True):
            if length < 0 and root in gathered:
                told = _told(gathered[root])
                raise InvalidArgumentError(f"{self._name}: worker {root} could not send its part: {told}")
        return gathered

    def _transfer(self, root: int, length: int) -> Handle[memoryview]:
        payload = self._payload if root == _session.rank() else None
        reduction = broadcast_of(root, process_set=self._set, timeout=self._timeout)
        return _transfer(payload, length, f"{self._name}.{root}", reduction)


def allgather(
    value: Any,
    name: str = "allgather",
    *,
    plain: bool = False,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Give every worker the values of all, in rank order. A worker that was lost has none.

    Args:
        value: bytes, NumPy array or any object that pickles; kinds and sizes may differ between workers.
        name: equal on all workers.
        plain: as for `broadcast_object`.
        process_set: the workers that take part, of which this one is a member; all by default.
        timeout: seconds; None takes the job's step timeout.
    Raises:
        InvalidArgumentError: a worker's value does not pickle, or is not plain; it is named. On that worker the error is
            that of pickle.
        AuthError: what was received was not sent by a worker of this job.
    """
    return list(gather_by_rank(value, name, plain=plain, process_set=process_set, timeout=timeout).values())


def gather_by_rank(
    value: Any, name: str, *, plain: bool = False, process_set: ProcessSet | None = None, timeout: float | None = None
) -> dict[int, Any]:
    """As `allgather`: the values by rank."""
    about = name_in_job(check_name(name), process_set)
    payload: bytes | Exception
    try:
        payload = _dumps(value, plain, "allgather", about, _session.rank())
    except Exception as error:
        payload = error
    blobs = Gathering(payload, name, process_set=process_set, timeout=timeout).finish()
    return {rank: _loads(blob, plain, "allgather", about, rank) for rank, blob in blobs.items()}


def broadcast_object(
    value: Any,
    root_rank: int = 0,
    name: str = "object",
    *,
    plain: bool = False,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Give every worker the object of `root_rank`.

    Args:
        value: any object that pickles; used on `root_rank` only.
        root_rank: the rank with the object.
        name: equal on all workers.
        plain: send only None, booleans, numbers, texts, bytes, and lists, tuples and dictionaries of them. Then nothing
            that is received can run code, as an unpickled object can. Equal on all workers.
        process_set: the workers that take part, with the root and this one among them; all by default.
        timeout: seconds; None takes the job's step timeout.
    Returns:
        On `root_rank` `value` itself, elsewhere a copy. A worker that has come to an elastic job that trains already gets its
        own `value` back: what the others have now comes with the state of `gradlane.elastic`.
    Raises:
        InvalidArgumentError: `plain` is set, and there is something else in `value`; the message says where. On the other
            workers also if `value` does not pickle; on `root_rank` the error is that of pickle then.
        ProtocolError: `plain` is set, and something else was received.
        AuthError: what was received was not sent by the worker of `root_rank`.
    """
    is_root = _session.rank() == check_root(root_rank, process_set)
    about = name_in_job(check_name(name), process_set)
    if _session.passes_over(name, is_broadcast=True):
        return value
    payload: bytes | Exception | None = None
    if is_root:
        try:
            payload = _dumps(value, plain, "broadcast_object", about, root_rank)
        except Exception as error:
            payload = error
    received = broadcast_bytes(payload, root_rank, name, process_set=process_set, timeout=timeout)
    return value if is_root else _loads(received, plain, "broadcast_object", about, root_rank)


def broadcast_bytes(
    payload: bytes | Exception | None,
    root_rank: int,
    name: str,
    *,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> memoryview:
    """Gives every worker the bytes that only `root_rank` gives.

    Args:
        payload: on `root_rank` the bytes, or why there are none; None on the others.
        root_rank: the rank with the bytes.
        name: equal on all workers.
        process_set: the workers that take part, with the root and this one among them; all by default.
        timeout: seconds; None takes the job's step timeout.
    Raises:
        Exception: on `root_rank`, that which was given for the bytes.
        InvalidArgumentError: on the others, with its text.
    """
    failure = payload if isinstance(payload, Exception) else None
    if failure is not None:
        payload = _in_words(failure)
    assert not isinstance(payload, Exception)
    length = array("q", [0 if payload is None else len(payload)])
    if failure is not None:
        length[0] = -length[0]
    place = _buffers.locate(length, writable=True)
    reduction = broadcast_of(root_rank, process_set=process_set, timeout=timeout)
    submit(f"{name}.length", place, place, reduction, result=None).wait()
    received = _transfer(payload, abs(length[0]), f"{name}.{root_rank}", reduction).wait()
    if failure is not None:
        raise failure
    if length[0] < 0:
        text = _told(received)
        raise InvalidArgumentError(f"{name}: worker {root_rank} could not send what it was to broadcast: {text}")
    return received


def _in_words(failure: Exception) -> bytes:
    """What other workers are told of a failure."""
    return f"{type(failure).__name__}: {failure}".encode(errors="replace")


def _told(text: memoryview) -> str:
    return bytes(text).decode(errors="replace")


def _dumps(value: Any, plain: bool, operation: str, name: str, sender: int) -> bytes:
    if plain:
        return _plain.encode(value)
    pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return _mac(pickled, operation, name, sender) + pickled


def _loads(data: memoryview, plain: bool, operation: str, name: str, sender: int) -> Any:
    if plain:
        return _plain.decode(data)
    mac, pickled = bytes(data[:_MAC_BYTES]), data[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(pickled, operation, name, sender)):
        raise AuthError(
            f"{operation} {name!r}: the bytes that came for rank {sender} were not sent by that worker of this job; "
            "look at the servers of the job, and give `plain` and `name` alike on all workers"
        )
    return pickle.loads(pickled)


def _mac(pickled: bytes | memoryview, operation: str, name: str, sender: int) -> bytes:
    # Neither an operation nor a number contains a zero byte, and the name's length tells where it ends.
    named = name.encode(errors="surrogatepass")
    about = b"%s\0%d\0%d\0%s" % (operation.encode(), sender, len(named), named)
    mac = hmac.new(_session.session().workers_key, about, "sha256")
    mac.update(pickled)
    return mac.digest()


def _transfer(
    payload: bytes | bytearray | memoryview | None, length: int, name: str, reduction: Reduction
) -> Handle[memoryview]:
    """Broadcasts `length` bytes; `payload` is given on the root alone."""
    if length == 0:
        return Handle(None, lambda: memoryview(bytearray()))
    sizes = blocks(length)
    room = memoryview(bytearray(sum(sizes)))
    if payload is not None:
        room[:length] = payload

    def start(begin: int, size: int) -> Handle[None]:
        place = _buffers.locate(room[begin : begin + size], writable=True)
        return submit(f"{name}.{size}", place, place, reduction, result=None)

    begins = itertools.accumulate(sizes, initial=0)
    return joined(begin_all(partial(start, *block) for block in zip(begins, sizes, strict=False))).then(
        lambda _: room[:length]
    )


def blocks(length: int) -> list[int]:
    """The sizes of the blocks in which `length` bytes travel, the largest first; in sum a little more than `length`."""
    padding_max = max(_BLOCK_BYTES[-1] - 1, length // _PADDING_SHARE)
    sizes, left = [], length
    for size in _BLOCK_BYTES:
        whole, left = divmod(left, size)
        sizes += [size] * whole
        if 0 < left and size - left <= padding_max:
            return [*sizes, size]
    return sizes
