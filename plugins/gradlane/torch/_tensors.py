"""Finds the memory of a PyTorch tensor without a DLPack capsule, for bfloat16 too.

The engine reads a tensor on a CUDA device after the work so far of the calling thread's current stream. That is the
stream that computed the tensor, also in autograd's hooks, which run under the stream of their backward pass. Waiting
for a handle makes the current stream of the waiting thread wait for the result. The storage of the tensor is held until
the host has seen the result land, so its allocator need not know the engine's streams.

A tensor can get another storage (`set_`, `.data =`), and then the engine still has the old one. A storage can move its
memory (`resize_`, `share_memory_`), which nothing here can prevent; then the handle raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from gradlane import _core, _session
from gradlane._buffers import ITEM_BYTES, Buffer, DeviceBuffer, HostBuffer, check_dtype
from gradlane._groups import located
from gradlane._handle import Handle
from gradlane._operations import by_device, declare_places, submit
from gradlane._reduction import Reduction
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def locate(tensor: torch.Tensor) -> Buffer:
    """Finds the memory of a contiguous tensor.

    Raises:
        InvalidArgumentError: sparse, not contiguous, or of an element type that cannot be reduced.
        UnsupportedError: neither in host memory nor on a CUDA device.
    """
    check_place(tensor)
    if not tensor.is_contiguous():
        raise InvalidArgumentError(
            f"the tensor of shape {list(tensor.shape)} is not contiguous; reduce tensor.contiguous()"
        )
    dtype, shape = check_dtype(dtype_name(tensor.dtype)), tuple(tensor.shape)
    address, storage = address_of(tensor), tensor.untyped_storage()
    if tensor.storage_offset() * tensor.itemsize + tensor.nbytes > storage.nbytes() or (tensor.nbytes and not address):
        raise _no_memory(tensor)
    device = device_of(tensor)
    if device is None:
        return HostBuffer(address, dtype, shape, storage)
    return DeviceBuffer(address, dtype, shape, storage, device, stream_of(device))


def address_of(tensor: torch.Tensor) -> int:
    """Where the elements of a tensor lie.

    Raises:
        InvalidArgumentError: it stands for other tensors, as inside of `torch.func`.
    """
    try:
        address: int = tensor.data_ptr()
    except RuntimeError as error:
        raise _no_memory(tensor) from error
    return address


def check_unmoved(tensor: torch.Tensor, address: int) -> None:
    """Raises if the memory of a tensor is not where it was lent to the engine.

    Raises:
        FailedPreconditionError: it was freed or moved meanwhile.
    """
    if tensor.data_ptr() != address:
        raise FailedPreconditionError(
            f"the memory of the tensor of shape {list(tensor.shape)} was freed or replaced while it was reduced, so its "
            "values are undefined; wait for the handle before resize_(), set_(), share_memory_() or an assignment to "
            ".data"
        )


def check_landing(tensor: torch.Tensor) -> None:
    """Raises if a result cannot be copied into a tensor that is not dense.

    Raises:
        InvalidArgumentError: some of its elements share memory, as those of `expand()` do.
    """
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise InvalidArgumentError(
            f"elements of the tensor of shape {list(tensor.shape)} share memory, as after expand(), so it has no place "
            "for a result; give tensor.clone()"
        )


def _no_memory(tensor: torch.Tensor) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{type(tensor).__name__} of shape {list(tensor.shape)} has no memory for that shape: its storage was resized, or "
        "it stands for other tensors; reduce those, or a tensor.clone() from before"
    )


def check_place(tensor: torch.Tensor) -> None:
    """Raises unless `tensor` is a dense tensor in host memory or on a CUDA device."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(
            f"{type(tensor).__name__} is not a torch.Tensor; gradlane.push_pull takes other buffers"
        )
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        raise InvalidArgumentError(
            "a parameter of a lazy module has no shape before the first forward pass; run one on every worker before "
            "the model is wrapped or broadcast"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"the tensor is on {tensor.device}; tensors on the CPU and on CUDA devices are reduced, use tensor.cpu()"
        )
    if tensor.layout is not torch.strided:
        raise InvalidArgumentError(
            f"a tensor of layout {tensor.layout} cannot be reduced as it is; use to_dense(), or sparse= of the wrappers"
        )


