"""Reductions of many tensors in one call: `grouped_push_pull` and its variants, named as the forms for one tensor.

For many small tensors they cost a fraction of single calls: one entry into the engine, one handle, one wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from gradlane._groups import located, names_of, submit_all
from gradlane._handle import Handle, begin_all, joined
from gradlane._operations import check_root
from gradlane._reduction import ReduceOp, Reduction, broadcast_of, reduction_of
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError
from gradlane.torch import _tensors
from gradlane.torch._tensors import NAMES
from gradlane.torch.compression import Compressor
from gradlane.torch.ops import check_in_place, copy_of, form_of, is_differentiable, join_graph

T = TypeVar("T")


def _asked(
    tensors: Sequence[torch.Tensor],
    name: str | Sequence[str],
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Reduction:
    """The list of the arguments of the four forms below, and the reduction that they ask for."""
    del tensors, name
    return reduction_of(op, average, weight, priority, compression, process_set, timeout)


def begin_in_place(
    waits: bool, tensors: Sequence[torch.Tensor], name: str | Sequence[str], reduction: Reduction
) -> Handle[list[torch.Tensor]]:
    """Begins in place. Tensors that autograd has computed are refused."""
    tensors = list(tensors)
    names = names_of(name, len(tensors))
    _check_in_place(names, tensors)
    wires, backs = _wires(names, tensors)
    if any([wire.is_complex() for wire in wires]):
        wires = [located(name, _tensors.pairs, wire, reduction) for name, wire in zip(names, wires, strict=True)]
    return _submit(names, wires, backs, reduction, result=tensors, waits=waits)


@form_of(_asked)
def grouped_push_pull(tensors: Sequence[torch.Tensor], name: str | Sequence[str], **options: Any) -> list[torch.Tensor]:
    """Average many tensors over all workers in one call, into new ones. Differentiable, as `push_pull` is.

    The first call declares the tensors that were not declared before, and small neighbours then share messages. So call
    it with the same group in every round.

    Args:
        tensors: as for `push_pull`; of any shapes and element types, the same on all workers. They may be on several
            devices; only tensors of the same device, or of the host, share messages.
        name: a name for each tensor, or one for all: then tensor i has the name `name.i`. Equal on all workers.
        op: as for `push_pull`, the same for all; so are `average`, `weight`, `compression` and `timeout`.
        priority: of the first tensor; each further one has one less than the one before.
        process_set: as for `push_pull`. The tensors of a set share no messages.
    Raises:
        MismatchError: a worker used one of the names with another dtype, shape or op (both are named).
        StallError: some workers did not contribute in time (they are named).
        InvalidArgumentError: a tensor cannot be reduced, or a name occurs twice. In this case nothing was sent.
        UnsupportedError: a tensor is neither on the CPU nor on a CUDA device. In this case nothing was sent.
    """
    return begin_copies(True, tensors, name, _asked(tensors, name, **options)).wait()


@form_of(_asked)
def grouped_push_pull_async(
    tensors: Sequence[torch.Tensor], name: str | Sequence[str], **options: Any
) -> Handle[list[torch.Tensor]]:
    """Like `grouped_push_pull`, but returns at once; `handle.wait()` yields the new tensors, as does `synchronize(handle)`.

    The handle is done when all operations have ended. If some failed, it raises the error of the first of them, after
    all memory is free. Cancelling it cancels all.
    """
    return begin_copies(False, tensors, name, _asked(tensors, name, **options))


@form_of(_asked)
def grouped_push_pull_(
    tensors: Sequence[torch.Tensor], name: str | Sequence[str], **options: Any
) -> list[torch.Tensor]:
    """Average many tensors over all workers in one call, in place. Arguments and errors: see `grouped_push_pull`.

    Tensors that autograd has computed are refused, as by `push_pull_`.
    """
    return begin_in_place(True, tensors, name, _asked(tensors, name, **options)).wait()


@form_of(_asked)
def grouped_push_pull_async_(
    tensors: Sequence[torch.Tensor], name: str | Sequence[str], **options: Any
) -> Handle[list[torch.Tensor]]:
    """Like `grouped_push_pull_`, but returns at once. Do not use any of the tensors before `handle.wait()`."""
    return begin_in_place(False, tensors, name, _asked(tensors, name, **options))


def broadcast_all(
    tensors: Sequence[torch.Tensor],
    names: Sequence[str],
    root: int,
    process_set: ProcessSet | None = None,
    *,
    notes_changes: bool = True,
) -> None:
    """Gives every worker the bits of these tensors on `root`, in place; of any element types and strides.

    Without `notes_changes` autograd does not hear that they are written, as is right on the root.
    """
    bits = [located(name, _tensors.bits, tensor) for name, tensor in zip(names, tensors, strict=True)]
    wires = [wire for wire, _, _ in bits]
    backs = _landings(names, [(tensor, dense) for _, dense, tensor in bits])
    reduction = broadcast_of(check_root(root, process_set), process_set=process_set)
    named = names_of(names, len(wires))
    _submit(named, wires, backs, reduction, result=None, notes_changes=notes_changes, waits=True).wait()


def _submit(
    names: tuple[str, ...],
    wires: list[torch.Tensor],
    backs: list[tuple[torch.Tensor, torch.Tensor]],
    reduction: Reduction,
    *,
    result: T,
    notes_changes: bool = True,
    waits: bool,
) -> Handle[T]:
    """Starts an operation on contiguous `wires`; afterwards copies the second of each pair of `backs` to the first."""
    if reduction.process_set is None:
        handle = _submit_together(names, wires, reduction, result, waits)
        if notes_changes:
            _tensors.note_changed(wires)
    else:
        handle = _submit_each(names, wires, reduction).then(lambda _: result)
    if not backs:
        return handle

    def land(reduced: T) -> T:
        for tensor, wire in backs:
            if notes_changes:
                _tensors.land(wire, tensor)
        return reduced

    return handle.then(land)


def _submit_together(
    names: tuple[str, ...], wires: list[torch.Tensor], reduction: Reduction, result: T, waits: bool
) -> Handle[T]:
    """Starts an operation of all workers on these tensors, in one entry into the engine."""
    kinds = {wire.dtype for wire in wires}
    if len(kinds) == 1 and kinds <= NAMES.keys():
        dtypes = (NAMES[kinds.pop()],) * len(wires)
    else:
        dtypes = tuple([located(name, _tensors.locate, wire).dtype for name, wire in zip(names, wires, strict=True)])
    shapes = tuple([wire.shape for wire in wires])
    addresses = [wire.data_ptr() for wire in wires]
    storages = [wire.untyped_storage() for wire in wires]
    if not all(addresses) or any([storage.nbytes() < wire.nbytes for storage, wire in zip(storages, wires, strict=True)]):
        for name, wire in zip(names, wires, strict=True):  # one has no elements, or its storage was resized
            located(name, _tensors.locate, wire)
    devices, streams = _places(wires)
    used = {device for device in devices if device is not None}
    handle = submit_all(
        names,
        dtypes,
        shapes,
        addresses,
        None,
        reduction,
        owner=storages,
        result=result,
        waits=waits,
        devices=devices,
        streams=streams,
        current=_tensors.CurrentStreams(used) if used else None,
    )

    def landed(reduced: T) -> T:
        if [wire.data_ptr() for wire in wires] != addresses:
            for name, wire, address in zip(names, wires, addresses, strict=True):
                located(name, _tensors.check_unmoved, wire, address)
        return reduced

    return handle.then(landed)


def _submit_each(
    names: tuple[str, ...], wires: list[torch.Tensor], reduction: Reduction
) -> Handle[list[torch.Tensor]]:
    """Starts an operation for each tensor, because tensors that are declared together are those of all workers."""
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InvalidArgumentError(f"{twice!r} comes twice among the names of a group; give each tensor its own")
    for name, wire in zip(names, wires, strict=True):  # before the first is submitted
        located(name, _tensors.locate, wire)

    def start(place: int, name: str, wire: torch.Tensor) -> Handle[torch.Tensor]:
        return _tensors.submit_in_place(wire, name, reduction.at(place))

    return joined(begin_all(partial(start, place, *one) for place, one in enumerate(zip(names, wires, strict=True))))


def _places(wires: list[torch.Tensor]) -> tuple[list[int | None], list[int | None]]:
    """The device of each tensor and the stream that computes it; empty if all are in host memory."""
    if not any([wire.is_cuda for wire in wires]):
        return [], []
    devices = [_tensors.device_of(wire) for wire in wires]
    streams = {device: _tensors.stream_of(device) for device in set(devices) if device is not None}
    return devices, [None if device is None else streams[device] for device in devices]


def _wires(
    names: tuple[str, ...], tensors: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    """The tensor to send for each tensor, itself if possible, and the pairs that are copied back afterwards."""
    strided, kind = torch.strided, torch.Tensor
    # A quick check of all of them first: a check of a small tensor costs as much as everything else done with it.
    plain = [
        _tensors.is_dense(t) for t in tensors if isinstance(t, kind) and (t.is_cpu or t.is_cuda) and t.layout is strided
    ]
    if len(plain) == len(tensors) and all(plain):
        return tensors, []
    wires = [located(name, _wire, tensor) for name, tensor in zip(names, tensors, strict=True)]
    return wires, _landings(names, [(tensor.detach(), wire) for tensor, wire in zip(tensors, wires, strict=True)])


def _landings(
    names: Sequence[str], pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The pairs of a tensor and its wire whose results are copied back, because the wire is a copy."""
    backs = []
    for name, (tensor, wire) in zip(names, pairs, strict=True):
        if located(name, _tensors.address_of, tensor) != wire.data_ptr():
            located(name, _tensors.check_landing, tensor)
            backs.append((tensor, wire))
    return backs


def _wire(tensor: torch.Tensor) -> torch.Tensor:
    _tensors.check_place(tensor)
    return _tensors.dense(tensor)


def _check_in_place(names: tuple[str, ...], tensors: list[torch.Tensor]) -> None:
    # Gradients and copies require no gradient: then a look at each is enough.
    if any([isinstance(t, torch.Tensor) and t.requires_grad for t in tensors]):
        for name, tensor in zip(names, tensors, strict=True):
            located(name, check_in_place, tensor)


def begin_copies(
    waits: bool, tensors: Sequence[torch.Tensor], name: str | Sequence[str], reduction: Reduction
) -> Handle[list[torch.Tensor]]:
    """Begins with copies. The results are part of the graph of `tensors`."""
    tensors = list(tensors)
    names = names_of(name, len(tensors))
    copies = [located(one, copy_of, tensor) for one, tensor in zip(names, tensors, strict=True)]
    differentiable = is_differentiable(tensors, reduction)
    handle = begin_in_place(waits, copies, names, reduction)
    if not differentiable:
        return handle

    def again(positions: list[int], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        return begin_copies(True, gradients, [f"{names[at]}.backward" for at in positions], reduction.among(positions)).wait()

    return handle.then(lambda means: join_graph(means, tensors, again))
