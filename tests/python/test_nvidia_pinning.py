"""The memory that the driver is to pin can be pinned: the kernel does the same for buffers of io_uring.

NVIDIA's driver and io_uring both ask the kernel for pages that stay where they are for long (`FOLL_LONGTERM`). Sealed memory that several
processes map is unusual for either.
"""

import ctypes
import os
import re

import gradlane
import numpy as np
import pytest

SETUP, REGISTER = 425, 427
"""Numbers of the calls, the same on all architectures."""
REGISTER_BUFFERS, UNREGISTER_BUFFERS = 0, 1

libc = ctypes.CDLL(None, use_errno=True)


class Buffer(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = [("address", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def ring() -> int:
    """A new ring of io_uring; -1 if the kernel or a container does not allow it."""
    parameters = ctypes.create_string_buffer(120)
    return libc.syscall(SETUP, 4, parameters)


@pytest.fixture
def open_ring():
    opened = ring()
    yield opened
    os.close(opened)


def mappings_of_engine() -> list[tuple[int, int, str]]:
    """Address, bytes and access of what the engine shares with other processes."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            matched = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) .*/memfd:gradlane", line)
            if matched:
                start, end = int(matched[1], 16), int(matched[2], 16)
                found.append((start, end - start, matched[3]))
    return found


probe = ring()
if probe >= 0:
    os.close(probe)

LIMIT = 4 << 20
"""Bytes of a mapping that are pinned: what a user may lock without being asked for rights."""


@pytest.mark.skipif(probe < 0, reason="needs io_uring, which is switched off here")
@pytest.mark.workers(2)
@pytest.mark.over("shm")
def test_sealed_memory_that_processes_share_can_be_pinned(open_ring):
    gradlane.push_pull(np.ones(1 << 20, np.float32), "in slabs", op=gradlane.Sum)
    written = [(at, size) for at, size, access in mappings_of_engine() if access == "rw-s"]
    assert written, "sums with a server of this machine lie in shared memory"
    for at, size in written:
        buffer = Buffer(at, min(size, LIMIT))
        code = libc.syscall(REGISTER, open_ring, REGISTER_BUFFERS, ctypes.byref(buffer), 1)
        assert code == 0, os.strerror(ctypes.get_errno())
        assert libc.syscall(REGISTER, open_ring, UNREGISTER_BUFFERS, None, 0) == 0
