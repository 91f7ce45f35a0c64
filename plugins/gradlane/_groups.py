"""Many buffers in one call: one entry into the engine, one handle and one wait for all of them.

What a group is made of is worked out once for its names, dtypes and shapes, and kept for the next round; where the
memory lies is looked at in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from gradlane import _buffers, _core, _session
from gradlane._handle import Handle, together
from gradlane._operations import by_device, check_name, check_out
from gradlane._reduction import NativeOp, ReduceOp, resolve
from gradlane.errors import InvalidArgumentError, UnsupportedError

B = TypeVar("B")
T = TypeVar("T")


def grouped_push_pull(
    buffers: Sequence[B],
    name: str | Sequence[str],
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    out: Sequence[B] | None = None,
    timeout: float | None = None,
) -> list[B]:
    """Average many buffers over all workers in one call, in place unless `out` is given.

    For many small ones this costs a fraction of as many calls. They are declared by the first call, where they have not
    been before, and small neighbours then share messages; so reduce together in every round what was reduced together
    once.

    Args:
        buffers: as for `push_pull`; of any dtypes and shapes, the same on all workers. Those of one device, or of the
            host, share messages among themselves.
        name: a name for each, or one for all: buffer number i is then called `name.i`. Equal on all workers.
        op: as for `push_pull`, for all of them; so are `average`, `weight` and `timeout`.
        priority: that of the first; each one after it is less urgent by 1.
        out: where the results go; one for each buffer, of the same dtype and shape.
    Returns:
        The buffers, or those of `out`.
    Raises:
        MismatchError: a worker used one of the names with another dtype, shape or op (both are named).
        StallError: some workers did not contribute in time (they are named).
        InvalidArgumentError: one of the buffers cannot be reduced, or a name comes twice; nothing was sent then.
    """
    return _begin(buffers, name, resolve(op, average, weight), weight, priority, out, timeout, waits=True).wait()


def grouped_push_pull_async(
    buffers: Sequence[B],
    name: str | Sequence[str],
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    out: Sequence[B] | None = None,
    timeout: float | None = None,
) -> Handle[list[B]]:
    """Starts what `grouped_push_pull` does and returns at once; no buffer may be touched until the handle is done.

    The handle is done when all of them are. If some fail it raises the error of the first that failed, once none of the
    memory is in use any more.
    """
    return _begin(buffers, name, resolve(op, average, weight), weight, priority, out, timeout, waits=False)


def _begin(
    buffers: Sequence[B],
    name: str | Sequence[str],
    reduction: ReduceOp,
    weight: float | None,
    priority: int | None,
    out: Sequence[B] | None,
    timeout: float | None,
    *,
    waits: bool,
) -> Handle[list[B]]:
    buffers = list(buffers)
    names = names_of(name, len(buffers))
    results = buffers if out is None else list(out)
    if len(results) != len(buffers):
        raise InvalidArgumentError(f"out has {len(results)} buffers for {len(buffers)}; give one for each")
    sources = [
        located(name, _buffers.locate, buffer, writable=out is None)
        for name, buffer in zip(names, buffers, strict=True)
    ]
    targets = sources
    if out is not None:
        targets = [
            located(name, _buffers.locate, buffer, writable=True) for name, buffer in zip(names, results, strict=True)
        ]
        for name, source, target in zip(names, sources, targets, strict=True):
            located(name, check_out, source, target)
    return submit_all(
        names,
        tuple(source.dtype for source in sources),
        tuple(source.shape for source in sources),
        [source.address for source in sources],
        None if out is None else [target.address for target in targets],
        reduction.native,
        owner=(sources, targets),
        result=results,
        weight=1.0 if weight is None else weight,
        priority=priority or 0,
        timeout=timeout,
        waits=waits,
        devices=[source.device for source in sources],
        streams=[place.stream for place in (sources if out is None else sources + targets)],
    )


def submit_all(
    names: tuple[str, ...],
    dtypes: tuple[str, ...],
    shapes: tuple[tuple[int, ...], ...],
    sources: list[int],
    targets: list[int] | None,
    op: NativeOp,
    *,
    owner: object,
    result: T,
    root: int = 0,
    weight: float = 1.0,
    priority: int = 0,
    codec: str = "none",
    timeout: float | None = None,
    waits: bool = False,
    devices: Sequence[int | None] = (),
    streams: Sequence[int | None] = (),
) -> Handle[T]:
    """Starts one operation on memory at these addresses, as long as the shapes say, in place without `targets`.

    The handle yields `result`.

    With `waits` the caller waits for it next, and this thread does meanwhile what it can do itself.

    Args:
        devices: where each is, None for the host; nothing if all are in host memory.
        streams: for each of `sources`, then of `targets`, the stream of its device whose work so far has to be done
            before it is touched, if any; nothing if all are in host memory.
    """
    session = _session.session()
    batch, kept = _batch(names, dtypes, shapes, codec)
    if batch is None:
        return Handle(None, lambda: result)

    def begin(batch: _core.Batch, members: Sequence[int], device: int | None, waits: bool) -> _core.Handle:
        whole = len(members) == len(names)  # as a rule: the lists go in as they are
        sides = [] if device is None else range(0, len(streams), len(names))
        return session.submit_all(
            batch,
            sources if whole else [sources[i] for i in members],
            targets if whole or targets is None else [targets[i] for i in members],
            op,
            root,
            weight,
            priority - members[0],
            timeout,
            owner,
            waits,
            device,
            [streams[side + i] for side in sides for i in members],
        )

    if len(set(devices)) <= 1:
        return Handle(begin(batch, kept, devices[0] if devices else None, waits), lambda: result)
    natives: list[_core.Handle] = []
    try:
        for members in by_device(kept, devices.__getitem__):
            part, _ = _batch(*(tuple(column[i] for i in members) for column in (names, dtypes, shapes)), codec)
            assert part is not None, "only what is not empty was kept"
            natives.append(begin(part, members, devices[members[0]], False))
    except BaseException:
        for native in natives:  # the others hear of it, instead of waiting for the rest of the group
            native.cancel()
        raise
    return Handle(together(natives), lambda: result)


def names_of(name: str | Sequence[str], count: int) -> tuple[str, ...]:
    """The names of so many members: those that are given, or `name.0`, `name.1` and so on.

    Raises:
        InvalidArgumentError: one of them names nothing, or there are more of them, or fewer.
    """
    if isinstance(name, str):
        return _numbered(check_name(name), count)
    names = tuple(map(check_name, name))
    if len(names) != count:
        raise InvalidArgumentError(f"{len(names)} names for {count} tensors; give one for each, or one for all")
    return names


def located(name: str, locate: Callable[..., T], *arguments: object, **options: object) -> T:
    """What `locate` finds; its error says which member of the group it is of."""
    try:
        return locate(*arguments, **options)
    except (InvalidArgumentError, UnsupportedError) as error:
        raise type(error)(f"{name}: {error}", **error.fields) from error


@lru_cache(maxsize=64)
def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}.{i}" for i in range(count))


@lru_cache(maxsize=64)
def _batch(
    names: tuple[str, ...], dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], codec: str
) -> tuple[_core.Batch | None, tuple[int, ...]]:
    """The group as the engine wants it, and which members are not empty: there is nothing to add in others."""
    kept = tuple(i for i, shape in enumerate(shapes) if 0 not in shape)
    listed = [(names[i], dtypes[i], tuple(shapes[i])) for i in kept]
    return (_core.Batch(listed, codec) if listed else None), kept
