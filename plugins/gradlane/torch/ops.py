"""Reductions of tensors: `push_pull` and its variants, also under BytePS's names.

Variants with a trailing underscore (BytePS: `_inplace`) work in place. Non-contiguous tensors are copied and copied
back.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import torch

from gradlane import _session
from gradlane._arguments import check_count, check_timeout
from gradlane._choice import codec_of_call
from gradlane._groups import located
from gradlane._handle import Handle
from gradlane._operations import check_name, check_root
from gradlane._reduction import AVERAGE, ReduceOp, Reduction, broadcast_of, reduction_of
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError
from gradlane.torch import _tensors
from gradlane.torch.compression import Compressor

T = TypeVar("T")
P = ParamSpec("P")


def _asked(
    tensor: torch.Tensor,
    name: str,
    *,
    op: ReduceOp | None = None,
    average: bool | None = None,
    weight: float | None = None,
    priority: int | None = None,
    compression: Compressor | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
    version: int = 0,
) -> Reduction:
    """The list of the arguments of the four forms below, and the reduction that they ask for."""
    del tensor, name, version
    return reduction_of(op, average, weight, priority, compression, process_set, timeout)


def begin_in_place(waits: bool, tensor: torch.Tensor, name: str, reduction: Reduction) -> Handle[torch.Tensor]:
    """Begins in place. A tensor that autograd has computed is refused."""
    check_in_place(tensor)
    return reduce_in_place(tensor, check_name(name), reduction, waits=waits)


def begin_copy(waits: bool, tensor: torch.Tensor, name: str, reduction: Reduction) -> Handle[torch.Tensor]:
    """Begins with a copy. The result is part of the graph of `tensor`."""
    copy = copy_of(tensor)
    differentiable = is_differentiable([tensor], reduction)
    handle = begin_in_place(waits, copy, name, reduction)
    if not differentiable:
        return handle

    def again(_: list[int], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        return [begin_copy(True, gradient, f"{name}.backward", reduction).wait() for gradient in gradients]

    return handle.then(lambda mean: join_graph([mean], [tensor], again)[0])


def form_of(model: Callable[P, Reduction]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Gives a function the arguments of `model`, for readers and for type checkers."""
    signature = inspect.signature(model)
    parameters = list(signature.parameters.values())
    known = {parameter.name for parameter in parameters}
    by_position = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    def shape(form: Callable[..., T]) -> Callable[P, T]:
        @functools.wraps(form)
        def checked(*positional: Any, **options: Any) -> T:
            check_count(form.__name__, by_position, len(positional))
            unknown = options.keys() - known
            if unknown:
                raise TypeError(
                    f"{form.__name__}() got an unexpected keyword argument {min(unknown)!r}; it takes "
                    f"{', '.join(parameter.name for parameter in parameters)}"
                )
            return form(*positional, **options)

        returned = inspect.signature(form).return_annotation
        checked.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=returned
        )
        return checked

    return shape


@form_of(_asked)
def push_pull(tensor: torch.Tensor, name: str, **options: Any) -> torch.Tensor:
    """Average `tensor` over all workers into a new tensor. Differentiable: the gradient is reduced the same way.

    On a device it returns when the current stream waits for the result, which is before the result is there. Whatever
    the caller puts into that stream, or copies to the host, sees the result.

    Args:
        tensor: any shape; float16, bfloat16, float32, float64, int32, int64, int8, uint8 or a complex type; on one CUDA
            device or the CPU. On a device it is read after the work so far of its current stream.
        name: equal on all workers; its first use fixes dtype and shape.
        op: `Average` (default), `Sum`, `Min`, `Max` or `WeightedAverage`; equal on all workers.
        average: BytePS's form of `op`: True for `Average`, False for `Sum`.
        weight: this worker's weight in a `WeightedAverage`.
        priority: higher goes first; only the order matters.
        compression: how the tensor travels, one of `Compression`; None takes the setting `compression`. Equal on all
            workers and fixed with dtype and shape.
        process_set: the workers that take part, of which this one is a member; all by default. A tensor on a device
            then goes through host memory.
        timeout: seconds for the whole operation; None takes the job's step timeout. That ends a wait for other workers
            also if `timeout` is longer, because it is a matter of the whole job.
        version: accepted for BytePS scripts; the engine counts rounds itself.
    Raises:
        MismatchError: a worker used `name` with another dtype, shape or op (both are named).
        StallError: some workers did not contribute in time (they are named).
        InvalidArgumentError: the tensor cannot be reduced, or this worker is not in `process_set`.
        UnsupportedError: the tensor is neither on the CPU nor on a CUDA device.
        UnavailableError: it is on a CUDA device, and no driver was found; the message says where it was searched.
        FailedPreconditionError: its stream is being captured into a graph; reduce outside of graphs.
        DeviceError: the device failed; perhaps in an earlier operation (its tensor is named).
    """
    return begin_copy(True, tensor, name, _asked(tensor, name, **options)).wait()


@form_of(_asked)
def push_pull_async(tensor: torch.Tensor, name: str, **options: Any) -> Handle[torch.Tensor]:
    """Like `push_pull`, but returns at once; `handle.wait()` yields the new tensor, as does `synchronize(handle)`."""
    return begin_copy(False, tensor, name, _asked(tensor, name, **options))


@form_of(_asked)
def push_pull_(tensor: torch.Tensor, name: str, **options: Any) -> torch.Tensor:
    """Average `tensor` over all workers, in place. Arguments and errors are those of `push_pull`.

    A tensor that autograd has computed is refused, because its graph would not know of the new values. Use `push_pull`.
    """
    return begin_in_place(True, tensor, name, _asked(tensor, name, **options)).wait()