def check_place_of(name: str, tensor: torch.Tensor) -> None:
    """The same for the tensor `name`, which is named in errors."""
    located(name, check_place, tensor)


def device_of(tensor: torch.Tensor) -> int | None:
    """The ordinal of the CUDA device that `tensor` is on; None for host memory."""
    return tensor.get_device() if tensor.is_cuda else None


def stream_of(device: int) -> int:
    """The handle of this thread's current stream."""
    handle: int = torch.cuda.current_stream(device).cuda_stream
    return handle


class CurrentStreams:
    """The current streams of the calling thread on some devices; see `gradlane._handle.Streams`."""

    __slots__ = ("_devices",)

    def __init__(self, devices: Iterable[int]) -> None:
        """Of these devices."""
        self._devices = tuple(devices)

    def current(self) -> list[tuple[int, int]]:
        """The handle of each device's current stream."""
        return [(device, stream_of(device)) for device in self._devices]

    def join(self, now: list[tuple[int, int]], before: list[tuple[int, int]]) -> None:
        """Makes streams wait for those that finished the result, where these are others."""
        for (device, stream), (_, finished) in zip(now, before, strict=True):
            if stream != finished:
                torch.cuda.ExternalStream(stream, device).wait_stream(torch.cuda.ExternalStream(finished, device))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the memory of `tensor` holds its values one after the other.

    Some views, such as `z.conj().imag`, only note that their values are the negatives of what is in memory.
    """
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


Kind = tuple[torch.dtype, torch.Size, torch.device]
"""Element type, shape and device of a tensor."""


def kind_of(tensor: torch.Tensor) -> Kind:
    """Element type, shape and device of `tensor`."""
    return tensor.dtype, tensor.shape, tensor.device


def check_kind(tensor: torch.Tensor, declared: Kind, name: str) -> None:
    """Raises if the gradient of a parameter, or a parameter without one, is not what was declared on all workers.

    Raises:
        InvalidArgumentError: the parameter was changed, for example by `model.half()`; the message says how.
    """
    if (now := kind_of(tensor)) != declared:
        before, after = (f"{dtype_name(dtype)} {list(shape)} on {device}" for dtype, shape, device in (declared, now))
        raise InvalidArgumentError(
            f"the gradient of {name} would be {after}, but the workers agreed on {before}; call half(), to() and what else "
            "changes parameters before the model or its optimizer is wrapped, or wrap it again"
        )


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements have the same memory, as those of `expand()` do."""
    return not tensor.is_contiguous() and any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without its history, or a copy if it is not dense."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def pairs(tensor: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    """A complex tensor as pairs of real numbers in the same memory, which add up as it does; any other as it is.

    Raises:
        InvalidArgumentError: it is a minimum or a maximum, and complex numbers have no order.
    """
    if not tensor.is_complex():
        return tensor
    if reduction.op in ("min", "max"):
        raise InvalidArgumentError(
            f"complex numbers have no {reduction.op}; reduce torch.view_as_real(tensor), or abs()"
        )
    return torch.view_as_real(tensor)


def wire_form(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """The element type and shape with which a tensor is declared: those of `pairs`."""
    if tensor.is_complex():
        return dtype_name(tensor.dtype.to_real()), (*tensor.shape, 2)
    return dtype_name(tensor.dtype), tuple(tensor.shape)


def land(reduced: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies a result into `tensor`, in the current stream of its device."""
    tensor.copy_(reduced)
    if reduced.is_cuda:
        # Unlike the engine's copies, this one may still run when `reduced` is freed, and its memory belongs to the
        # stream in which it was allocated. Does nothing if that is this stream.
        reduced.record_stream(torch.cuda.current_stream(reduced.get_device()))


