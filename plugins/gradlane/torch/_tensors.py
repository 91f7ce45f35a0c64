"""Where a PyTorch tensor lies, the short way: no DLPack capsule, and bfloat16 too."""

from __future__ import annotations

import torch

from gradlane._buffers import HostBuffer, check_dtype
from gradlane._handle import Handle
from gradlane._operations import submit
from gradlane._reduction import NativeOp
from gradlane.errors import InvalidArgumentError, UnsupportedError


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def locate(tensor: torch.Tensor) -> HostBuffer:
    """Finds the memory of a contiguous tensor.

    Raises:
        InvalidArgumentError: sparse, not contiguous, or of an element type that cannot be reduced.
        UnsupportedError: not in host memory.
    """
    check_host(tensor)
    if not tensor.is_contiguous():
        raise InvalidArgumentError(
            f"the tensor of shape {list(tensor.shape)} is not contiguous; reduce tensor.contiguous()"
        )
    return HostBuffer(tensor.data_ptr(), check_dtype(dtype_name(tensor.dtype)), tuple(tensor.shape), tensor)


def check_host(tensor: torch.Tensor) -> None:
    """Raises unless `tensor` is a dense tensor in host memory."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(
            f"{type(tensor).__name__} is not a torch.Tensor; gradlane.push_pull takes other buffers"
        )
    if tensor.device.type != "cpu":
        raise UnsupportedError(
            f"the tensor is on {tensor.device}; this version reduces host memory only, use tensor.cpu()"
        )
    if tensor.layout is not torch.strided:
        raise InvalidArgumentError(
            f"a tensor of layout {tensor.layout} cannot be reduced as it is; use to_dense(), or sparse= of the wrappers"
        )


def submit_in_place(
    tensor: torch.Tensor,
    name: str,
    op: NativeOp,
    *,
    root: int = 0,
    weight: float = 1.0,
    priority: int = 0,
    timeout: float | None = None,
    waits: bool = False,
) -> Handle[torch.Tensor]:
    """Starts an operation from and into the memory of a contiguous tensor; `waits` as for `submit`."""
    place = locate(tensor)
    return submit(
        name,
        place,
        place,
        op,
        result=tensor,
        root=root,
        weight=weight,
        priority=priority,
        timeout=timeout,
        waits=waits,
    )


def submit_bits(
    tensor: torch.Tensor, name: str, root: int, *, timeout: float | None = None, waits: bool = False
) -> Handle[torch.Tensor]:
    """Starts the broadcast of a tensor of any element type and strides; the handle yields `tensor`, overwritten."""
    wire, dense, tensor = bits(tensor)
    handle = submit_in_place(wire, name, "broadcast", root=root, timeout=timeout, waits=waits)
    if dense.data_ptr() == tensor.data_ptr():
        return handle.then(lambda _: tensor)
    return handle.then(lambda _: tensor.copy_(dense))


def bits(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How a tensor of any element type and strides is broadcast: what to send, as what it is one, and it, detached.

    A broadcast keeps bits, so what the engine cannot add (bool, complex, int16, float8) travels as uint8. The second is
    contiguous: if it lies elsewhere than the third it is to be copied back.
    """
    check_host(tensor)
    tensor = tensor.detach()
    dense = tensor.contiguous()
    return (dense if is_reducible(dense.dtype) else dense.reshape(-1).view(torch.uint8)), dense, tensor


def is_reducible(dtype: torch.dtype) -> bool:
    """Whether the engine knows the element type."""
    return dtype in NAMES


NAMES = {
    dtype: dtype_name(dtype)
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.int8,
        torch.uint8,
    )
}
"""The element types that the engine knows, and how it calls them."""
