"""Many buffers in one call: one entry into the engine, one handle and one wait for all of them.

The description of a group (names, dtypes, shapes) is cached for the next round. The addresses are read in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from gradlane import _buffers, _core, _session
from gradlane._arguments import check_name, the_rest_by_name
from gradlane._choice import codecs_among
from gradlane._compression import Compressor
from gradlane._handle import Handle, Streams, together
from gradlane._operations import agree_on_empty, by_device, changeable, check_out
from gradlane._reduction import ReduceOp, Reduction, reduction_of
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError

B = TypeVar("B")
T = TypeVar("T")


@the_rest_by_name
def grouped_push_pull(
    buffers: Sequence[B],
    name: str | Sequence[str],
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor | None = None,
    out: Sequence[B] | None = None,
    timeout: float | None = None,
) -> list[B]:
    """Average many buffers over all workers in one call, in place unless `out` is given.

    For many small buffers this costs a fraction of single calls. The first call declares the buffers that were not
    declared before, and small neighbours then share messages. So call it with the same group in every round.

    Args:
        buffers: as for `push_pull`; of any dtypes and shapes, the same on all workers. Only buffers
            of the same device, or of the host, share messages.
        name: a name for each buffer, or one for all: then buffer i has the name `name.i`. Equal on all workers.
        op: as for `push_pull`, the same for all buffers; so are `average`, `weight`, `compression` and `timeout`.
        priority: of the first buffer; each further one has one less than the one before.
        out: a buffer for each result, of the same dtype and shape as its source.
    Returns:
        The buffers, or those of `out`.
    Raises:
        MismatchError: a worker used one of the names with another dtype, shape or op (both are named).
        StallError: some workers did not contribute in time (they are named).
        InvalidArgumentError: a buffer cannot be reduced, or a name occurs twice. In this case nothing was sent.
    """
    reduction = reduction_of(op, average, weight, priority, compression, timeout=timeout)
    return _begin(buffers, name, reduction, out, waits=True).wait()


@the_rest_by_name
def grouped_push_pull_async(
    buffers: Sequence[B],
    name: str | Sequence[str],
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor | None = None,
    out: Sequence[B] | None = None,
    timeout: float | None = None,
) -> Handle[list[B]]:
    """Like `grouped_push_pull`, but returns at once. Do not use any of the buffers until the handle is done.

    The handle is done when all operations have ended. If some failed, it raises the error of the first of them, after
    all memory is free.
    """
    reduction = reduction_of(op, average, weight, priority, compression, timeout=timeout)
    return _begin(buffers, name, reduction, out, waits=False)


def _begin(
    buffers: Sequence[B], name: str | Sequence[str], reduction: Reduction, out: Sequence[B] | None, *, waits: bool
) -> Handle[list[B]]:
    given = list(buffers)
    names = names_of(name, len(given))
    # The places of the results, and what makes the result of each.
    places = [changeable(buffer) for buffer in given] if out is None else [(buffer, None) for buffer in out]
    if len(places) != len(given):
        raise InvalidArgumentError(f"out has {len(places)} buffers for {len(given)}; give one for each")
    results = [place for place, _ in places]
    targets = [
        located(name, _buffers.locate, buffer, writable=True) for name, buffer in zip(names, results, strict=True)
    ]
    sources = targets
    if out is not None:
        sources = [
            located(name, _buffers.locate, buffer, writable=False) for name, buffer in zip(names, given, strict=True)
        ]
        for name, source, target in zip(names, sources, targets, strict=True):
            located(name, check_out, source, target)
    handle = submit_all(
        names,
        tuple(source.dtype for source in sources),
        tuple(source.shape for source in sources),
        [source.address for source in sources],
        None if out is None else [target.address for target in targets],
        reduction,
        owner=(sources, targets),
        result=results,
        waits=waits,
        devices=[source.device for source in sources],
        streams=[place.stream for place in (sources if out is None else sources + targets)],
    )
    if not any([finish for _, finish in places]):
        return handle
    return handle.then(lambda _: [place if finish is None else finish(place) for place, finish in places])


def submit_all(
    names: tuple[str, ...],
    dtypes: tuple[str, ...],
    shapes: tuple[tuple[int, ...], ...],
    sources: list[int],
    targets: list[int] | None,
    reduction: Reduction,
    *,
    owner: object,
    result: T,
    waits: bool = False,
    devices: Sequence[int | None] = (),
    streams: Sequence[int | None] = (),
    current: Streams | None = None,
) -> Handle[T]:
    """Starts one operation on memory at these addresses; the shapes give its length. Without `targets` it is in place.

    All workers take part. Each tensor is reduced as `reduction.at` says for its position. The handle yields `result`. With
    `waits` the caller waits for it next, and this thread does a part of the work.

    Args:
        devices: the device of each tensor, None for the host; empty if all are in host memory.
        streams: for each of `sources`, then for each of `targets`, the stream whose work so far must end before the
            memory is used, if any; empty if all are in host memory.
        current: the streams in which the framework uses the results; without them the handle waits for their end.
    """
    assert reduction.process_set is None and reduction.receiver is None, "tensors that share messages are those of all"
    session = _session.session()
    if names and _session.passes_over(names[0], is_broadcast=reduction.op == "broadcast"):
        return Handle(None, lambda: result)
    _session.note_timeout(reduction.timeout)
    batch, kept = _batch(names, dtypes, shapes, reduction.codec)
    meetings: list[_core.Handle] = []
    for i in set(range(len(names))).difference(kept) if len(kept) < len(names) else ():
        meeting = agree_on_empty(session, names[i], dtypes[i], shapes[i], reduction.at(i))
        if meeting is not None:
            meetings.append(meeting)
    if batch is None:
        return Handle(together(meetings) if meetings else None, lambda: result)

    def begin(batch: _core.Batch, members: Sequence[int], device: int | None, waits: bool) -> _core.Handle:
        whole = len(members) == len(names)  # as a rule: the lists go in as they are
        sides = [] if device is None else range(0, len(streams), len(names))
        return session.submit_all(
            batch,
            sources if whole else [sources[i] for i in members],
            targets if whole or targets is None else [targets[i] for i in members],
            reduction.at(members[0]),
            owner,
            waits,
            device,
            [streams[side + i] for side in sides for i in members],
        )

    if len(set(devices)) <= 1:
        native = begin(batch, kept, devices[0] if devices else None, waits and not meetings)
        return Handle(together([native, *meetings]), lambda: result, current)
    natives: list[_core.Handle] = []
    try:
        for members in by_device(kept, devices.__getitem__):
            columns = (tuple(column[i] for i in members) for column in (names, dtypes, shapes))
            part, _ = _batch(*columns, codecs_among(reduction.codec, members))
            assert part is not None, "only what is not empty was kept"
            natives.append(begin(part, members, devices[members[0]], False))
    except BaseException:
        for native in natives:  # tells the other workers, which would otherwise wait for the rest of the group
            native.cancel()
        raise
    return Handle(together(natives + meetings), lambda: result, current)


def names_of(name: str | Sequence[str], count: int) -> tuple[str, ...]:
    """The names of `count` members: the given ones, or `name.0`, `name.1` and so on.

    Raises:
        InvalidArgumentError: a name is not valid, or the number of names is wrong.
    """
    if isinstance(name, str):
        return _numbered(check_name(name), count)
    names = tuple(map(check_name, name))
    if len(names) != count:
        raise InvalidArgumentError(f"{len(names)} names for {count} tensors; give one for each, or one for all")
    return names


def located(name: str, locate: Callable[..., T], *arguments: object, **options: object) -> T:
    """Calls `locate`; adds the name of the member to its errors."""
    try:
        return locate(*arguments, **options)
    except (FailedPreconditionError, InvalidArgumentError, UnsupportedError) as error:
        raise type(error)(f"{name}: {error}", **error.fields) from error


@lru_cache(maxsize=64)
def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}.{i}" for i in range(count))


@lru_cache(maxsize=64)
def _batch(
    names: tuple[str, ...], dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], codec: str
) -> tuple[_core.Batch | None, tuple[int, ...]]:
    """The group in the engine's form, and the indices of its members; empty tensors are left out."""
    kept = tuple(i for i, shape in enumerate(shapes) if 0 not in shape)
    listed = [(names[i], dtypes[i], tuple(shapes[i])) for i in kept]
    return (_core.Batch(listed, codecs_among(codec, kept)) if listed else None), kept
