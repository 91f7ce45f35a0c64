"""A CUDA driver over host memory, and arrays on its devices: what tests of CUDA tensors run on where there is no GPU.

`make fakes` builds the library (`tests/fakecuda`), and a job is given its path as the setting `cuda_lib`. Memory of its
devices is at the same addresses for the host, so that a test can look into it; streams, events and copies are those
of the library, in the order that the driver promises.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import gradlane
from gradlane import _dlpack

TARGET = Path(__file__).parents[2] / "target"
LIBRARY = str(TARGET / "debug" / "libfakecuda.so")
NCCL_LIBRARY = str(TARGET / "debug" / "libfakenccl.so")
"""NCCL over the same memory."""

LAG_SECONDS = 0.1
"""How late the stream of a producer is: longer than anything the engine does in between, so that a wait that is missing
shows every time."""


@cache
def driver() -> ctypes.CDLL:
    """The library, as the engine has it mapped too."""
    library = ctypes.CDLL(LIBRARY)
    assert library.fakecuda_initialize() == 0
    return library


def call(name: str, *arguments: object) -> None:
    code = getattr(driver(), name)(*arguments)
    assert code == 0, f"{name} answers {code}"


@cache
def context(device: int) -> ctypes.c_void_p:
    """The device's primary context, held for as long as the process lives, as a framework holds it."""
    held = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(held), device)
    return held


def allocate(size: int, device: int = 0) -> int:
    context(device)
    address = ctypes.c_uint64()
    call("fakecuda_allocate", device, ctypes.c_size_t(size), ctypes.byref(address))
    return address.value


def free(address: int) -> None:
    call("fakecuda_free", ctypes.c_uint64(address))


def user_stream(device: int = 0, lag_seconds: float = 0.0) -> int:
    """A stream as a framework has it; with a lag everything in it happens so much later."""
    stream = ctypes.c_size_t()
    call("fakecuda_user_stream", device, ctypes.byref(stream))
    if lag_seconds:
        call("fakecuda_lag", stream, ctypes.c_uint64(int(lag_seconds * 1e6)))
    return stream.value


def counter(name: str, device: int = 0) -> int:
    value = ctypes.c_uint64()
    call("fakecuda_counter", device, name.encode(), ctypes.byref(value))
    return value.value


def produce(stream: int, address: int, content: bytes, device: int = 0) -> None:
    """Has the stream write this when it comes to it, and returns at once: what a kernel does with a gradient."""
    size = ctypes.c_size_t(len(content))
    call("fakecuda_produce", device, ctypes.c_size_t(stream), ctypes.c_uint64(address), content, size)


def consume(stream: int, address: int, size: int, device: int = 0) -> bytes:
    """What a kernel would read that is put into the stream now."""
    content = ctypes.create_string_buffer(size)
    call("fakecuda_consume", device, ctypes.c_size_t(stream), ctypes.c_uint64(address), content, ctypes.c_size_t(size))
    return content.raw


def carry(stream: int, to: int, origin: int, size: int, device: int = 0) -> None:
    """Has the stream write to one place what is in another by then, as a kernel does."""
    places = (ctypes.c_uint64(to), ctypes.c_uint64(origin), ctypes.c_size_t(size))
    call("fakecuda_carry", device, ctypes.c_size_t(stream), *places)


class Graph:
    """A CUDA graph: what is put into the stream inside `capturing` is done whenever the graph is launched."""

    def __init__(self, device: int) -> None:
        self._device, self._exec = device, ctypes.c_size_t()

    @contextlib.contextmanager
    def capturing(self, stream: int) -> Iterator[None]:
        """Captures in the mode in which only this thread can break it."""
        graph = ctypes.c_size_t()
        in_context(self._device, "cuStreamBeginCapture_v2", ctypes.c_size_t(stream), 1)
        try:
            yield
        finally:
            in_context(self._device, "cuStreamEndCapture", ctypes.c_size_t(stream), ctypes.byref(graph))
        flags = ctypes.c_uint64(0)
        in_context(self._device, "cuGraphInstantiateWithFlags", ctypes.byref(self._exec), graph, flags)

    def launch(self, stream: int) -> None:
        """Puts all of it into the stream, and returns at once."""
        in_context(self._device, "cuGraphLaunch", self._exec, ctypes.c_size_t(stream))


def finish(stream: int, device: int = 0) -> None:
    """Waits until the stream has done all that was put into it: as a test does before it looks at memory."""
    call("fakecuda_finish", device, ctypes.c_size_t(stream))


GATE_SECONDS = 60.0
"""A gate that a failed test leaves closed opens by itself."""


