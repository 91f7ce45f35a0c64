"""The operations of `horovod.torch` that give each worker a result of its own: `alltoall` and `reducescatter`.

No worker sends or receives more than its share. Tensors on devices go through host memory.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import torch

from gradlane import Average, Handle, Sum, _sets, push_pull_async, rank, recv_async, send_async
from gradlane import ProcessSet as Workers
from gradlane._handle import begin_all, joined
from gradlane._reduction import Reduction
from gradlane.compat._background import in_turn
from gradlane.compat.horovod.common import ProcessSet, global_process_set, members_of
from gradlane.compat.horovod.torch._calls import Scaled, begin, scale, scaled
from gradlane.compat.horovod.torch.ops import allgather
from gradlane.errors import InvalidArgumentError, MismatchError
from gradlane.torch import _tensors
from gradlane.torch.compression import Compression, Compressor
from gradlane.torch.ops import is_differentiable, join_graph

Splits = torch.Tensor | Sequence[int]
"""How many rows go to each worker, in rank order, or have come from each."""


def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends rows of `tensor` to each worker, and returns those that came from all, in rank order. Differentiable.

    Only what is for other workers travels. A message is at most a quarter longer than its rows, because the names of
    messages know their lengths and a job has room for so many names.

    Args:
        tensor: of any element type, on the CPU or on a CUDA device. The number of rows, which is the first dimension,
            may differ between workers; the rest of the shape may not.
        splits: how many rows go to each worker of the set; integers. None gives all of them the same number.
        name: equal on all workers. Without one, calls are told apart by their order.
        process_set: the workers that take part, of which this one is a member.
    Returns:
        The rows. If `splits` is given, also how many came from each worker: integers of the type of `splits`, or int32.
    Raises:
        InvalidArgumentError: `splits` does not fit the tensor or the set; or this worker is not in the set.
        MismatchError: the rows of another worker have another shape or element type.
    """
    rows, received = _alltoall(True, tensor, splits, name, process_set).wait()
    return rows if splits is None else (rows, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[torch.Tensor, torch.Tensor]]:
    """Like `alltoall`, but returns at once; `synchronize(handle)` yields the rows, and how many came from each worker."""
    return _alltoall(False, tensor, splits, name, process_set)


