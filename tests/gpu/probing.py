"""What is found on the machine: driver, devices, the machine's identity, and shared memory that a driver can pin."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator

import torch
from driver import Driver, DriverError
from places import IS_CUDA
from telling import failed, passed

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x10
"""With `F_SEAL_FUTURE_WRITE`, which Python does not name: the seals of memory that a server of the machine reads."""

READER = """
import mmap, sys, zlib
fd, size = int(sys.argv[1]), int(sys.argv[2])
print(zlib.crc32(mmap.mmap(fd, size, prot=mmap.PROT_READ)))
try:
    mmap.mmap(fd, size)
except PermissionError:
    print("read only")
"""
"""What a server does with that memory: it maps it for reading, and cannot map it for writing."""

SIZE = 4 << 20


def probe() -> None:
    """Compares what the driver, PyTorch and `doctor` say, and tries memory that the engine stages parts in."""
    asked = [sys.executable, "-m", "gradlane", "doctor", "--json"]
    doctor = subprocess.run(asked, capture_output=True, encoding="utf-8", timeout=60)
    findings = {finding["subject"]: finding for finding in json.loads(doctor.stdout)}
    driver = Driver()
    for number in range(torch.cuda.device_count() if IS_CUDA else 1):
        name = Driver(number).name()
        found = findings.get(f"cuda:{number}", {}).get("found", "nothing")
        if name not in found or (IS_CUDA and torch.cuda.get_device_properties(number).name != name):
            failed(f"the driver calls device {number} {name!r}; doctor says {found!r}")
    passed(f"the driver was found, for CUDA {driver.version() / 1000:.1f}, and doctor names its devices as it does")
    if "machine" in findings:
        failed(f"the machine has no identity: {findings['machine']['found']}")
    else:
        passed("the machine has an identity, so that its processes share memory")
    with contextlib.suppress(OSError), sealed(SIZE) as (fd, address):
        passed("memory can be shared and sealed against resizing and further writers")
        try:
            try_registered(driver, fd, address)
        except DriverError as error:
            failed(f"the driver does not pin such memory, so parts for servers of the machine are copied: {error}")
        return
    failed("this system has no memory with these seals: parts for servers of the machine are copied once more")


def try_registered(driver: Driver, fd: int, address: int) -> None:
    """Has the driver write into registered memory and read from it, and another process read it."""
    content = bytes(range(251)) * (SIZE // 251 + 1)
    source, back = ctypes.create_string_buffer(content[:SIZE], SIZE), ctypes.create_string_buffer(SIZE)
    with driver, driver.memory(SIZE) as device, driver.registered(address, SIZE), driver.stream() as stream:
        driver.copy_in(ctypes.addressof(source), device, SIZE, stream)
        driver.copy_out(address, device, SIZE, stream)
        driver.call("cuStreamSynchronize", stream)
        reader = [sys.executable, "-c", READER, str(fd), str(SIZE)]
        read = subprocess.run(reader, pass_fds=[fd], capture_output=True, encoding="utf-8", timeout=60)
        if read.stdout.split("\n")[:2] != [str(zlib.crc32(source.raw)), "read only"]:
            failed(f"another process reads something else, or may write: {read.stdout}{read.stderr}")
        driver.fill(device, 0, SIZE, stream)
        driver.copy_in(address, device, SIZE, stream)
        driver.copy_out(ctypes.addressof(back), device, SIZE, stream)
        driver.call("cuStreamSynchronize", stream)
    if back.raw != source.raw:
        failed("the device reads something else from registered memory")
    passed("the driver pins such memory, copies both ways are right, and another process reads it but cannot write")


@contextlib.contextmanager
def sealed(size: int) -> Iterator[tuple[int, int]]:
    """Descriptor and address of new memory that is shared and sealed as the engine's segments are."""
    fd = os.memfd_create("gpu-check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        memory = mmap.mmap(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        held = ctypes.c_char.from_buffer(memory)
        yield fd, ctypes.addressof(held)
        del held
        memory.close()
    finally:
        os.close(fd)
