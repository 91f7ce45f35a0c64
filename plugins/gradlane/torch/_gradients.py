"""The gradients of a list of parameters on their way to their average: what the DDP wrapper and the optimizer share.

A *window* is the time from one average to the next; it may span several backward passes. In a window every worker
submits every gradient exactly once, and one byte a parameter that says whether it had one. So whatever branch a
worker's model took, all take part in the same operations and learn the same: nobody waits for a gradient that will not
come.

When a window ends is decided by the user of this class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gradlane import _session
from gradlane._handle import Handle
from gradlane._reduction import ReduceOp
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, UnusedParametersError
from gradlane.torch import _tensors
from gradlane.torch._sparse import SparseTransfer
from gradlane.torch.compression import Compressor
from gradlane.torch.ops import reduce_in_place, wait_all

Priority = Callable[[int, str], int]
"""Maps a parameter's position in the model and its name to a priority; higher goes first."""

SparsePolicy = Literal["allgather", "dense"]

_USED_PRIORITY = 1
_NAMES_SHOWN_MAX = 8


def forward_order(position: int, name: str) -> int:
    """What the next forward pass needs first is most urgent."""
    del name
    return -position


@dataclass(slots=True)
class _Slot:
    """One parameter in the present window."""

    name: str
    parameter: torch.nn.Parameter
    priority: int
    used: bool = False
    transfer: Handle[torch.Tensor] | SparseTransfer | None = None