def declare_tensors(
    session: _core.Session,
    named: Iterable[tuple[str, torch.Tensor]],
    *,
    codec: str = "none",
    fuse: bool,
    timeout: float | None,
) -> None:
    """Declares names with the element types and shapes of tensors, in one call for each device and for the host."""
    for group in by_device(named, lambda member: device_of(member[1])):
        places = ((name, *wire_form(tensor)) for name, tensor in group)
        declare_places(session, places, codec=codec, fuse=fuse, timeout=timeout)


def declare_encoded(session: _core.Session, named: Iterable[tuple[str, torch.Tensor, str]]) -> None:
    """Declares names with tensors and their codecs, in one call for each codec and device; small ones may share messages."""
    groups: dict[str, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor, codec in named:
        groups.setdefault(codec, []).append((name, tensor))
    for codec, group in groups.items():
        declare_tensors(session, group, codec=codec, fuse=True, timeout=None)


def submit_in_place(
    tensor: torch.Tensor, name: str, reduction: Reduction, *, waits: bool = False
) -> Handle[torch.Tensor]:
    """Starts an operation from and into the memory of a contiguous tensor; the arguments are those of `submit`.

    In a process set, a tensor on a device is copied to the host and back, because the devices of a machine have one
    communicator, of all its workers.
    """
    wire = tensor if reduction.process_set is None else in_host_memory(tensor)
    place = locate(wire)
    streams = None if place.device is None else CurrentStreams([place.device])
    handle = submit(name, place, place, reduction, result=wire, waits=waits, streams=streams)
    if reduction.receiver in (None, _session.rank()):
        note_changed([tensor])

    def back(reduced: torch.Tensor) -> torch.Tensor:
        check_unmoved(reduced, place.address)
        if wire is not tensor:
            land(reduced, tensor.detach())
        return tensor

    return handle.then(back)


def in_host_memory(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a copy of one that is on a device."""
    return tensor.cpu() if tensor.is_cuda else tensor


def note_changed(tensors: Iterable[torch.Tensor]) -> None:
    """Tells autograd that an operation in place changes these tensors: what it has saved of them is not what it was."""
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def submit_bits(
    tensor: torch.Tensor, name: str, reduction: Reduction, *, waits: bool = False
) -> Handle[torch.Tensor]:
    """Starts the broadcast of a tensor of any element type and strides; the handle yields `tensor`, overwritten.

    On the root it is only read.
    """
    wire, source, tensor = bits(tensor)
    is_copy = source.data_ptr() != tensor.data_ptr() and _session.rank() != reduction.root
    if is_copy:
        check_landing(tensor)
    handle = submit_in_place(wire, name, reduction, waits=waits)
    if not is_copy:
        return handle.then(lambda _: tensor)

    def back(_: torch.Tensor) -> torch.Tensor:
        land(source, tensor)
        return tensor

    return handle.then(back)


def bits(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prepares the broadcast of a tensor of any element type and strides: the tensor to send, its source, and `tensor`.

    A broadcast keeps bits, so types that the engine cannot add (bool, complex, int16, float8) travel as uint8. The
    source is contiguous. If it is a copy of `tensor`, which is returned detached, the caller must copy it back.
    """
    check_place(tensor)
    tensor = tensor.detach()
    source = dense(tensor)
    return (source if is_reducible(source.dtype) else vector(source).view(torch.uint8)), source, tensor


def vector(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as a vector over its memory. The step of a single element may be any number, and is 1 here."""
    return tensor.as_strided((tensor.numel(),), (1,))


def is_reducible(dtype: torch.dtype) -> bool:
    """Whether the engine supports the element type."""
    return dtype in NAMES


NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in ITEM_BYTES}
"""The element types that the engine supports, and their names there."""
