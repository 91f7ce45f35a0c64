"""The CUDA driver's C interface, for what PyTorch does not offer; the same for the real library and its stand-in."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator

PORTABLE = 1
"""`CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all contexts."""
NON_BLOCKING = 1
"""`CU_STREAM_NON_BLOCKING`: does not wait for the default stream."""

NOT_READY = 600
"""`CUDA_ERROR_NOT_READY`: what is asked for is not done yet."""


class DriverError(Exception):
    """A call that the driver refused."""


class Driver:
    """The driver, with the primary context of one device, which the calling thread has inside `with`."""

    def __init__(self, device: int = 0) -> None:
        self._library = ctypes.CDLL(os.environ.get("GRADLANE_CUDA_LIB", "libcuda.so.1"))
        self.call("cuInit", 0)
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.device = handle.value

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function; raises what the driver answers unless it is success."""
        self._expect(name, getattr(self._library, name)(*arguments))

    def is_pending(self, name: str, *arguments: object) -> bool:
        """Calls a function that asks whether something is done; raises what the driver answers but for yes and no."""
        code = getattr(self._library, name)(*arguments)
        if code == NOT_READY:
            return True
        self._expect(name, code)
        return False

    def __enter__(self) -> Driver:
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxPushCurrent_v2", context)
        return self

    def __exit__(self, *_: object) -> None:
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self.call("cuDevicePrimaryCtxRelease_v2", self.device)

    def name(self) -> str:
        """The model of the device."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode()

    def version(self) -> int:
        """The version of CUDA that the driver is for: 13000 is 13.0."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    @contextlib.contextmanager
    def memory(self, size: int) -> Iterator[int]:
        """The address of new memory of the device."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        try:
            yield address.value
        finally:
            self.call("cuMemFree_v2", address)

    @contextlib.contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        """The address of new memory of the host that the driver has pinned."""
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), PORTABLE)
        try:
            yield address.value or 0
        finally:
            self.call("cuMemFreeHost", address)

    @contextlib.contextmanager
    def registered(self, address: int, size: int) -> Iterator[None]:
        """Pins memory of the host that is there already."""
        self.call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size), PORTABLE)
        try:
            yield
        finally:
            self.call("cuMemHostUnregister", ctypes.c_void_p(address))

    @contextlib.contextmanager
    def stream(self) -> Iterator[ctypes.c_void_p]:
        """A new stream; at the end everything in it is done."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        try:
            yield stream
        finally:
            self.call("cuStreamSynchronize", stream)
            self.call("cuStreamDestroy_v2", stream)

    def copy_out(self, host: int, device: int, size: int, stream: ctypes.c_void_p) -> None:
        """Begins a copy from the device."""
        self.call(
            "cuMemcpyDtoHAsync_v2", ctypes.c_void_p(host), ctypes.c_uint64(device), ctypes.c_size_t(size), stream
        )

    def copy_in(self, host: int, device: int, size: int, stream: ctypes.c_void_p) -> None:
        """Begins a copy to the device."""
        self.call(
            "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(device), ctypes.c_void_p(host), ctypes.c_size_t(size), stream
        )

    def fill(self, device: int, byte: int, size: int, stream: ctypes.c_void_p) -> None:
        """Begins to set memory of the device; in the order of the stream, unlike the form without one."""
        self.call("cuMemsetD8Async", ctypes.c_uint64(device), ctypes.c_ubyte(byte), ctypes.c_size_t(size), stream)

    def _expect(self, name: str, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(f"{name} answers {code} ({(text.value or b'unknown').decode()})")

    def seconds_of_copies(self, way: str, host: int, device: int, size: int, chunk: int) -> float:
        """The best of three times in which chunks of this size, queued at once, copy the memory: `out` or `in`."""
        copy = self.copy_out if way == "out" else self.copy_in
        times = []
        with self.stream() as stream:
            for _ in range(4):
                begun = time.perf_counter()
                for at in range(0, size, chunk):
                    copy(host + at, device + at, min(chunk, size - at), stream)
                self.call("cuStreamSynchronize", stream)
                times.append(time.perf_counter() - begun)
        return min(times[1:])


def timed(driver: Driver, stream: ctypes.c_void_p, work: Callable[[], object]) -> float:
    """The best of three times."""
    times = []
    for _ in range(3):
        driver.call("cuStreamSynchronize", stream)
        begun = time.perf_counter()
        work()
        driver.call("cuStreamSynchronize", stream)
        times.append(time.perf_counter() - begun)
    return min(times)