class Gradients:
    """Averages the gradients of `parameters`, in place. Parameters are referred to by their position in the list."""

    def __init__(
        self,
        namespace: str,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        *,
        op: ReduceOp,
        compression: Compressor,
        sparse: SparsePolicy,
        sparse_parameters: frozenset[int],
        priority: Priority,
        refuse_unused: bool,
    ) -> None:
        """Declares all parameters on all workers.

        Args:
            namespace: goes before each name.
            parameters: names and parameters, in the order in which a forward pass needs them.
            sparse: how sparse gradients are reduced.
            sparse_parameters: positions whose gradients are known to be sparse.
            refuse_unused: whether a parameter without a gradient, on any worker, is an error.
        Raises:
            MismatchError: a worker has one of the parameters in another dtype or shape (both are named).
            InvalidArgumentError: a parameter cannot be reduced.
        """
        if sparse not in ("allgather", "dense"):
            raise InvalidArgumentError(f'sparse={sparse!r} is no policy; use "allgather" or "dense"')
        self._namespace, self._op, self._compression, self._sparse = namespace, op, compression, sparse
        self._refuse_unused = refuse_unused
        self._slots = [_Slot(name, parameter, priority(i, name)) for i, (name, parameter) in enumerate(parameters)]
        self._gathered = {i for i in sparse_parameters if sparse == "allgather"}
        self._failure: Exception | None = None
        dense = [slot for i, slot in enumerate(self._slots) if i not in self._gathered]
        for slot in self._slots:
            _tensors.check_place(slot.parameter)
        _tensors.declare_tensors(_session.session(), map(self._described, dense), fuse=True, timeout=None)

    def mark_used(self, position: int) -> None:
        """Notes that the parameter has a gradient which is not to be sent yet."""
        self._slots[position].used = True

    def submit(self, position: int) -> None:
        """Sends the parameter's gradient on its way, from where it lies.

        Raises:
            FailedPreconditionError: it is on its way already.
        """
        slot = self._slots[position]
        if self._failure is not None:
            raise self._failure
        if slot.transfer is not None:
            raise FailedPreconditionError(
                f"parameter {slot.name} got a gradient while an earlier one is on its way: a module used twice under "
                "reentrant checkpointing (give checkpoint use_reentrant=False), more backward passes than announced, "
                "or a backward pass that failed before"
            )
        slot.used = True
        self._start(position, slot)

    @property
    def all_submitted(self) -> bool:
        """Whether every gradient of this window is on its way."""
        return all(slot.transfer is not None for slot in self._slots)

    @property
    def any_submitted(self) -> bool:
        """Whether a gradient is on its way."""
        return any(slot.transfer is not None for slot in self._slots)

    def finish(self) -> None:
        """Ends the window: submits what was not submitted, or zeros where there is nothing, and lets the averages land.

        A parameter that no worker used keeps its gradient as it was, which may be None.

        Raises:
            UnusedParametersError: if those are refused: some worker had no gradient for some parameter.
            StallError: some workers did not come to the end of their window in time (they are named).
        """
        if self._failure is not None:
            raise self._failure
        try:
            # On the CPU, where it is made and read, whatever devices the parameters are on.
            used = torch.tensor([slot.used for slot in self._slots], dtype=torch.uint8)
            counts = self._wait(used)
        except Exception as error:
            # The workers' windows are out of step now, and no later average could be trusted.
            self._failure = error
            raise
        finally:
            for slot in self._slots:
                slot.used, slot.transfer = False, None
        if self._refuse_unused and not bool(counts.all()):
            raise self._unused(used)

    def _wait(self, used: torch.Tensor) -> torch.Tensor:
        """Completes all transfers.

        Returns:
            For each parameter whether all workers used it, if unused ones are refused; else whether any did.
        """
        for position, slot in enumerate(self._slots):
            if slot.transfer is None:
                self._start(position, slot)
        marks = _tensors.submit_in_place(
            used.clone(), f"{self._namespace}/used", "min" if self._refuse_unused else "max", priority=_USED_PRIORITY
        )
        for slot in self._slots:
            if isinstance(slot.transfer, SparseTransfer):
                slot.transfer.exchange()
        wait_all([slot.transfer for slot in self._slots if isinstance(slot.transfer, Handle)])
        counts = marks.wait()
        for slot, is_used in zip(self._slots, counts.tolist(), strict=True):
            assert slot.transfer is not None, "every slot was started above"
            reduced, gradient = slot.transfer.wait(), slot.parameter.grad
            if is_used and reduced is not gradient:  # else it has landed in place, or nobody wants it
                keeps_dense = gradient is not None and not gradient.is_sparse
                slot.parameter.grad = reduced.to_dense() if keeps_dense else reduced
        return counts

    def _start(self, position: int, slot: _Slot) -> None:
        parameter, name = slot.parameter, f"{self._namespace}/{slot.name}"
        gradient = parameter.grad
        if position in self._gathered or (gradient is not None and gradient.is_sparse and self._sparse == "allgather"):
            slot.transfer = SparseTransfer(_as_sparse(gradient, parameter), name, self._op)
            return
        if gradient is None:
            gradient = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        elif gradient.is_sparse:
            gradient = parameter.grad = gradient.to_dense()
        slot.transfer = reduce_in_place(gradient, name, self._op, priority=slot.priority, compression=self._compression)

    def _described(self, slot: _Slot) -> tuple[str, torch.dtype, torch.Tensor]:
        wire = self._compression.wire_dtype(slot.parameter.dtype)
        return f"{self._namespace}/{slot.name}", wire, slot.parameter

    def _unused(self, used: torch.Tensor) -> UnusedParametersError:
        """Asks all workers, who all come here, which parameters each of them used."""
        marks = torch.zeros((_session.size(), len(self._slots)), dtype=torch.uint8)
        marks[_session.rank()] = used
        _tensors.submit_in_place(marks, f"{self._namespace}/used by rank", "max").wait()
        ranks = {
            slot.name: [rank for rank, mark in enumerate(marks[:, i].tolist()) if not mark]
            for i, slot in enumerate(self._slots)
        }
        unused = {name: without for name, without in ranks.items() if without}
        shown = [f"{name} on rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))}" for name, r in unused.items()]
        more = f" and {len(shown) - _NAMES_SHOWN_MAX} more" if len(shown) > _NAMES_SHOWN_MAX else ""
        return UnusedParametersError(
            f"no gradient for {'; '.join(shown[:_NAMES_SHOWN_MAX])}{more}. If the model is meant to leave parameters "
            "out, use find_unused_parameters=True; else look for outputs that do not reach the loss",
            parameters=unused,
        )


def _as_sparse(gradient: torch.Tensor | None, parameter: torch.nn.Parameter) -> torch.Tensor:
    if gradient is None:
        return torch.sparse_coo_tensor(
            torch.empty((1, 0), dtype=torch.int64, device=parameter.device),
            torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device),
            parameter.shape,
        )
    # A weight that is shared by a sparse embedding and a dense layer gets a dense gradient.
    return gradient if gradient.is_sparse else gradient.to_sparse(1)
