"""Reductions, broadcasts and barriers over buffers of any kind.

A name fixes dtype and shape at its first use, on all workers. The calls of one worker for different names may come in
any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from gradlane import _buffers, _core, _session
from gradlane._arguments import check_name as check_name
from gradlane._arguments import check_timeout, the_rest_by_name
from gradlane._buffers import Buffer
from gradlane._choice import codec_of_call, codecs_among
from gradlane._compression import Compressor
from gradlane._handle import Handle, Streams
from gradlane._reduction import ReduceOp, Reduction, broadcast_of, reduction_of
from gradlane._sets import ProcessSet, check_member
from gradlane.errors import InvalidArgumentError

T = TypeVar("T")


@the_rest_by_name
def push_pull(
    buffer: T,
    name: str,
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor | None = None,
    out: T | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> T:
    """Average `buffer` over all workers, in place unless `out` is given.

    Args:
        buffer: NumPy array, writable buffer, DLPack tensor or anything with `__cuda_array_interface__`; on the CPU or
            one CUDA device; contiguous, any shape; float16, bfloat16, float32, float64, int32, int64, int8 or uint8.
            It must own its memory, and keep it until the operation has ended. A NumPy scalar does not change: the
            result is a new one.
        name: equal on all workers; its first use fixes dtype, shape and members.
        op: `Average` (default), `Sum`, `Min`, `Max` or `WeightedAverage`; equal on all workers.
        average: old form of `op`: True for `Average`, False for `Sum`.
        weight: this worker's weight in a `WeightedAverage`, such as its number of samples.
        priority: higher goes first; only the order matters.
        compression: how the tensor travels, one of `Compression`; None takes the setting `compression`. Equal on all
            workers and fixed with dtype and shape.
        out: the buffer for the result, of the same dtype and shape, on the same device or both on the host.
        process_set: the workers that take part, of which this one is a member; all by default.
        timeout: seconds for the whole operation; None takes the job's step timeout. That ends a wait for other workers
            also if `timeout` is longer, because it is a matter of the whole job.
    Returns:
        `buffer`, or `out`; for a NumPy scalar without `out` a new scalar. On a device the result is complete when the call
        returns: later work on any stream sees it.
    Raises:
        MismatchError: a worker used `name` with another dtype, shape, op or other members (both are named).
        StallError: some workers did not contribute in time (they are named).
        InvalidArgumentError: the buffer cannot be reduced, or this worker is not in `process_set`.
        UnavailableError: it is on a CUDA device, and no driver was found; the message says where it was searched.
        FailedPreconditionError: its stream is being captured into a graph.
        DeviceError: the device failed.
    """
    reduction = reduction_of(op, average, weight, priority, compression, process_set, timeout)
    return _begin(buffer, name, reduction, out, waits=True).wait()


@the_rest_by_name
def push_pull_async(
    buffer: T,
    name: str,
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor | None = None,
    out: T | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Handle[T]:
    """Like `push_pull`, but returns at once. Do not use `buffer` or `out` until the handle is done, nor resize them."""
    reduction = reduction_of(op, average, weight, priority, compression, process_set, timeout)
    return _begin(buffer, name, reduction, out, waits=False)


def _begin(buffer: T, name: str, reduction: Reduction, out: T | None, *, waits: bool) -> Handle[T]:
    changed, finish = changeable(buffer) if out is None else (out, None)
    target = _buffers.locate(changed, writable=True)
    source = target if out is None else _buffers.locate(buffer, writable=False)
    check_out(source, target)
    handle = submit(name, source, target, reduction, result=changed, waits=waits)
    return handle if finish is None else handle.then(finish)


def changeable(buffer: T) -> tuple[T, Callable[[T], T] | None]:
    """A buffer for an operation in place of a call that returns the result, and what makes the result of that buffer.

    A NumPy scalar has no memory of its own. An array with its value takes its place, and the result is a scalar again.
    """
    array = _buffers.array_of_scalar(buffer)
    return (buffer, None) if array is None else (array, lambda reduced: reduced[()])  # type: ignore[index]


@the_rest_by_name
def broadcast(
    buffer: T,
    root_rank: int = 0,
    name: str = "broadcast",
    *,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> T:
    """Give every worker the bytes of `buffer` on `root_rank`, in place. Every worker waits for all others, the root too.

    Args:
        buffer: as for `push_pull`; all bits are kept, including NaN and -0.0.
        root_rank: the rank whose bytes all workers get.
        name: equal on all workers; its first use fixes dtype, shape and members.
        process_set: the workers that take part, with the root among them; all by default.
        timeout: seconds; None takes the job's step timeout.
    Returns:
        `buffer`; for a NumPy scalar a new scalar.
    """
    changed, finish = changeable(buffer)
    place = _buffers.locate(changed, writable=True)
    reduction = broadcast_of(check_root(root_rank, process_set), process_set=process_set, timeout=timeout)
    handle = submit(name, place, place, reduction, result=changed, waits=True)
    return (handle if finish is None else handle.then(finish)).wait()


@the_rest_by_name
def declare(
    tensors: str | Mapping[str, Any],
    *,
    compression: Compressor | None = None,
    fuse: bool = True,
    timeout: float | None = None,
) -> None:
    """Fix dtype and shape of several names ahead of their first use, the same on all workers.

    Small tensors declared in one call share messages. A message is sent when all of its tensors are submitted, so
    declare together only tensors that are always reduced together.

    Args:
        tensors: buffers by name; only dtype and shape are used. A bare name is accepted for BytePS scripts and does
            nothing, because the first use declares it.
        compression: that of the operations on them; one of `Compression`, which acts on all of them.
        fuse: whether small tensors may share messages.
        timeout: seconds; None takes the job's setting.
    Raises:
        MismatchError: a worker declared one of the names with another dtype or shape (both are named).
    """
    session = _session.session()
    check_timeout(timeout)
    codec = codec_of_call(compression)
    if isinstance(tensors, str):
        return
    if not isinstance(tensors, Mapping):
        raise InvalidArgumentError(f"declare({type(tensors).__name__}); give buffers by name, as a dictionary")
    places = {name: _buffers.locate(tensor, writable=False) for name, tensor in tensors.items()}
    for names in by_device(places, lambda name: places[name].device):
        described = ((name, places[name].dtype, places[name].shape) for name in names)
        declare_places(session, described, codec=codec, fuse=fuse, timeout=timeout)


@the_rest_by_name
def undeclare(names: str | Iterable[str], *, timeout: float | None = None) -> None:
    """Say that this worker uses these names no more.

    A name lives as long as the job, and a job has at most 65,536. Names that are used once, such as one for each
    step, can end: when every worker has undeclared a name, it costs nothing any more, and may be used again for a
    tensor of another dtype or shape. A worker that uses it again earlier waits for the others. This call does not wait
    for them.

    Args:
        names: one or several; those that were declared together and share messages must be given in one call.
        timeout: seconds to wait for what is left of operations that ended; None takes the job's setting.
    Raises:
        InvalidArgumentError: a name is not declared on this worker, or shares messages with one that is not given.
        FailedPreconditionError: an operation on one of them has not ended; wait for its handle first.
    """
    session = _session.session()
    check_timeout(timeout)
    listed = [check_name(name) for name in ([names] if isinstance(names, str) else names)]
    if listed:
        session.undeclare(listed, timeout)


@the_rest_by_name
def barrier(name: str = "barrier", *, process_set: ProcessSet | None = None, timeout: float | None = None) -> None:
    """Wait until every worker, or every member of `process_set`, has called `barrier` with this name.

    Args:
        name: equal on all workers.
        process_set: the workers that meet; None for all.
        timeout: seconds, whatever happens. None takes the job's step timeout, which does not pass while a job that goes on
            without lost workers waits for its coordinator, because only that can say who is lost.
    Raises:
        StallError: some workers did not come in time (they are named).
        InvalidArgumentError: this worker is not in `process_set`.
    """
    check_name(name)
    check_timeout(timeout)
    _session.passes_over(f"barrier {name}")
    if process_set is None:
        _session.session().barrier(name, timeout)
        return
    place = _buffers.locate(bytearray(1), writable=True)
    submit(
        f"barrier {name}", place, place, Reduction("max", process_set=process_set, timeout=timeout), result=None
    ).wait()


def submit(
    name: str,
    source: Buffer,
    target: Buffer,
    reduction: Reduction,
    *,
    result: T,
    waits: bool = False,
    streams: Streams | None = None,
) -> Handle[T]:
    """Starts one operation on located memory; the handle yields `result`.

    With `waits` the caller waits for it next, and this thread does a part of the work. `streams` are those in which the
    framework uses a result on a device; without them the handle waits for its end.
    """
    session = _session.session()
    check_name(name)
    if _session.passes_over(name, is_broadcast=reduction.op == "broadcast" and reduction.receiver is None):
        return Handle(None, lambda: result)
    _session.note_timeout(reduction.timeout)
    members = reduction.process_set
    if members is not None:
        members.rank()  # raises if this worker is not a member
        name = members.name_of(name)
    if source.len == 0:
        is_told = members is None and reduction.receiver is None
        meeting = agree_on_empty(session, name, source.dtype, source.shape, reduction) if is_told else None
        return Handle(meeting, lambda: result)
    native = session.submit(
        name,
        source.dtype,
        source.shape,
        source.address,
        target.address,
        reduction,
        # Held until the host has seen the end of the operation. Then nothing on the device uses the memory any more, so
        # the framework may reuse it, and its allocator need not know our streams (PyTorch: record_stream).
        (source.owner, target.owner),
        waits,
        source.device,
        (source.stream, target.stream),
    )
    return Handle(native, lambda: result, streams)


def agree_on_empty(
    session: _core.Session, name: str, dtype: str, shape: tuple[int, ...], reduction: Reduction
) -> _core.Handle | None:
    """Begins to reduce a tensor without elements, of which nothing is sent.

    In its first round the workers agree that none has elements. Returns the handle of that, and None in later rounds.
    """
    tensor = (_session.generation(), name, dtype, tuple(shape), reduction.codec)
    if tensor in _agreed_empty:
        return None
    meeting = _agreeing.get(tensor)
    if meeting is not None and meeting.poll():
        del _agreeing[tensor]
        if meeting.error() is None:
            _agreed_empty.add(tensor)
            return None
        meeting = None
    if meeting is None:
        meeting = _agreeing[tensor] = session.agree_on_empty(name, dtype, tuple(shape), reduction)
    return meeting


_Empty = tuple[int, str, str, tuple[int, ...], str]
"""A tensor without elements, and the generation of its session."""

_agreeing: dict[_Empty, _core.Handle] = {}
"""Those for which this worker waits, or has waited."""

_agreed_empty: set[_Empty] = set()
"""Those of which all workers have said that they have no elements."""


def by_device(members: Iterable[T], device_of: Callable[[T], int | None]) -> list[list[T]]:
    """Groups the members by device, with one group for the host, in the order of their first members.

    Tensors that are declared in one call may share parts, and a part lies on one device. So each group is declared by
    itself.
    """
    groups: dict[int | None, list[T]] = {}
    for member in members:
        groups.setdefault(device_of(member), []).append(member)
    return list(groups.values())


def declare_places(
    session: Any,
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
    *,
    codec: str = "none",
    fuse: bool,
    timeout: float | None,
) -> None:
    """Declares (name, dtype, shape) triples; empty tensors are left out. `codec` is that of all, or has a line for each."""
    given = list(tensors)
    kept = [position for position, (_, _, shape) in enumerate(given) if 0 not in shape]
    if kept:
        listed = [(check_name(given[i][0]), *given[i][1:]) for i in kept]
        session.declare(listed, fuse, timeout, codecs_among(codec, kept))


def check_out(source: Buffer, target: Buffer, argument: str = "buffer") -> None:
    """Refuses a buffer for the result with another dtype or shape than `argument`, or on another device."""
    if source.device != target.device:
        raise InvalidArgumentError(
            f"out is on {_site(target)}, {argument} on {_site(source)}; give both in the memory of one device, or of the "
            "host"
        )
    if (target.dtype, target.shape) != (source.dtype, source.shape):
        raise InvalidArgumentError(
            f"out is {target.dtype} {list(target.shape)}, {argument} {source.dtype} {list(source.shape)}; make them equal"
        )


def check_root(root_rank: int, process_set: ProcessSet | None = None) -> int:
    """Returns `root_rank`, a rank in the job, if that worker takes part."""
    if process_set is not None:
        return check_member(root_rank, process_set, "root_rank")
    # Of a worker that was lost, a server tells: all workers must submit the same.
    size = _session.first_size()
    if not isinstance(root_rank, int):
        raise InvalidArgumentError(f"root_rank={root_rank!r} is no rank; ranks are 0 to {size - 1}")
    if 0 <= root_rank < size:
        return root_rank
    raise InvalidArgumentError(f"root_rank={root_rank} is not in the job; ranks are 0 to {size - 1}")


def _site(buffer: Buffer) -> str:
    return "the host" if buffer.device is None else f"cuda:{buffer.device}"
