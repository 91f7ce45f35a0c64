"""Workers of one machine, and of two, that reduce their devices among themselves by NCCL."""

from __future__ import annotations

import re

import gradlane.torch as gl
import torch
from groups import nccl_calls, nccl_log
from places import IS_CUDA, IS_SHORT, bytes_of, put
from telling import failed, passed, skipped

COUNTS = (1, 1000, (1 << 18) + 3) if IS_SHORT else (1, 1000, 1 << 20, (1 << 22) + 3)


def ranks_on_one_gpu() -> None:
    """All that two ranks do by NCCL, with a host identity for each."""
    ranks_on_own_gpus()
    log = nccl_log()
    ways = sorted(set(re.findall(r"via (\w+)", log)))
    if not IS_CUDA:
        skipped("which transport NCCL takes to the other rank: its stand-in has none")
    elif not log:
        skipped("NCCL wrote no log")
    elif "NET" in ways:
        passed(f"NCCL's log names the transport: {', '.join(ways)}")
    else:
        failed(f"NCCL's log should name the network, as each rank has a host identity; it names {ways}")


def ranks_sharing_a_gpu() -> None:
    """The same by the way that NCCL has for this since 2.30."""
    version = torch.cuda.nccl.version()
    if version < (2, 30, 3):
        skipped(f"NCCL is {'.'.join(map(str, version))}; ranks may share a GPU since 2.30.3")
    else:
        ranks_on_own_gpus()


def ranks_on_own_gpus() -> None:
    """Sums, means of integers and groups, of which no server hears."""
    exact_sums()
    below_zero = put(torch.full((1000,), -gl.rank(), dtype=torch.int32))
    gl.push_pull_(below_zero, "below zero", op=gl.Average)
    assert (below_zero == -1).all(), "means of integers are rounded down, as in host memory"
    many = [put(torch.full((1 << 18,), gl.rank() + 1.0)) for _ in range(40)]
    gl.grouped_push_pull_(many, "many", op=gl.Sum)
    assert all((tensor == 3.0).all() for tensor in many), "in groups"
    passed("the ranks of one machine reduce by NCCL, with exact sums and means of integers, and no server")


def pcie_groups() -> None:
    """Two groups of one rank each."""
    exact_sums()
    metrics = gl.metrics()
    assert metrics["d2h_bytes"] == metrics["h2d_bytes"] > 0 or not is_on_device(), "the host added nothing"
    passed("two groups of one device each add on the host, with exact sums and no server")


def exact_sums() -> None:
    """Sums of all ranks of one machine."""
    total = sum(range(1, gl.size() + 1))
    before = gl.metrics()["pushes"]
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64):
        for count in COUNTS:
            pattern = put((torch.arange(count) % 40).to(dtype))
            tensor = pattern * (gl.rank() + 1)
            gl.push_pull_(tensor, f"{dtype} {count}", op=gl.Sum)
            assert torch.equal(tensor, pattern * total), f"{dtype} {count}"
    assert gl.metrics()["pushes"] == before or not is_on_device(), "a server was asked"


def four_ranks() -> None:
    """What two machines of two ranks each do: each reduces by NCCL, then they exchange the sums through a server."""
    before, pushes = nccl_calls(), gl.metrics()["pushes"]
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for count in COUNTS:
            pattern = put((torch.arange(count) % 20).to(dtype))
            tensor = pattern * (gl.rank() + 1)
            gl.push_pull_(tensor, f"sum {dtype} {count}", op=gl.Sum)
            assert torch.equal(tensor, pattern * 10), f"sum of {dtype} {count}"
            # 20 of 4: neither rounded nor out of a half's range.
            mean = gl.push_pull(pattern * 2 * gl.rank(), f"mean {dtype} {count}", op=gl.Average)
            assert torch.equal(mean, pattern * 3), f"mean of {dtype} {count}"
    asked = torch.tensor([float(gl.metrics()["pushes"] - pushes)])
    assert gl.push_pull(asked, "asked", op=gl.Sum).item() > 0, "no server was asked"
    passed("sums and means of two machines with two ranks each are exact, through NCCL and a server")
    for count in COUNTS:
        values = put(torch.full((count,), float(gl.rank())))
        mean = gl.push_pull(values, f"weighted {count}", op=gl.WeightedAverage, weight=gl.rank() + 1.0)
        # (0 x 1 + 1 x 2 + 2 x 3 + 3 x 4) / 10; the share of each weight is rounded.
        assert ((mean - 2.0).abs() < 1e-6).all(), mean
    passed("weighted means have the weights of all four")
    for root in range(gl.size()):
        for count in COUNTS:
            sent = (torch.arange(count) % 997).float()
            tensor = put(sent.clone() if gl.rank() == root else torch.full((count,), float("nan")))
            gl.broadcast_(tensor, root, f"broadcast {root} {count}")
            assert bytes_of(tensor) == bytes_of(sent), f"broadcast of {root}, {count} elements"
    passed("every rank can be the root of a broadcast, bit for bit")
    after = nccl_calls()
    calls = {name: sum(gl.allgather_object(after[name] - before[name], f"calls {name}")) for name in after}
    missing = [name for name in ("Reduce", "Broadcast", "Send", "Recv") if not calls[name]]
    if not any(calls.values()):
        skipped("which operations of NCCL were used: there is no log of them")
    elif missing:
        failed(f"NCCL was not asked for {' and '.join(missing)}, but for {calls}")
    else:
        passed(f"all four together asked NCCL for {calls}")


def is_on_device() -> bool:
    """Whether tensors of this run are not in host memory."""
    return put(torch.zeros(1)).is_cuda
