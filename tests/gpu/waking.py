"""How long a thread takes to see that the device is done, by each way to wait: what the engine's own way is chosen by.

Each way waits for the same copy, long enough that the waiting thread sleeps where the way lets it. The figures have
Python's own time in them, some microseconds, most of it in the host function, which needs the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable

from driver import Driver
from places import IS_SHORT
from telling import figure, passed

SIZE = (1 if IS_SHORT else 16) << 20
ROUNDS = 5 if IS_SHORT else 100
SECONDS_MAX = 30.0
"""For one wait."""

BLOCKING, NO_TIMING = 1, 2
CADENCE = 10e-6
"""Seconds between two looks of the thread that asks for events by turns."""

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Waits:
    """A stream with a copy in it, and the ways to wait for its end."""

    def __init__(self, driver: Driver, stream: ctypes.c_void_p, word: int) -> None:
        self.driver, self.stream, self.word = driver, stream, ctypes.c_uint32.from_address(word)
        self.written = 0
        self.polled, self.blocking = self._event(NO_TIMING), self._event(NO_TIMING | BLOCKING)
        self.called = threading.Event()
        self.callback = HOST_FUNCTION(lambda _: self.called.set())

    def by_looking(self) -> Callable[[], None]:
        """Asks for the event again and again, without a pause: the least that is possible through the driver."""
        return self._looking(pause=0.0)

    def by_looking_at_times(self) -> Callable[[], None]:
        """The same with a pause between two looks, as the engine's own thread has."""
        return self._looking(CADENCE)

    def by_blocking(self) -> Callable[[], None]:
        """Sleeps in the driver until the event."""
        self.driver.call("cuEventRecord", self.blocking, self.stream)
        return lambda: self.driver.call("cuEventSynchronize", self.blocking)

    def by_call(self) -> Callable[[], None]:
        """A thread of the driver calls a function of the host."""
        self.called.clear()
        self.driver.call("cuLaunchHostFunc", self.stream, self.callback, None)
        return lambda: self._expect(self.called.wait(SECONDS_MAX))

    def by_word(self) -> Callable[[], None]:
        """The device writes a word into memory of the host, which is looked at without a pause."""
        self.written += 1
        address = ctypes.c_uint64(ctypes.addressof(self.word))
        self.driver.call("cuStreamWriteValue32_v2", self.stream, address, ctypes.c_uint32(self.written), 0)
        return lambda: self._look(lambda: self.word.value == self.written, pause=0.0)

    def _looking(self, pause: float) -> Callable[[], None]:
        self.driver.call("cuEventRecord", self.polled, self.stream)
        return lambda: self._look(lambda: not self.driver.is_pending("cuEventQuery", self.polled), pause)

    def _look(self, is_there: Callable[[], bool], pause: float) -> None:
        until = time.monotonic() + SECONDS_MAX
        while not is_there():
            self._expect(time.monotonic() < until)
            if pause:
                time.sleep(pause)

    def _expect(self, is_done: bool) -> None:
        if not is_done:
            raise TimeoutError(f"the device did not come to an end within {SECONDS_MAX:.0f} s")

    def _event(self, flags: int) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.driver.call("cuEventCreate", ctypes.byref(event), flags)
        return event


WAYS: dict[str, Callable[[Waits], Callable[[], None]]] = {
    "looking without a pause": Waits.by_looking,
    f"looking each {CADENCE * 1e6:.0f} us": Waits.by_looking_at_times,
    "sleeping in the driver": Waits.by_blocking,
    "a function that the driver calls": Waits.by_call,
    "a word that the device writes": Waits.by_word,
}


def waking() -> None:
    """Times a copy and the wait for it; what a way takes beyond the quickest is what it wakes later."""
    with Driver() as driver, driver.memory(SIZE) as device, driver.pinned(SIZE) as host, driver.pinned(4096) as word:
        with driver.stream() as stream:
            waits = Waits(driver, stream, word)
            for name, begin in WAYS.items():
                walls, cores = [], []
                for _ in range(ROUNDS):
                    wall, core = time.perf_counter(), time.thread_time()
                    driver.copy_out(host, device, SIZE, stream)
                    begin(waits)()
                    walls.append(time.perf_counter() - wall)
                    cores.append(time.thread_time() - core)
                kept = slice(ROUNDS // 10, None)
                figure(f"a copy of {SIZE >> 20} MiB and {name}", statistics.median(walls[kept]) * 1e6, "us")
                figure(f"processor time of {name}", statistics.median(cores[kept]) * 1e6, "us")
            for event in (waits.polled, waits.blocking):
                driver.call("cuEventDestroy_v2", event)
    passed("every way to wait saw the end of the copy")
