"""NVIDIA's own NCCL under this engine, where there is no GPU: how far it goes, and that what then fails is told and hangs nobody.

NCCL has CUDA's runtime built in, and that asks the driver for tables that only NVIDIA's driver has. So it makes no communicator on the
stand-in for the driver. Up to there everything is real: the search for the library, its version, the id, the configuration, the errors.
"""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import time

import fakecuda
import gradlane
import numpy as np
import pytest
from nvidia import NCCL, PACKAGES, wheel

SETTINGS = {"cuda_lib": fakecuda.LIBRARY, "nccl_lib": str(PACKAGES / NCCL)}


@pytest.mark.workers(2, settings=SETTINGS, env={"FAKECUDA_DEVICES": "2"}, alone=True)
@pytest.mark.over("local")
def test_a_communicator_that_nccl_does_not_make_is_a_typed_error_on_every_worker():
    wheel(NCCL)
    device, begun = gradlane.rank(), time.monotonic()
    array = fakecuda.Array(np.ones(1000, np.float32), device=device)
    with pytest.raises(gradlane.DeviceError) as raised:
        gradlane.push_pull(array, "never reduced", op=gradlane.Sum)
    text = str(raised.value)
    assert "ncclCommInitRankConfig" in text and "unhandled cuda error" in text, text
    # The first of the two tells the other one; nobody waits for a deadline.
    assert time.monotonic() - begun < 15
    # The memory of hosts is reduced as before.
    host = np.ones(1000, np.float32)
    with pytest.raises(gradlane.Error):
        gradlane.push_pull(array, "nor this", op=gradlane.Sum)
    assert (np.asarray(host) == 1).all()
