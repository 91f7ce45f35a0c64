"""NVIDIA's own NCCL under this engine, where there is no GPU: how far it goes, and that what then fails is told and hangs nobody.

NCCL has CUDA's runtime built in, and that asks the driver for tables that only NVIDIA's driver has. So it makes no communicator on the
stand-in for the driver. Up to there everything is real: the search for the library, its functions and version, the id, the errors.
"""

from __future__ import annotations

import ipaddress
import json
import os
import sys
import time

import fakecuda
import gradlane
import numpy as np
import pytest
from nvidia import NCCL, PACKAGES, wheel
from processes import run_all, run_python

SETTINGS = {"cuda_lib": fakecuda.LIBRARY, "nccl_lib": str(PACKAGES / NCCL)}


@pytest.mark.skipif(not (PACKAGES / NCCL).exists(), reason=f"needs {NCCL} of PyTorch's wheels")
@pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "2"}, alone=True)
@pytest.mark.over("local")
def test_a_communicator_that_nccl_does_not_make_is_a_typed_error_on_every_worker():
    begun = time.monotonic()
    array = fakecuda.Array(np.ones(1000, np.float32), device=gradlane.rank())
    with pytest.raises((gradlane.DeviceError, gradlane.PeerLostError)) as raised:
        gradlane.push_pull(array, "never reduced", op=gradlane.Sum)
    said = str(raised.value)
    if isinstance(raised.value, gradlane.DeviceError):
        assert "ncclCommInitRankConfig" in said and "unhandled cuda error" in said
    else:
        # It heard of the other worker's before NCCL told it of its own.
        assert "its devices failed; its own error says how" in said
    # Far below the deadline of a step, which is 20 s here.
    assert time.monotonic() - begun < 15
    with pytest.raises(gradlane.Error):
        gradlane.push_pull(array, "nor this", op=gradlane.Sum)


ID = """
import ctypes
nccl, id = ctypes.CDLL({library!r}), (ctypes.c_ubyte * 128)()
assert nccl.ncclGetUniqueId(id) == 0
print(bytes(id).hex())
"""


def test_the_port_through_which_workers_meet_is_confined_to_the_machine_by_a_variable():
    """What SECURITY.md and `gradlane doctor` say about it."""
    ended = run_python(ID.format(library=str(wheel(NCCL))), env={"NCCL_SOCKET_IFNAME": "lo"})
    assert ended.code == 0, ended.output
    # A number of eight bytes, and a `sockaddr_in`.
    address = bytes.fromhex(ended.output.split()[-1])[12:16]
    assert ipaddress.IPv4Address(address).is_loopback


def doctor(**env: str) -> list[dict]:
    """What `gradlane doctor` finds in this environment; the machine's own variables are left out."""
    command = [sys.executable, "-m", "gradlane", "doctor", "--json"]
    [ended] = run_all([(command, env)], timeout=60.0)
    assert ended.code == 0, ended.output
    return json.loads(ended.output.splitlines()[-1])


def about(findings: list[dict], subject: str) -> list[dict]:
    return [finding for finding in findings if finding["subject"] == subject]


def test_doctor_finds_the_nccl_that_training_uses_and_says_one_line_about_each_library():
    library = wheel(NCCL)
    findings = doctor(NCCL_SOCKET_IFNAME="lo")
    [nccl] = about(findings, "nccl")
    assert nccl["level"] == "ok" and str(library) in nccl["found"] and nccl["found"].startswith("NCCL 2.")
    assert nccl["advice"] == "", "nothing outside of the machine reaches the port"
    assert len(about(findings, "cuda")) == 1 and not about(findings, "cuda library")


def test_doctor_names_the_address_at_which_nccl_would_listen():
    wheel(NCCL)
    interfaces = {name for name in os.listdir("/sys/class/net") if name != "lo"}
    if not interfaces:
        pytest.skip("needs a network interface beside the loopback")
    [nccl] = about(doctor(), "nccl")
    assert nccl["level"] == "ok" and "NCCL_SOCKET_IFNAME=lo" in nccl["advice"]


def test_doctor_looks_where_a_setting_says_and_nowhere_else():
    [nccl] = about(doctor(GRADLANE_NCCL_LIB="/nowhere/libnccl.so.2"), "nccl")
    assert nccl["level"] == "info" and "/nowhere/libnccl.so.2" in nccl["found"]
    [nccl] = about(doctor(GRADLANE_NCCL_LIB=fakecuda.NCCL_LIBRARY), "nccl")
    assert nccl["level"] == "ok" and fakecuda.NCCL_LIBRARY in nccl["found"] and nccl["advice"] == ""
