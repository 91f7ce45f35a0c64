"""Where a worker's tensors lie: on a GPU, on the stand-in of the CUDA driver, or in host memory.

On the stand-in PyTorch computes on the CPU, in memory that Gradlane takes for that of a device (`ondevice.py`).
The checks are written once: they make tensors with PyTorch on `device()` and `put` them where they belong.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gradlane.torch as gl
import torch

ON = os.environ["GPU_CHECK_ON"]
IS_CUDA, IS_STAND_IN = ON == "cuda", ON == "stand-ins"
IS_SHORT = os.environ.get("GPU_CHECK_SHORT") == "1"
SCRATCH = Path(os.environ["GPU_CHECK_SCRATCH"])

_cuda_as_gradlane_sees_it: SimpleNamespace | None = None


@contextlib.contextmanager
def entered() -> Iterator[None]:
    """Inside, tensors that are `put` on the stand-in are CUDA tensors for Gradlane."""
    global _cuda_as_gradlane_sees_it
    if not IS_STAND_IN:
        yield
        return
    import pytest
    from ondevice import cuda_as_far_as_gradlane_sees

    with pytest.MonkeyPatch.context() as patches, cuda_as_far_as_gradlane_sees(patches) as seen:
        _cuda_as_gradlane_sees_it = seen
        yield


def devices() -> int:
    """How many devices there are for the workers of this check."""
    if IS_CUDA:
        return 1 if "GPU_CHECK_ONE_GPU" in os.environ else torch.cuda.device_count()
    return 1 if "GPU_CHECK_ONE_GPU" in os.environ else int(os.environ.get("FAKECUDA_DEVICES", "1"))


def number() -> int:
    """The device of this worker: one of its own if there are enough."""
    return gl.rank() % devices() if gl.is_initialized() else 0


def device() -> torch.device:
    """Where PyTorch makes the tensors of this worker; on the stand-in they must be `put` on it."""
    if not IS_CUDA:
        return torch.device("cpu")
    torch.cuda.set_device(number())
    return torch.device("cuda", number())


def put(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on this worker's device."""
    if IS_STAND_IN:
        from ondevice import bring

        return bring(tensor, number())
    return tensor.to(device())


def full(count: int, value: float) -> torch.Tensor:
    """A tensor on this worker's device that the current stream fills; the caller does not wait for it."""
    if IS_CUDA:
        return torch.full((count,), value, device=device())
    return put(torch.full((count,), value))


def put_module(module: torch.nn.Module) -> torch.nn.Module:
    """The model with its parameters and buffers on this worker's device."""
    if IS_STAND_IN:
        from ondevice import bring_module

        return bring_module(module, number())
    return module.to(device())


def is_here(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies on this worker's device."""
    if IS_STAND_IN:
        from ondevice import device_of

        return device_of(tensor) == number()
    return tensor.device == device()


def settle() -> None:
    """Waits for all work of the device."""
    if IS_CUDA:
        torch.cuda.synchronize()


def fill_late(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Has the current stream write the values into the tensor after a slow kernel, and returns before that."""
    if IS_CUDA:
        torch.cuda._sleep(100_000_000)  # some 50 ms
        tensor.copy_(values)
    elif IS_STAND_IN:
        from fakecuda import LAG_SECONDS, produce, user_stream

        stream = user_stream(number(), LAG_SECONDS)
        _cuda_as_gradlane_sees_it.stream[number()] = stream
        produce(stream, tensor.data_ptr(), bytes_of(values), number())
    else:
        tensor.copy_(values)


def count_wrong(tensor: torch.Tensor, expected: torch.Tensor) -> int:
    """How many elements differ, for a stream that waited for nothing, once all sums have landed.

    `expected` must be there already.
    """
    gl.synchronize()
    if IS_CUDA:
        with torch.cuda.stream(torch.cuda.Stream(device())):
            return int((tensor != expected).sum())
    if IS_STAND_IN:
        from fakecuda import consume, user_stream

        content = consume(user_stream(number()), tensor.data_ptr(), tensor.nbytes, number())
        tensor = torch.frombuffer(bytearray(content), dtype=tensor.dtype).view(tensor.shape)
    return int((tensor != expected).sum())


@contextlib.contextmanager
def another_stream() -> Iterator[None]:
    """Inside, the current stream is another one, which waits for the work so far of this one, and for no other."""
    if IS_CUDA:
        stream = torch.cuda.Stream(device())
        stream.wait_stream(torch.cuda.current_stream(device()))
        with torch.cuda.stream(stream):
            yield
    else:
        yield


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements as they lie in memory."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def agree(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors on the host are equal bit for bit, but for what a NaN carries."""
    both_nan = (left != left) & (right != right)
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return bool(((left.view(size) == right.view(size)) | both_nan).all())


def slow_down() -> None:
    """Has each operation of the stand-in's streams wait a little, so that there is something under way."""
    if IS_STAND_IN:
        from fakecuda import call

        call("fakecuda_set", b"LAG_US", b"20000")