def _alltoall(
    waits: bool, tensor: torch.Tensor, splits: Splits | None, name: str | None, process_set: ProcessSet
) -> Handle[tuple[torch.Tensor, torch.Tensor]]:
    members = members_of(process_set)
    workers = _sets.members_of(members)
    _tensors.check_place(tensor)
    sent = dict(zip(workers, _lengths(tensor, splits, len(workers)), strict=True))
    differentiable = is_differentiable([tensor])
    source = _tensors.in_host_memory(tensor.detach())[: sum(sent.values())]

    def submit(chosen: str) -> Handle[tuple[torch.Tensor, list[int]]]:
        lengths = _announce_lengths(sent, tensor, chosen, members)

        def exchange() -> tuple[torch.Tensor, list[int]]:
            came = _check_lengths(lengths.wait(), workers, tensor, chosen, members)
            return _exchange_rows(source, sent, came, chosen, members), list(came.values())

        return in_turn(_sets.name_in_job(chosen, members), exchange, waits=waits)

    kind, device = (splits.dtype, splits.device) if isinstance(splits, torch.Tensor) else (torch.int32, None)

    def land(exchanged: tuple[torch.Tensor, list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        out, came = exchanged
        rows, received = out.to(tensor.device), torch.tensor(came, dtype=kind, device=device)
        if not differentiable:
            return rows, received

        def again(_: list[int], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
            back = alltoall_async(gradients[0], came, f"{name}.backward" if name else None, process_set).wait()[0]
            kept = back.new_zeros(len(tensor) - len(back), *back.shape[1:])  # rows that no worker got
            return [torch.cat([back, kept])]

        return join_graph([rows], [tensor], again)[0], received

    among = Reduction(process_set=members)
    return begin("alltoall", name, [], among, submit, parts=lambda _: [], waits=waits).then(land)


def _exchange_rows(
    tensor: torch.Tensor, sent: dict[int, int], came: dict[int, int], name: str, members: Workers | None
) -> torch.Tensor:
    """Sends rows and receives those of all workers."""
    out = torch.empty(sum(came.values()), *tensor.shape[1:], dtype=tensor.dtype)
    starts: list[Callable[[], Handle[Any]]] = []
    sources, targets = _bytes(tensor, list(sent.values())), _bytes(out, list(came.values()))
    for worker, source, target in zip(sent, sources, targets, strict=True):
        if worker == rank():
            target.copy_(source)
            continue
        if source.numel():
            starts.append(partial(_send, source, worker, _sets.name_in_job(name, members)))
        if target.numel():
            starts.append(partial(_receive, target, worker, _sets.name_in_job(name, members)))
    joined(begin_all(starts)).wait()
    return out


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces `tensor`, and returns this worker's part along the first dimension; the first ranks may have a row more.

    Each worker sends the tensor once, and receives its part alone. Differentiable; as in Horovod, the gradient of a sum
    is multiplied by the number of workers. Arguments and errors are those of `allreduce`.
    """
    how = scaled(None, op, (prescale_factor, postscale_factor), process_set, compression)
    return _scatter(tensor, name, how, process_set).wait()


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[torch.Tensor]:
    """Like `reducescatter`, but returns at once; `synchronize(handle)` yields this worker's part."""
    return _scatter(tensor, name, scaled(None, op, (prescale_factor, postscale_factor), process_set), process_set)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors."""
    how = scaled(None, op, (prescale_factor, postscale_factor), process_set, compression)
    return _scatter_all(tensors, name, how, process_set).wait()


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[torch.Tensor]]:
    """Like `grouped_reducescatter`, but returns at once."""
    how = scaled(None, op, (prescale_factor, postscale_factor), process_set)
    return _scatter_all(tensors, name, how, process_set)


def _scatter_all(
    tensors: Sequence[torch.Tensor], name: str | None, how: Scaled, process_set: ProcessSet
) -> Handle[list[torch.Tensor]]:
    names = [name and f"{name}.{position}" for position in range(len(tensors))]
    starts = [partial(_scatter, tensor, own, how, process_set) for tensor, own in zip(tensors, names, strict=True)]
    return joined(begin_all(starts))


def _scatter(
    tensor: torch.Tensor, name: str | None, how: Scaled, process_set: ProcessSet
) -> Handle[torch.Tensor]:
    """Starts a reduction of each worker's part, whose result goes to that worker."""
    reduction, workers = how.reduction, _sets.members_of(how.reduction.process_set)
    _tensors.check_place(tensor)
    _check_rows(tensor, "reducescatter")
    differentiable = is_differentiable([tensor], reduction)
    whole = _tensors.dense(scale(_tensors.in_host_memory(tensor.detach()), how.before))
    parts = list(whole.tensor_split(len(workers)))
    # After a loss the parts have other lengths.
    count = len(_sets.places_of(reduction.process_set))
    among = "" if len(workers) == count else f" of {len(workers)}"
    own = workers.index(rank())
    parts[own] = parts[own].clone()  # the sum lands there, and the tensor is the caller's

    def names(chosen: str) -> list[str]:
        return [f"{chosen}{among}>{worker}" for worker in workers]

    def submit(chosen: str) -> Handle[list[torch.Tensor]]:
        def start(worker: int, part: torch.Tensor, called: str) -> Handle[torch.Tensor]:
            return _tensors.submit_in_place(part, called, reduction.to(worker))

        return joined(begin_all(partial(start, *one) for one in zip(workers, parts, names(chosen), strict=True)))

    handle = begin("reducescatter", name, [tensor], reduction, submit, names).then(
        lambda _: scale(parts[own], how.after).to(tensor.device)
    )
    if not differentiable:
        return handle

    def again(_: list[int], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        factor = how.before * how.after * (len(workers) if reduction.op == "sum" else 1)
        return [allgather(scale(gradients[0], factor), f"{name}.backward" if name else None, process_set)]

    return handle.then(lambda part: join_graph([part], [tensor], again)[0])


def _lengths(tensor: torch.Tensor, splits: Splits | None, count: int) -> list[int]:
    """How many rows of `tensor` go to each of `count` workers."""
    _check_rows(tensor, "alltoall")
    rows = len(tensor)
    if splits is None:
        if rows % count:
            raise InvalidArgumentError(f"alltoall of {rows} rows among {count} workers, which is uneven; give splits")
        return [rows // count] * count
    given = splits.tolist() if isinstance(splits, torch.Tensor) else list(splits)
    try:
        lengths = [operator.index(length) for length in given]
    except TypeError as error:
        raise InvalidArgumentError(f"alltoall with splits={given}; give integers") from error
    if len(lengths) != count or sum(lengths) > rows or min(lengths) < 0:
        raise InvalidArgumentError(
            f"alltoall of {rows} rows with splits={lengths} among {count} workers; give a number of rows for each "
            f"worker, together at most {rows}"
        )
    return lengths


def _announce_lengths(sent: dict[int, int], tensor: torch.Tensor, name: str, members: Workers | None) -> Handle[Any]:
    """Begins to tell each worker how many rows it gets from the others.

    Each worker fills its line of a table with what it sends, and with a mark of its kind of rows; the sum is the table.
    """
    places = _sets.places_of(members)
    own, width = places.index(rank()), len(places) + 1
    table = array("q", bytes(8 * len(places) * width))
    line = [sent.get(place, 0) for place in places]
    table[own * width : (own + 1) * width] = array("q", [*line, crc32(_kind(tensor).encode())])
    return push_pull_async(table, f"{name}.lengths", op=Sum, process_set=members)


def _check_lengths(
    table: Any, workers: Sequence[int], tensor: torch.Tensor, name: str, members: Workers | None
) -> dict[int, int]:
    """How many rows come from each of these workers. Raises unless all rows are alike."""
    kind, places = _kind(tensor), _sets.places_of(members)
    width = len(places) + 1
    came = {}
    for worker in workers:
        line = table[places.index(worker) * width :][:width]
        # A worker that was lost has filled nothing.
        if line[-1] not in (0, crc32(kind.encode())):
            raise MismatchError(
                f"alltoall: rows of worker {rank()} are {kind}, and those of worker {worker} are not; send rows of one "
                "shape and element type from all workers",
                tensor=name,
                field="shape",
                first=(rank(), kind),
                second=(worker, "other rows"),
            )
        came[worker] = line[places.index(rank())]
    return came


def _kind(tensor: torch.Tensor) -> str:
    """What rows must be alike in."""
    return f"{_tensors.dtype_name(tensor.dtype)} {list(tensor.shape[1:])}"


def _bytes(rows: torch.Tensor, lengths: Sequence[int]) -> Sequence[torch.Tensor]:
    """The bytes of the rows for each worker, or from it."""
    flat = _tensors.dense(rows).reshape(-1).view(torch.uint8)
    row = flat.numel() // max(1, len(rows))
    parts: Sequence[torch.Tensor] = flat.split([row * length for length in lengths])
    return parts


def _send(content: torch.Tensor, to: int, name: str) -> Handle[torch.Tensor]:
    wire = content
    if (padding := _padded(content.numel()) - content.numel()) > 0:
        wire = torch.cat([content, content.new_zeros(padding)])
    return send_async(wire, to, f"{name}.{wire.numel()}")


def _receive(place: torch.Tensor, source: int, name: str) -> Handle[torch.Tensor]:
    padded = _padded(place.numel())
    if padded == place.numel():
        return recv_async(place, source, f"{name}.{padded}")
    room = recv_async(torch.empty(padded, dtype=torch.uint8), source, f"{name}.{padded}")
    return room.then(lambda wire: place.copy_(wire[: place.numel()]))


def _padded(length: int) -> int:
    """The bytes of a message of `length` bytes: the next number with zeros after its first three binary digits.

    A name fixes the length of its messages, and a job has 65,536 names. So messages have four lengths between a power
    of two and the next.
    """
    step = max(_STEP_BYTES_MIN, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // step) * step


_STEP_BYTES_MIN = 64


def _check_rows(tensor: torch.Tensor, call: str) -> None:
    if tensor.dim() == 0:
        raise InvalidArgumentError(f"{call} of a tensor without dimensions; give tensor.reshape(1)")
