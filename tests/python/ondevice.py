"""PyTorch's tensors over memory of the driver that is not one, so that `gradlane.torch` takes its way for CUDA tensors.

For PyTorch they are tensors on the CPU: it computes at once, after all that is in the current stream by then, as if the
computation were a kernel in that stream. For Gradlane they are on a device, whose memory they really lie in: what they
are made from is moved there as it is made, and freed when PyTorch gives it up, so that the driver refuses whoever still
uses it. What this cannot show: kernels that are still running when a
tensor is submitted or its sum is used (`test_cuda` shows that with arrays), PyTorch's allocator, and its own wrapper,
whose buckets are made where this does not reach.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakecuda import allocate, finish, free, user_stream, wait_in
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

_devices: dict[int, int] = {}
"""The device of each storage, by its address."""


_current: dict[int, int] = {}
"""The current stream of each device."""


def _finish_streams(devices: Iterable[int]) -> None:
    """What a kernel in the current streams of these devices would do before it begins."""
    for device in set(devices):
        finish(_current[device], device)


class _Memory:
    """Memory of a device as PyTorch sees it; freed with the last tensor in it."""

    def __init__(self, size: int, device: int) -> None:
        self.address, self.size = allocate(size, device), size
        _devices[self.address] = device

    def storage(self) -> torch.UntypedStorage:
        kind = type("Content", (ctypes.c_char * self.size,), {"__del__": lambda _: self.free()})
        return torch.frombuffer(kind.from_address(self.address), dtype=torch.uint8).untyped_storage()

    def free(self) -> None:
        del _devices[self.address]
        free(self.address)


def device_of(tensor: torch.Tensor) -> int | None:
    """The device that the tensor lies on; None for the host."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    return _devices.get(tensor.untyped_storage().data_ptr())


def bring(tensor: torch.Tensor, device: int = 0) -> torch.Tensor:
    """Moves a tensor to a device, as it is."""
    before = tensor.untyped_storage()
    if before.nbytes() == 0 or device_of(tensor) is not None:
        return tensor
    after = _Memory(before.nbytes(), device).storage()
    ctypes.memmove(after.data_ptr(), before.data_ptr(), before.nbytes())
    with torch.no_grad():
        tensor.set_(after, tensor.storage_offset(), tensor.shape, tensor.stride())
    return tensor


def bring_module(module: torch.nn.Module, device: int = 0) -> torch.nn.Module:
    """Moves parameters and buffers."""
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = bring(tensor.data, device)
    return module


class _Stream(SimpleNamespace):
    """A stream as PyTorch has it."""

    def __init__(self, cuda_stream: int, device: int) -> None:
        super().__init__(cuda_stream=cuda_stream, device=device)

    def wait_stream(self, other: SimpleNamespace) -> None:
        wait_in(self.cuda_stream, other.cuda_stream, self.device)


class Carry(torch.autograd.Function):
    """What `tensor.to(device)` is there; None is the CPU."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: int | None) -> torch.Tensor:
        ctx.home = device_of(tensor)
        return _copied(tensor, device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _copied(gradient, ctx.home), None


def _copied(tensor: torch.Tensor, device: int | None) -> torch.Tensor:
    _finish_streams([home for home in [device_of(tensor)] if home is not None])
    with _disable_current_modes():
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return copy if device is None else bring(copy, device)


class _Resident(TorchDispatchMode):
    """Whatever is computed from tensors of a device lies on it, and is computed after the work of its current stream."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here. To keep its compiler out of this mode, PyTorch would import it, which takes seconds.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        devices = [device for device in map(device_of, given) if device is not None]
        if not func.is_view:  # a view reads nothing
            _finish_streams(devices)
        result = func(*args, **(kwargs or {}))
        if devices:
            known = {value.untyped_storage().data_ptr() for value in given if value.layout is torch.strided}
            for made in tree_leaves(result):
                is_new = isinstance(made, torch.Tensor) and made.layout is torch.strided
                if is_new and made.untyped_storage().data_ptr() not in known:
                    bring(made, devices[0])
        return result


@contextlib.contextmanager
def cuda_as_far_as_gradlane_sees(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Inside, tensors that were brought to a device, and what is made of them, are CUDA tensors for Gradlane.

    The current stream is what `stream` of the yielded object says, by device; `recorded` are the tensors that PyTorch's
    allocator was told of.
    """
    _current.update({0: user_stream(0), 1: user_stream(1)})
    seen = SimpleNamespace(stream=_current, recorded=[])
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: device_of(tensor) is not None))
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: device_of(tensor))
    host_copy = torch.Tensor.cpu
    monkeypatch.setattr(
        torch.Tensor, "cpu", lambda tensor: host_copy(tensor) if device_of(tensor) is None else _copied(tensor, None)
    )
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, _: seen.recorded.append(tensor.shape))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: _Stream(seen.stream[device], device))
    monkeypatch.setattr(torch.cuda, "ExternalStream", _Stream)
    with _Resident():
        yield seen
