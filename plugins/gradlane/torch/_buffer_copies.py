"""Copies the buffers of a module from one worker to the others before a forward pass, in as few messages as possible.

A model has hundreds of small buffers, and each one that travels by itself costs more than its bytes. So those in host
memory are packed into one array, as PyTorch's wrapper packs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch

from gradlane import _session
from gradlane.torch import _tensors
from gradlane.torch._aliases import without_aliases
from gradlane.torch.groups import broadcast_all

_PACKED_BYTES_MAX = 1 << 20
"""The largest buffer that is packed. A larger one is sent from its own memory."""

_ALIGNMENT = 16


class BufferCopies:
    """The buffers of one module."""

    def __init__(self, prefix: str) -> None:
        """Names tensors `prefix` and the name of the buffer."""
        self._prefix = prefix
        self._plan: _Plan | None = None

    def __getstate__(self) -> dict[str, object]:
        """The state of a copy, which has other buffers."""
        return {**self.__dict__, "_plan": None}

    def copy(
        self, buffers: Mapping[str, torch.Tensor], root_rank: int, unsaved: Callable[[], Collection[str]]
    ) -> None:
        """Gives every worker the buffers of `root_rank`, while backward passes of earlier forward passes may be outstanding.

        Autograd refuses to go back through an operation if a tensor that it saved was written since. So the buffers of the
        root are not written, and those of the other workers only if their bits differ. (On a device, finding that out would
        make the host wait, so there all are written.)

        Args:
            buffers: by name, the same names on all workers.
            unsaved: returns the names of buffers that a backward pass does not need. Autograd does not hear that they were
                written.
        Raises:
            InvalidArgumentError: two buffers overlap (both are named), or one cannot be sent.
            MismatchError: the buffers of the workers differ in element type or size.
        """
        plan, self._plan = self._plan, None  # not kept after an error: the engine may still use the packed array
        if plan is None or not plan.fits(buffers):
            plan = _Plan(buffers, self._prefix)
        changed = plan.exchange(root_rank)
        if changed:
            kept = unsaved()
            with torch.no_grad():
                for name, received in changed:
                    (buffers[name].data if name in kept else buffers[name]).copy_(received)
        self._plan = plan


class _Plan:
    """What is packed where, as long as the buffers are the same tensors in the same memory."""

    def __init__(self, buffers: Mapping[str, torch.Tensor], prefix: str) -> None:
        self._places = [_place(tensor) for tensor in buffers.values()]
        self._tensors = list(buffers.values())
        distinct, _ = without_aliases({prefix + name: tensor for name, tensor in buffers.items()})
        self._alone = {name: tensor for name, tensor in distinct.items() if not _is_packed(tensor)}
        packed = {name: tensor for name, tensor in distinct.items() if name not in self._alone}
        starts, end = [], 0
        for tensor in packed.values():
            starts.append(end)
            end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._prefix, self._packed = prefix, packed
        # Memory of Python's own, because it copies and compares bytes without the threads of PyTorch, whose meetings take
        # longer than the work where processes share cores.
        self._bytes = bytearray(end)
        self._array = torch.frombuffer(self._bytes, dtype=torch.uint8) if end else torch.empty(0, dtype=torch.uint8)
        self._parts = [slice(start, start + tensor.nbytes) for start, tensor in zip(starts, packed.values(), strict=True)]
        self._views = [
            self._array[part].view(tensor.dtype).view(tensor.shape)
            for part, tensor in zip(self._parts, packed.values(), strict=True)
        ]

    def fits(self, buffers: Mapping[str, torch.Tensor]) -> bool:
        """Whether these are the buffers of this plan."""
        return (
            len(buffers) == len(self._tensors)
            and all(mine is other for mine, other in zip(self._tensors, buffers.values(), strict=True))
            and all(mine == _place(other) for mine, other in zip(self._places, buffers.values(), strict=True))
        )

    def exchange(self, root_rank: int) -> list[tuple[str, torch.Tensor]]:
        """Sends or receives all buffers. Returns what the buffers have to become, with their names, where it differs."""
        wires = dict(self._alone)
        if self._packed:
            with torch.no_grad():
                torch._foreach_copy_(self._views, [tensor.detach() for tensor in self._packed.values()])
            wires[f"{self._prefix}{len(self._packed)} small buffers"] = self._array
        if _session.rank() == root_rank:
            broadcast_all(list(wires.values()), list(wires), root_rank, notes_changes=False)
            return []
        own = bytes(self._bytes)
        copies = {name: _tensors.dense(tensor).clone() for name, tensor in self._alone.items()}
        broadcast_all(list((wires | copies).values()), list(wires), root_rank)
        changed = [
            (name, copy) for name, copy in copies.items() if copy.is_cuda or not _have_equal_bits(self._alone[name], copy)
        ]
        if own != self._bytes:
            changed += [
                (name, view)
                for name, view, part in zip(self._packed, self._views, self._parts, strict=True)
                if own[part] != self._bytes[part]
            ]
        return [(name.removeprefix(self._prefix), received) for name, received in changed]


def _is_packed(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and 0 < tensor.nbytes <= _PACKED_BYTES_MAX and not tensor.is_quantized


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """What changes if a tensor gets other memory, another shape or another type."""
    if tensor.layout is not torch.strided:
        return (None,)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _have_equal_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Also of NaN and of -0.0, which are not equal to themselves and to 0.0."""
    sides = (_tensors.dense(tensor).reshape(-1).view(torch.uint8) for tensor in (first, second))
    return torch.equal(*sides)
