"""Reductions of many tensors in one call: `grouped_push_pull` and its variants, named as the forms for one tensor are.

For many small tensors they cost a fraction of as many calls: one entry into the engine, one handle, one wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from gradlane._groups import located, names_of, submit_all
from gradlane._handle import Handle
from gradlane._operations import check_root
from gradlane._reduction import NativeOp, ReduceOp, resolve
from gradlane.torch import _tensors
from gradlane.torch._tensors import NAMES
from gradlane.torch.compression import Compression, Compressor
from gradlane.torch.ops import copy_of, form_of

T = TypeVar("T")


def _begin(
    waits: bool,
    tensors: Sequence[torch.Tensor],
    name: str | Sequence[str],
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor = Compression.none,
    timeout: float | None = None,
) -> Handle[list[torch.Tensor]]:
    """What the four forms below have in common, and the one list of their arguments."""
    reduction = resolve(op, average, weight)
    tensors = list(tensors)
    names = names_of(name, len(tensors))
    wires, backs = _wires(names, tensors)
    return _submit(
        names,
        wires,
        backs,
        reduction.native,
        result=tensors,
        weight=1.0 if weight is None else weight,
        priority=priority or 0,
        codec=compression.codec,
        timeout=timeout,
        waits=waits,
    )


@form_of(_begin)
def grouped_push_pull(tensors: Sequence[torch.Tensor], name: str | Sequence[str], **options: Any) -> list[torch.Tensor]:
    """Average many tensors over all workers in one call, into new ones.

    They are declared by the first call, where they have not been before, and small neighbours then share messages; so
    reduce together in every round what was reduced together once.

    Args:
        tensors: as for `push_pull`; of any shapes and element types, the same on all workers. They may be on several
            devices; those of one device, or of the host, share messages among themselves.
        name: a name for each, or one for all: tensor number i is then called `name.i`. Equal on all workers.
        op: as for `push_pull`, for all of them; so are `average`, `weight`, `compression` and `timeout`.
        priority: that of the first; each one after it is less urgent by 1.
    Raises:
        MismatchError: a worker used one of the names with another dtype, shape or op (both are named).
        StallError: some workers did not contribute in time (they are named).
        InvalidArgumentError: one of the tensors cannot be reduced, or a name comes twice; nothing was sent then.
        UnsupportedError: one of the tensors is neither on the CPU nor on a CUDA device; nothing was sent then.
    """
    return _begin(True, _copies(tensors, name), name, **options).wait()


@form_of(_begin)
def grouped_push_pull_async(
    tensors: Sequence[torch.Tensor], name: str | Sequence[str], **options: Any
) -> Handle[list[torch.Tensor]]:
    """Starts what `grouped_push_pull` does; `synchronize(handle)` yields the new tensors.

    The handle is done when all of them are. If some fail it raises the error of the first that failed, once none of the
    memory is in use any more; to cancel it cancels all.
    """
    return _begin(False, _copies(tensors, name), name, **options)


@form_of(_begin)
def grouped_push_pull_(
    tensors: Sequence[torch.Tensor], name: str | Sequence[str], **options: Any
) -> list[torch.Tensor]:
    """Average many tensors over all workers in one call, in place. Arguments and errors: see `grouped_push_pull`."""
    return _begin(True, tensors, name, **options).wait()


@form_of(_begin)
def grouped_push_pull_async_(
    tensors: Sequence[torch.Tensor], name: str | Sequence[str], **options: Any
) -> Handle[list[torch.Tensor]]:
    """Starts what `grouped_push_pull_` does; no tensor may be touched until the handle is done."""
    return _begin(False, tensors, name, **options)


def broadcast_all(tensors: Sequence[torch.Tensor], names: Sequence[str], root: int) -> None:
    """Gives every worker the bits of these tensors on `root`, in place; of any element types and strides."""
    bits = [located(name, _tensors.bits, tensor) for name, tensor in zip(names, tensors, strict=True)]
    wires = [wire for wire, _, _ in bits]
    backs = [(tensor, dense) for _, dense, tensor in bits if dense.data_ptr() != tensor.data_ptr()]
    _submit(
        names_of(names, len(wires)), wires, backs, "broadcast", result=None, root=check_root(root), waits=True
    ).wait()


def _submit(
    names: tuple[str, ...],
    wires: list[torch.Tensor],
    backs: list[tuple[torch.Tensor, torch.Tensor]],
    op: NativeOp,
    *,
    result: T,
    **options: Any,
) -> Handle[T]:
    """Starts an operation on contiguous `wires`; afterwards copies the second of each pair of `backs` to the first."""
    kinds = {wire.dtype for wire in wires}
    if len(kinds) == 1 and kinds <= NAMES.keys():
        dtypes = (NAMES[kinds.pop()],) * len(wires)
    else:
        dtypes = tuple([located(name, _tensors.locate, wire).dtype for name, wire in zip(names, wires, strict=True)])
    shapes = tuple([wire.shape for wire in wires])
    addresses = [wire.data_ptr() for wire in wires]
    devices, streams = _places(wires)
    options |= {"devices": devices, "streams": streams}
    handle = submit_all(names, dtypes, shapes, addresses, None, op, owner=wires, result=result, **options)
    if not backs:
        return handle

    def land(reduced: T) -> T:
        for tensor, wire in backs:
            _tensors.land(wire, tensor)
        return reduced

    return handle.then(land)


def _places(wires: list[torch.Tensor]) -> tuple[list[int | None], list[int | None]]:
    """The device of each tensor and the stream it is made in; nothing where all are in host memory."""
    if not any([wire.is_cuda for wire in wires]):
        return [], []
    devices = [_tensors.device_of(wire) for wire in wires]
    streams = {device: _tensors.stream_of(device) for device in set(devices) if device is not None}
    return devices, [None if device is None else streams[device] for device in devices]


def _wires(
    names: tuple[str, ...], tensors: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    """What is sent for each tensor, itself if possible, and what is copied to which afterwards."""
    strided, kind = torch.strided, torch.Tensor
    # All of them at a glance first: a look at a small tensor costs as much as everything else that is done with it.
    plain = [
        t.is_contiguous() for t in tensors if isinstance(t, kind) and (t.is_cpu or t.is_cuda) and t.layout is strided
    ]
    if len(plain) == len(tensors) and all(plain):
        return tensors, []
    wires = [located(name, _wire, tensor) for name, tensor in zip(names, tensors, strict=True)]
    pairs = zip(tensors, wires, strict=True)
    return wires, [(tensor.detach(), wire) for tensor, wire in pairs if tensor.data_ptr() != wire.data_ptr()]


def _wire(tensor: torch.Tensor) -> torch.Tensor:
    _tensors.check_place(tensor)
    return tensor.detach().contiguous()


def _copies(tensors: Sequence[torch.Tensor], name: str | Sequence[str]) -> list[torch.Tensor]:
    tensors = list(tensors)
    return [located(one, copy_of, tensor) for one, tensor in zip(names_of(name, len(tensors)), tensors, strict=True)]
