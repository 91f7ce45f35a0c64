"""The process groups of PyTorch that checks compare with, or that its wrapper wants for its control traffic."""

from __future__ import annotations

import datetime
import json
import os
import re

import gradlane.torch as gl
from places import IS_CUDA, IS_STAND_IN, SCRATCH, device
from telling import skipped
from torch import distributed


def gloo() -> distributed.ProcessGroup:
    """A group of all workers over Gloo; they meet in the folder of their launch."""
    if not distributed.is_initialized():
        store = distributed.FileStore(str(SCRATCH / "store"), gl.size())
        distributed.init_process_group("gloo", store=store, rank=gl.rank(), world_size=gl.size())
    return distributed.group.WORLD


def nccl() -> distributed.ProcessGroup | None:
    """PyTorch's own group over NCCL, with an operation behind it; None, after saying why, where it cannot run."""
    if not IS_CUDA:
        skipped("PyTorch's own NCCL, to compare with, needs a GPU")
        return None
    import torch

    gloo()
    try:
        group = distributed.new_group(backend="nccl", timeout=datetime.timedelta(seconds=60))
        one = torch.ones(1, device=device())
        distributed.all_reduce(one, group=group)
        assert one.item() == gl.size()
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        skipped(f"PyTorch's own NCCL does not run with these ranks: {reason}")
        return None
    return group


def nccl_calls() -> dict[str, int]:
    """How often this process called each operation of NCCL, by NCCL's own log; the stand-in counts them itself."""
    names = ("AllReduce", "Reduce", "Broadcast", "ReduceScatter", "AllGather", "Send", "Recv")
    if IS_STAND_IN:
        return {name: stand_in_counter(f"nccl{name}") for name in names}
    found = re.findall(r"NCCL INFO (\w+): opCount", nccl_log())
    return {name: found.count(name) for name in names}


def nccl_log() -> str:
    """What NCCL has logged in this process; empty if it was not asked to."""
    logs = SCRATCH.glob(f"nccl.*.{os.getpid()}")
    return "".join(path.read_text(errors="replace") for path in logs)


def stand_in_counter(name: str) -> int:
    """A number of the stand-in of NCCL."""
    import ctypes

    from fakecuda import NCCL_LIBRARY

    value = ctypes.c_uint64()
    code = ctypes.CDLL(NCCL_LIBRARY).fakenccl_counter(name.encode(), ctypes.byref(value))
    assert code == 0, f"no counter {name}"
    return value.value


def differences(after: dict[str, int], before: dict[str, int]) -> str:
    """The calls in between, in words."""
    return json.dumps({name: count - before[name] for name, count in after.items() if count != before[name]})
