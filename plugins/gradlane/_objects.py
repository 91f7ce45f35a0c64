"""Gathers and broadcasts data of variable length: bytes and Python objects.

A name fixes a shape, so bytes are padded to a power of two that is part of the name. `NAME.lengths` carries one int64
for each rank (a sum of vectors that are zero except at the own rank), then `NAME.RANK.PADDED` broadcasts each rank's
bytes. Padding keeps the number of names under 40 per rank and user's name, and at most doubles the bytes. With exact
lengths, every new length would leave a name behind.

Objects are pickled, and unpickling runs code that the sender chose. All members of a job have proven their identity,
but the bytes pass through servers: whoever controls a server can then run code in every worker. With `plain=` only
plain values are sent (`gradlane._plain`), and nothing that is received can run code.
"""

from __future__ import annotations

import pickle
from array import array
from typing import Any

from gradlane import _buffers, _plain, _session
from gradlane._handle import Handle
from gradlane._operations import check_root, submit

_PADDED_BYTES_MIN = 64


class Gathering:
    """Gathers one contribution of bytes from each rank: first the lengths, then the bytes.

    Several may be started before the first is finished. They then take one round trip for all lengths and one for all
    bytes.
    """

    def __init__(self, payload: bytes | bytearray | memoryview, name: str, *, timeout: float | None = None) -> None:
        """Announces the length of `payload`."""
        job = _session.session()
        self._payload, self._name, self._timeout, self._rank = payload, name, timeout, job.rank
        self._lengths = array("q", bytes(8 * job.size))
        self._lengths[job.rank] = len(payload)
        place = _buffers.locate(self._lengths, writable=True)
        self._announced = submit(f"{name}.lengths", place, place, "sum", result=None, timeout=timeout)

    def exchange(self) -> list[Handle[memoryview]]:
        """Waits for the lengths and starts the transfers; the handles, in rank order, yield the bytes."""
        self._announced.wait()
        return [self._transfer(root, length) for root, length in enumerate(self._lengths)]

    def finish(self) -> list[memoryview]:
        """Waits for the bytes of all ranks and returns them in rank order; the memory belongs to the caller."""
        return [handle.wait() for handle in self.exchange()]

    def _transfer(self, root: int, length: int) -> Handle[memoryview]:
        if length == 0:
            return Handle(None, lambda: memoryview(bytearray()))
        return _transfer(
            self._payload if root == self._rank else None, length, root, f"{self._name}.{root}", self._timeout
        )


def allgather(value: Any, name: str = "allgather", *, plain: bool = False, timeout: float | None = None) -> list[Any]:
    """Give every worker the values of all, in rank order.

    Args:
        value: bytes, NumPy array or any object that pickles; kinds and sizes may differ between workers.
        name: equal on all workers.
        plain: as for `broadcast_object`.
        timeout: seconds; None takes the job's step timeout.
    """
    blobs = Gathering(_dumps(value, plain), name, timeout=timeout).finish()
    return [_loads(blob, plain) for blob in blobs]


def broadcast_object(
    value: Any, root_rank: int = 0, name: str = "object", *, plain: bool = False, timeout: float | None = None
) -> Any:
    """Give every worker the object of `root_rank`.

    Args:
        value: any object that pickles; used on `root_rank` only.
        root_rank: the rank with the object.
        name: equal on all workers.
        plain: send only None, booleans, numbers, texts, bytes, and lists, tuples and dictionaries of them. Then nothing
            that is received can run code, as an unpickled object can. Equal on all workers.
        timeout: seconds; None takes the job's step timeout.
    Returns:
        On `root_rank` `value` itself, elsewhere a copy.
    Raises:
        InvalidArgumentError: `plain` is set, and there is something else in `value`; the message says where.
        ProtocolError: `plain` is set, and something else was received.
    """
    is_root = _session.rank() == check_root(root_rank)
    received = broadcast_bytes(_dumps(value, plain) if is_root else None, root_rank, name, timeout)
    return value if is_root else _loads(received, plain)


def broadcast_bytes(payload: bytes | None, root_rank: int, name: str, timeout: float | None = None) -> memoryview:
    """Gives every worker the bytes that only `root_rank` gives."""
    length = array("q", [0 if payload is None else len(payload)])
    place = _buffers.locate(length, writable=True)
    submit(f"{name}.length", place, place, "broadcast", result=None, root=root_rank, timeout=timeout).wait()
    return _transfer(payload, length[0], root_rank, f"{name}.{root_rank}", timeout).wait()


def _dumps(value: Any, plain: bool) -> bytes:
    return _plain.encode(value) if plain else pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _loads(data: memoryview, plain: bool) -> Any:
    return _plain.decode(data) if plain else pickle.loads(data)


def _transfer(
    payload: bytes | bytearray | memoryview | None, length: int, root: int, name: str, timeout: float | None
) -> Handle[memoryview]:
    """Broadcasts `length` bytes; `payload` is given on `root` alone."""
    padded = max(_PADDED_BYTES_MIN, 1 << (length - 1).bit_length())
    room = bytearray(padded)
    if payload is not None:
        room[:length] = payload
    place = _buffers.locate(room, writable=True)
    received = memoryview(room)[:length]
    return submit(f"{name}.{padded}", place, place, "broadcast", result=received, root=root, timeout=timeout)