@form_of(_asked)
def push_pull_async_(tensor: torch.Tensor, name: str, **options: Any) -> Handle[torch.Tensor]:
    """Like `push_pull_`, but returns at once. Do not use `tensor` before `handle.wait()` or `synchronize(handle)`."""
    return begin_in_place(False, tensor, name, _asked(tensor, name, **options))


push_pull_inplace = push_pull_
push_pull_async_inplace = push_pull_async_


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str = "broadcast",
    *,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> torch.Tensor:
    """Give every worker, or every member of `process_set`, the bits of `tensor` on `root_rank`, in place.

    Any element type. `root_rank` is a rank in the job, also with a `process_set`.
    """
    check_in_place(tensor)
    reduction = broadcast_of(check_root(root_rank, process_set), process_set=process_set, timeout=timeout)
    return _tensors.submit_bits(tensor, check_name(name), reduction, waits=True).wait()


def poll(handle: Handle[Any]) -> bool:
    """Whether the operation has ended; `synchronize` then returns at once."""
    return handle.poll()


@overload
def synchronize(handle: Handle[T], *, timeout: float | None = None) -> T: ...
@overload
def synchronize(handle: None = None, *, timeout: float | None = None) -> None: ...
def synchronize(handle: Handle[T] | None = None, *, timeout: float | None = None) -> T | None:
    """Waits until an operation has ended and returns its result; without a handle, until all have that streams wait for.

    Training on devices needs neither: `handle.wait()` and the wrappers make the current stream wait. Call it without a
    handle before a script trusts what it has on a device for good, such as before it saves a checkpoint.

    Args:
        handle: what an `_async` form has returned.
        timeout: seconds; None waits until the operation ends, which the job's step timeout bounds.
    Raises:
        Error: what the operation failed with; without a handle, the first error that no other call has raised.
    """
    if handle is not None:
        return handle.synchronize(timeout)
    session = _session.session()
    check_timeout(timeout)
    session.settle(timeout)
    return None


def declare(
    tensors: str | Mapping[str, torch.Tensor],
    *,
    compression: Compressor | None = None,
    fuse: bool = True,
    timeout: float | None = None,
) -> None:
    """Fix dtype and shape of several names ahead of their first use; see `gradlane.declare`."""
    session = _session.session()
    codec = codec_of_call(compression)
    if not isinstance(tensors, str):
        for name, tensor in tensors.items():
            located(name, _tensors.check_place, tensor)
        _tensors.declare_tensors(session, tensors.items(), codec=codec, fuse=fuse, timeout=timeout)


def reduce_in_place(
    tensor: torch.Tensor, name: str, reduction: Reduction, *, waits: bool = False
) -> Handle[torch.Tensor]:
    """Starts a reduction whose result replaces `tensor`, without a copy if it is contiguous.

    With `waits` the caller waits for it next.
    """
    _tensors.check_place(tensor)
    plain = tensor.detach()
    wire, place = _tensors.dense(plain), _tensors.address_of(plain)
    is_copy = wire.data_ptr() != place
    if is_copy:
        _tensors.check_landing(plain)
    handle = _tensors.submit_in_place(_tensors.pairs(wire, reduction), name, reduction, waits=waits)

    def land(_: torch.Tensor) -> torch.Tensor:
        _tensors.check_unmoved(tensor, place)
        if is_copy:
            _tensors.land(wire, plain)
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


def check_in_place(tensor: torch.Tensor) -> None:
    """Raises if an operation in place would change the values of `tensor` without its graph."""
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf and torch.is_grad_enabled():
        raise InvalidArgumentError(
            f"autograd has computed the tensor of shape {list(tensor.shape)}, and its graph would not know of an "
            "operation in place; use push_pull, or tensor.detach()"
        )


def is_differentiable(tensors: Sequence[torch.Tensor], reduction: Reduction = AVERAGE) -> bool:
    """Whether the reduction of `tensors` is to be part of their graph.

    Raises:
        InvalidArgumentError: it is, and the operation has no gradient.
    """
    if not torch.is_grad_enabled() or not any([tensor.requires_grad for tensor in tensors]):
        return False
    if not reduction.is_linear:
        name = ReduceOp(reduction.op).name
        raise InvalidArgumentError(f"op={name} has no gradient; use tensor.detach(), or Average or Sum")
    return True


def join_graph(reduced: list[torch.Tensor], tensors: Sequence[torch.Tensor], again: Again) -> list[torch.Tensor]:
    """Makes the means (or sums) of `tensors` part of their graph; `again` reduces gradients in the same way."""
    with torch.enable_grad():  # whoever waits for a handle may do so under no_grad()
        return list(_Reduction.apply(reduced, again, *tensors))


Again = Callable[[list[int], list[torch.Tensor]], Sequence[torch.Tensor]]
"""Reduces the gradients of the tensors at these positions."""


class _Reduction(torch.autograd.Function):
    """The gradient of a mean (or sum) over workers is the mean (or sum) of their gradients."""

    @staticmethod
    def forward(
        ctx: Any, reduced: list[torch.Tensor], again: Again, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.again = again
        ctx.mark_non_differentiable(
            *[mean for mean, tensor in zip(reduced, tensors, strict=True) if not tensor.requires_grad]
        )
        return tuple(reduced)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        needed = [at for at, need in enumerate(ctx.needs_input_grad[2:]) if need]
        means = dict(zip(needed, ctx.again(needed, [gradients[at] for at in needed]), strict=True))
        return None, None, *[means.get(at) for at in range(len(gradients))]