@contextlib.contextmanager
def closed_gate(stream: int, device: int = 0) -> Iterator[threading.Event]:
    """Holds a stream up inside, or until the yielded event is set: a kernel that takes as long as the test wants.

    Memory of the device must not be freed meanwhile, because that waits for all of its work. So no garbage is collected
    inside: an exception that an earlier test has caught may keep tensors until then.
    """
    gc.collect()
    gc.disable()
    opened = threading.Event()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: opened.wait(GATE_SECONDS))
    _functions.append(function)
    try:
        in_context(device, "cuLaunchHostFunc", ctypes.c_size_t(stream), function, None)
        yield opened
    finally:
        opened.set()
        gc.enable()


_functions: list[object] = []
"""Those that a stream may still call."""


def in_context(device: int, name: str, *arguments: object) -> None:
    """Calls a function of the driver in the device's context."""
    call("cuCtxPushCurrent_v2", context(device))
    try:
        call(name, *arguments)
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def calls(name: str) -> int:
    """How often this process called a function of the driver."""
    value = ctypes.c_uint64()
    call("fakecuda_calls", name.encode(), ctypes.byref(value))
    return value.value


def let_engine_give_back(is_done: Callable[[], bool], seconds: float) -> None:
    """Lets the engine give back what it held for operations that have ended, which it does in its calls."""
    gc.collect()
    until = time.monotonic() + seconds
    while not is_done() and time.monotonic() < until:
        gradlane.metrics()
        time.sleep(0.01)


class Array:
    """An array of NumPy's element types on a device, as CuPy has them: `__cuda_array_interface__` and a device."""

    def __init__(self, values, *, device: int = 0, stream: int | None = None) -> None:
        """Has the values written in `stream`, or at once without one; what is there before are bytes of 0xEE."""
        self.dtype, self.shape, self.device, self.stream = values.dtype, values.shape, device, stream
        self.size = values.nbytes
        self.address = allocate(max(1, self.size), device)
        ctypes.memset(self.address, 0xEE, self.size)
        if stream is None:
            ctypes.memmove(self.address, values.ctypes.data, self.size)
        elif self.size:
            produce(stream, self.address, values.tobytes(), device)

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
            "stream": self.stream,
        }

    def seen_by(self, stream: int):
        """What a kernel sees of it that is put into the stream now."""
        import numpy as np

        content = consume(stream, self.address, self.size, self.device)
        return np.frombuffer(content, self.dtype).reshape(self.shape)

    def __del__(self) -> None:
        free(self.address)


class Tensor:
    """The same as a DLPack tensor, which can be bfloat16 too: given as the uint16 of its bits."""

    def __init__(self, values, *, device: int = 0, stream: int | None = None, is_bfloat16: bool = False) -> None:
        self.array = Array(values, device=device, stream=stream)
        self._is_bfloat16 = is_bfloat16
        self.asked: int | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.array.device

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        """Has the consumer's stream wait for its own, by an event, as DLPack demands of a producer."""
        del max_version
        self.asked = stream
        if self.array.stream is not None:
            wait_in(stream, self.array.stream, self.array.device)
        return capsule(self.array, self._is_bfloat16)


def wait_in(waiting: int, stream: int, device: int) -> None:
    """Has one stream wait for what another one has to do by now."""
    event = ctypes.c_void_p()
    call("cuCtxPushCurrent_v2", context(device))
    call("cuEventCreate", ctypes.byref(event), 2)
    call("cuEventRecord", event, ctypes.c_size_t(stream))
    call("cuStreamWaitEvent", ctypes.c_size_t(waiting), event, 0)
    call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class _Managed(ctypes.Structure):
    """`DLManagedTensor` of dlpack.h."""

    _fields_ = [("tensor", _dlpack._Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_new_capsule.restype = ctypes.py_object
_exported: list[object] = []


def capsule(array, is_bfloat16: bool = False, device_type: int = 2) -> object:
    """A DLPack capsule of the array; its header lives as long as the process."""
    shape = (ctypes.c_int64 * len(array.shape))(*array.shape)
    code, bits = (4, 16) if is_bfloat16 else ({"i": 0, "u": 1, "f": 2}[array.dtype.kind], array.dtype.itemsize * 8)
    tensor = _dlpack._Tensor(
        data=array.address,
        device_type=device_type,
        device_id=array.device,
        ndim=len(array.shape),
        type_code=code,
        type_bits=bits,
        type_lanes=1,
        shape=shape,
    )
    header = _Managed(tensor=tensor)
    _exported.append((header, shape))
    return _new_capsule(ctypes.addressof(header), b"dltensor", None)
