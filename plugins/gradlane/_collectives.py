"""Collectives beyond sums that everybody gets, on buffers of any kind.

Each is made of two operations of the engine: a reduction whose sum one worker gets, and a copy from one worker to
others. So no worker sends or receives more than its share, which the documentation of each function says. `n` is the
number of workers that take part, and S the bytes of the larger buffer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from gradlane import _buffers, _session
from gradlane._buffers import Buffer, DeviceBuffer, HostBuffer
from gradlane._handle import Handle, begin_all, joined
from gradlane._operations import changeable, check_name, submit
from gradlane._overlaps import Use, check_apart, uses_of
from gradlane._reduction import ReduceOp, broadcast_of, reduction_of
from gradlane._sets import ProcessSet, check_member, members_of
from gradlane.errors import InvalidArgumentError, UnsupportedError

B = TypeVar("B")


def reduce(
    buffer: B,
    name: str,
    root_rank: int = 0,
    *,
    op: ReduceOp | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> B:
    """Reduce `buffer` over the workers, in place on `root_rank` alone. Each worker sends S bytes, the root receives S.

    Args:
        buffer: as for `push_pull`; on the other workers it does not change.
        name: equal on all workers; its first use fixes dtype, shape, root and members.
        root_rank: the rank in the job that gets the result.
        op: as for `push_pull`, `Average` by default.
        process_set: the workers that take part; all by default.
        timeout: seconds; None takes the job's step timeout.
    Returns:
        `buffer`; for a NumPy scalar a new scalar.
    """
    return reduce_async(buffer, name, root_rank, op=op, process_set=process_set, timeout=timeout).wait()


def reduce_async(
    buffer: B,
    name: str,
    root_rank: int = 0,
    *,
    op: ReduceOp | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Handle[B]:
    """Like `reduce`, but returns at once. Do not use `buffer` until the handle is done."""
    reduction = reduction_of(op, process_set=process_set, timeout=timeout)
    check_member(root_rank, process_set, "root_rank")
    changed, finish = changeable(buffer)
    place = _buffers.locate(changed, writable=True)
    # The root is a part of the name, because a name has one receiver.
    handle = submit(f"{check_name(name)}>{root_rank}", place, place, reduction.to(root_rank), result=changed)
    return handle if finish is None else handle.then(finish)


def reduce_scatter(
    buffer: Any,
    out: B,
    name: str,
    *,
    op: ReduceOp | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> B:
    """Reduce `buffer` over the workers; each gets the part of its rank in `out`. Each sends S bytes and receives S/n.

    Args:
        buffer: as for `push_pull`; n parts of equal length, one after the other. It does not change.
        out: the place for this worker's part: of the same dtype, and a n-th of the elements.
        name: equal on all workers; its first use fixes dtype, shape and members.
        op: as for `push_pull`, `Average` by default.
        process_set: the workers that take part; all by default. The parts are in the order of their ranks.
        timeout: seconds; None takes the job's step timeout.
    Returns:
        `out`.
    """
    return reduce_scatter_async(buffer, out, name, op=op, process_set=process_set, timeout=timeout).wait()


def reduce_scatter_async(
    buffer: Any,
    out: B,
    name: str,
    *,
    op: ReduceOp | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Handle[B]:
    """Like `reduce_scatter`, but returns at once. Do not use the buffers until the handle is done."""
    reduction = reduction_of(op, process_set=process_set, timeout=timeout)
    check_name(name)
    members, own = members_of(process_set), _session.rank()
    source, target = _buffers.locate(buffer, writable=False), _buffers.locate(out, writable=True)
    if source.len != len(members) * target.len or source.dtype != target.dtype or source.device != target.device:
        raise InvalidArgumentError(
            f"reduce_scatter of {source.len} elements of {source.dtype} into {target.len} of {target.dtype} among "
            f"{len(members)} workers; give one part for each, of the same type and in the same memory"
        )
    parts = {member: _part(source, position * target.len, target.len) for position, member in enumerate(members)}
    others = [Use(part, f"the part for worker {member}", False) for member, part in parts.items() if member != own]
    check_apart("reduce_scatter", [*others, *uses_of(parts[own], "the part for this worker", target, "out")])

    def start(member: int, part: Buffer) -> Handle[None]:
        place = target if member == own else part
        return submit(f"{name}>{member}", part, place, reduction.to(member), result=None)

    return joined(begin_all(partial(start, *part) for part in parts.items())).then(lambda _: out)


def all_gather(
    buffer: Any, outs: Sequence[B], name: str, *, process_set: ProcessSet | None = None, timeout: float | None = None
) -> list[B]:
    """Give every worker the buffers of all. Each worker sends its own, and receives those of all.

    Args:
        buffer: as for `push_pull`.
        outs: a place for the buffer of each worker, in the order of their ranks. Lengths may differ between workers.
        name: equal on all workers; its first use fixes dtype, shapes and members.
        process_set: the workers that take part; all by default.
        timeout: seconds; None takes the job's step timeout.
    Returns:
        The places.
    """
    return all_gather_async(buffer, outs, name, process_set=process_set, timeout=timeout).wait()


def all_gather_async(
    buffer: Any, outs: Sequence[B], name: str, *, process_set: ProcessSet | None = None, timeout: float | None = None
) -> Handle[list[B]]:
    """Like `all_gather`, but returns at once. Do not use the buffers until the handle is done."""
    check_name(name)
    _session.passes_over(name)  # of which parts are broadcasts
    members, own = members_of(process_set), _session.rank()
    targets = _places("all_gather", outs, members)
    source = _buffers.locate(buffer, writable=False)
    uses: list[Use] = []
    for member, target in zip(members, targets, strict=True):
        if member == own:
            _check_alike("all_gather", source, target)
        uses += uses_of(source if member == own else target, "buffer", target, f"the place for worker {member}")
    check_apart("all_gather", uses)

    def start(member: int, target: Buffer) -> Handle[None]:
        reduction = broadcast_of(member, process_set=process_set, timeout=timeout)
        return submit(f"{name}<{member}", source if member == own else target, target, reduction, result=None)

    parts = begin_all(partial(start, *part) for part in zip(members, targets, strict=True))
    return joined(parts).then(lambda _: list(outs))


def all_to_all(
    buffers: Sequence[Any],
    outs: Sequence[B],
    name: str,
    *,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> list[B]:
    """Send a buffer to each worker and receive one from each. Only what is for other workers travels.

    Args:
        buffers: a buffer for each worker, in the order of their ranks; as for `push_pull`. Lengths may differ.
        outs: a place for the buffer from each worker.
        name: equal on all workers; its first use fixes dtype, shapes and members.
        process_set: the workers that take part; all by default.
        timeout: seconds; None takes the job's step timeout.
    Returns:
        The places.
    """
    return all_to_all_async(buffers, outs, name, process_set=process_set, timeout=timeout).wait()


def all_to_all_async(
    buffers: Sequence[Any],
    outs: Sequence[B],
    name: str,
    *,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Handle[list[B]]:
    """Like `all_to_all`, but returns at once. Do not use the buffers until the handle is done."""
    check_name(name)
    members, own = members_of(process_set), _session.rank()
    sources, targets = _places("all_to_all", buffers, members, writable=False), _places("all_to_all", outs, members)
    starts: list[Callable[[], Handle[None]]] = []
    uses: list[Use] = []
    for member, source, target in zip(members, _separate(sources), targets, strict=True):
        if member == own:
            _check_alike("all_to_all", source, target)
            _check_copyable(source)
            uses += uses_of(source, "the buffer for this worker", target, "its place in outs")
            copied = source, target
            continue
        uses += [Use(source, f"the buffer for worker {member}", False)]
        uses += [Use(target, f"the place for worker {member}", True)]
        starts.append(partial(_message, name, source, source, own, member, timeout))
        starts.append(partial(_message, name, target, target, member, own, timeout))
    check_apart("all_to_all", uses)
    parts = begin_all(starts)
    _copy(*copied)
    return joined(parts).then(lambda _: list(outs))


def send(buffer: Any, to: int, name: str, *, timeout: float | None = None) -> None:
    """Send `buffer` to the worker `to`, which must call `recv`. Returns when it has the bytes.

    Args:
        buffer: as for `push_pull`; all bits are kept.
        to: a rank in the job, another than this worker's.
        name: equal on both; its first use between them fixes dtype and shape.
        timeout: seconds; None takes the job's step timeout.
    """
    send_async(buffer, to, name, timeout=timeout).wait()


def send_async(buffer: B, to: int, name: str, *, timeout: float | None = None) -> Handle[B]:
    """Like `send`, but returns at once. Do not write `buffer` until the handle is done."""
    _check_other(to, "to")
    place = _buffers.locate(buffer, writable=False)
    return _message(check_name(name), place, place, _session.rank(), to, timeout).then(lambda _: buffer)


def recv(buffer: B, source: int, name: str, *, timeout: float | None = None) -> B:
    """Receive into `buffer` what the worker `source` sends by `send` with this name. Returns `buffer`."""
    return recv_async(buffer, source, name, timeout=timeout).wait()


def recv_async(buffer: B, source: int, name: str, *, timeout: float | None = None) -> Handle[B]:
    """Like `recv`, but returns at once. Do not use `buffer` until the handle is done."""
    _check_other(source, "source")
    place = _buffers.locate(buffer, writable=True)
    return _message(check_name(name), place, place, source, _session.rank(), timeout).then(lambda _: buffer)


def _message(name: str, source: Buffer, target: Buffer, origin: int, to: int, timeout: float | None) -> Handle[None]:
    """Starts the copy of a buffer of `origin` to `to`; this worker is one of the two."""
    copied = broadcast_of(origin, process_set=ProcessSet({origin, to}), receiver=to, timeout=timeout)
    return submit(f"{name}.{origin}>{to}", source, target, copied, result=None)


def _separate(sources: Sequence[Buffer]) -> list[Buffer]:
    """The buffers, with copies of those in host memory that are an earlier one again: the engine lends memory only once."""
    separate: dict[tuple[int | None, int], Buffer] = {}
    copies: list[Buffer] = []
    for source in sources:
        if separate.setdefault((source.device, source.address), source) is source or source.device is not None:
            copies.append(source)
            continue
        content = bytearray(ctypes.string_at(source.address, source.bytes))
        place = _buffers.locate(content, writable=True)
        copies.append(HostBuffer(place.address, source.dtype, source.shape, place.owner))
    return copies


def _check_copyable(source: Buffer) -> None:
    if source.device is not None:
        raise UnsupportedError("all_to_all in memory of a device; copy the buffers to the host, or use gradlane.torch")


def _copy(source: Buffer, target: Buffer) -> None:
    """Copies a buffer of this worker to itself."""
    if source.address != target.address:
        ctypes.memmove(target.address, source.address, source.bytes)


def _places(call: str, buffers: Sequence[Any], members: Sequence[int], *, writable: bool = True) -> list[Buffer]:
    if len(buffers) != len(members):
        raise InvalidArgumentError(f"{call} with {len(buffers)} buffers among {len(members)} workers; give each one")
    return [_buffers.locate(buffer, writable=writable) for buffer in buffers]


def _part(whole: Buffer, begin: int, length: int) -> Buffer:
    """Some elements of a buffer, as a vector."""
    address = whole.address + begin * _buffers.ITEM_BYTES[whole.dtype]
    if isinstance(whole, HostBuffer):
        return HostBuffer(address, whole.dtype, (length,), whole.owner)
    return DeviceBuffer(address, whole.dtype, (length,), whole.owner, whole.device, whole.stream)


def _check_alike(call: str, own: Buffer, place: Buffer) -> None:
    if (own.dtype, own.len, own.device) != (place.dtype, place.len, place.device):
        raise InvalidArgumentError(
            f"{call}: this worker's buffer has {own.len} elements of {own.dtype}, and its own place in outs {place.len} "
            f"of {place.dtype}; make them equal, in the same memory"
        )


def _check_other(rank: int, what: str) -> None:
    if check_member(rank, None, what) == _session.rank():
        raise InvalidArgumentError(f"{what}={rank} is this worker itself; copy the buffer")
