"""Reductions of tensors: `push_pull` and its variants, also under BytePS's names.

Variants with a trailing underscore (BytePS: `_inplace`) work in place. Non-contiguous tensors are copied and copied
back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from gradlane import _session
from gradlane._handle import Handle
from gradlane._operations import check_name, check_root
from gradlane._reduction import Average, ReduceOp, Sum, resolve
from gradlane.errors import InvalidArgumentError
from gradlane.torch import _tensors
from gradlane.torch.compression import Compression, Compressor

T = TypeVar("T")
P = ParamSpec("P")


def _begin(
    waits: bool,
    tensor: torch.Tensor,
    name: str,
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor = Compression.none,
    timeout: float | None = None,
    version: int = 0,
) -> Handle[torch.Tensor]:
    """The common part of the four forms below, and the list of their arguments."""
    del version
    reduction = resolve(op, average, weight)
    return reduce_in_place(
        tensor,
        check_name(name),
        reduction,
        weight=1.0 if weight is None else weight,
        priority=priority or 0,
        compression=compression,
        timeout=timeout,
        waits=waits,
    )


def form_of(model: Callable[Concatenate[bool, P], Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Gives a function the arguments of `model` after its first, for readers and for type checkers."""
    signature = inspect.signature(model)
    _, *parameters = signature.parameters.values()

    def shape(form: Callable[..., T]) -> Callable[P, T]:
        returned = inspect.signature(form).return_annotation
        form.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=returned
        )
        return form

    return shape


@form_of(_begin)
def push_pull(tensor: torch.Tensor, name: str, **options: Any) -> torch.Tensor:
    """Average `tensor` over all workers into a new tensor. Differentiable: the gradient is reduced the same way.

    Args:
        tensor: any shape; float16, bfloat16, float32, float64, int32, int64, int8 or uint8; on one CUDA device or the
            CPU. On a device it is read after the work so far of its current stream.
        name: equal on all workers; its first use fixes dtype and shape.
        op: `Average` (default), `Sum`, `Min`, `Max` or `WeightedAverage`; equal on all workers.
        average: BytePS's form of `op`: True for `Average`, False for `Sum`.
        weight: this worker's weight in a `WeightedAverage`.
        priority: higher goes first; only the order matters.
        compression: the element type on the wire; equal on all workers and fixed with dtype and shape.
        timeout: seconds for the whole operation; None takes the job's step timeout.
        version: accepted for BytePS scripts; the engine counts rounds itself.
    Raises:
        MismatchError: a worker used `name` with another dtype, shape or op (both are named).
        StallError: some workers did not contribute in time (they are named).
        UnsupportedError: the tensor is neither on the CPU nor on a CUDA device.
        UnavailableError: it is on a CUDA device, and no driver was found; the message says where it was searched.
        FailedPreconditionError: its stream is being captured into a graph; reduce outside of graphs.
        DeviceError: the device failed.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        reduction = resolve(*(options.get(option) for option in ("op", "average", "weight")))
        if reduction not in (Average, Sum):
            raise InvalidArgumentError(f"op={reduction.name} has no gradient; use tensor.detach(), or Average or Sum")
        result: torch.Tensor = _PushPull.apply(tensor, name, options)  # type: ignore[no-untyped-call]
        return result
    return _begin(True, copy_of(tensor), name, **options).wait()


@form_of(_begin)
def push_pull_async(tensor: torch.Tensor, name: str, **options: Any) -> Handle[torch.Tensor]:
    """Like `push_pull`, but not differentiable, and returns at once; `synchronize(handle)` yields the new tensor."""
    return _begin(False, copy_of(tensor), name, **options)


@form_of(_begin)
def push_pull_(tensor: torch.Tensor, name: str, **options: Any) -> torch.Tensor:
    """Average `tensor` over all workers, in place. Arguments and errors are those of `push_pull`."""
    return _begin(True, tensor, name, **options).wait()


@form_of(_begin)
def push_pull_async_(tensor: torch.Tensor, name: str, **options: Any) -> Handle[torch.Tensor]:
    """Like `push_pull_`, but returns at once. Do not use `tensor` until the handle is done."""
    return _begin(False, tensor, name, **options)


push_pull_inplace = push_pull_
push_pull_async_inplace = push_pull_async_


def broadcast_(
    tensor: torch.Tensor, root_rank: int = 0, name: str = "broadcast", *, timeout: float | None = None
) -> torch.Tensor:
    """Give every worker the bits of `tensor` on `root_rank`, in place; any element type."""
    return _tensors.submit_bits(tensor, check_name(name), check_root(root_rank), timeout=timeout, waits=True).wait()


def poll(handle: Handle[Any]) -> bool:
    """Whether the operation has ended; `synchronize` then returns at once."""
    return handle.poll()


def synchronize(handle: Handle[T]) -> T:
    """Waits for an operation and returns its result."""
    return handle.wait()


def declare(tensors: str | Mapping[str, torch.Tensor], *, fuse: bool = True, timeout: float | None = None) -> None:
    """Fix dtype and shape of several names ahead of their first use; see `gradlane.declare`."""
    session = _session.session()
    if not isinstance(tensors, str):
        _tensors.declare_tensors(session, tensors.items(), fuse=fuse, timeout=timeout)


def reduce_in_place(
    tensor: torch.Tensor,
    name: str,
    op: ReduceOp,
    *,
    weight: float = 1.0,
    priority: int = 0,
    compression: Compressor = Compression.none,
    timeout: float | None = None,
    waits: bool = False,
) -> Handle[torch.Tensor]:
    """Starts a reduction whose result replaces `tensor`, without a copy if it is contiguous.

    With `waits` the caller waits for it next.
    """
    _tensors.check_place(tensor)
    plain = tensor.detach()
    handle = _tensors.submit_in_place(
        plain.contiguous(),
        name,
        op.native,
        weight=weight,
        priority=priority,
        codec=compression.codec,
        timeout=timeout,
        waits=waits,
    )

    def land(reduced: torch.Tensor) -> torch.Tensor:
        if reduced is not plain:
            _tensors.land(reduced, plain)
        return tensor

    return handle.then(land)


def wait_all(handles: Sequence[Handle[T]]) -> list[T]:
    """Waits for every handle and only then raises the first error, so that no memory is in use afterwards."""
    results: list[T] = []
    first: BaseException | None = None
    for handle in handles:
        try:
            results.append(handle.wait())
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
    return results


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a tensor, on the same device and without its history."""
    _tensors.check_place(tensor)
    return tensor.detach().clone(memory_format=torch.contiguous_format)


class _PushPull(torch.autograd.Function):
    """The gradient of a mean (or sum) over workers is the mean (or sum) of their gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str, options: dict[str, Any]) -> torch.Tensor:
        ctx.arguments = (f"{name}.backward", options)
        return _begin(True, copy_of(tensor), name, **options).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        name, options = ctx.arguments
        return _begin(True, copy_of(gradient), name, **options).wait(), None, None
