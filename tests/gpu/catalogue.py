"""The checks in their order, and the job that each of them runs in. Imports nothing heavy: the runner reads it too.

The order is that in which a fault would mislead: what a later check relies on comes before it, measurements come last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """The function of its name in `module`: every worker of a job runs it, or one process without a job."""

    module: str
    about: str
    workers: int = 0
    """0 for a process without a job."""
    env: Mapping[str, str] = field(default_factory=dict)
    machines: str = ""
    """A letter a rank: the machine that the worker takes itself to be on. Empty: the one that it is on."""
    under: tuple[str, ...] = ()
    """A command that the check is started by."""
    log: str = "warn"
    """The engine's log."""
    logs_nccl: bool = False
    """Whether NCCL logs what it does, into a file of each process that the check reads. Each line costs time."""
    always: str = ""
    """A text that the output must have, so that `never` means something."""
    never: tuple[str, ...] = ()
    """Texts that the output must not have."""
    lost: int = 0
    """Workers that do not come to the end of the check, on purpose; the launcher's code is then that of SIGKILL."""
    leaves: bool = True
    """Whether the workers leave the job at the end; a check that does not has a launch of its own."""
    devices: int = 1
    """The devices that it needs."""
    seconds_max: float = 300.0
    """The deadline; below ten minutes for every check."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Where it is not run (`stand-ins`, `cpu`), and what is missing there."""


THROUGH_SERVERS = {"GRADLANE_LOCAL_REDUCE": "off"}
"""The workers share a machine and would reduce among themselves."""

AMONG_RANKS = {"GRADLANE_LOCAL_REDUCE": "auto"}
ON_ONE_GPU = AMONG_RANKS | {"GPU_CHECK_ONE_GPU": "1"}
ONE_GPU = ON_ONE_GPU | {
    "GPU_CHECK_HOSTID": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_MAX_CTAS": "2",
}
"""With a host identity for each rank, NCCL takes ranks on one GPU for ranks of several machines."""

EXPANDABLE = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}
"""The old name of the variable, and the new one."""

NOT_PINNED = ("no more memory may be pinned", "no more memory can be pinned", "cannot pin memory that servers could")
"""What the engine logs if copies go through ordinary memory, or need one copy more to reach a server."""

ABOUT_DEVICES = {"cpu": "it is about devices"}
BY_PYTORCH = "PyTorch's own CUDA allocator, streams and graphs are not there"


def through_servers(module: str, about: str, **more: Any) -> Check:
    """Workers of one machine, two by default, that reduce through a server and copy only from and to pinned memory."""
    job = {"workers": 2, "env": THROUGH_SERVERS, "log": "warn,gradlane_core::device=debug"}
    return Check(module, about, **{**job, "always": "driver=", "never": NOT_PINNED, **more})


def by_nccl(module: str, about: str, **more: Any) -> Check:
    """Ranks on one GPU, two by default, that reduce by NCCL."""
    return Check(module, about, **{"workers": 2, "env": ONE_GPU, "machines": "aa", **more})


def on_cuda_only(reason: str) -> dict[str, str]:
    """For `cannot`: neither the stand-ins nor host memory have what the check is about."""
    return {"stand-ins": reason, "cpu": "it is about devices"}


CHECKS = {
    "probe": Check(
        "probing",
        "driver, devices and machine are known; memory that is sealed and shared can be pinned",
        cannot=ABOUT_DEVICES,
    ),
    "sums": through_servers("sums", "sums through a server, after slow kernels, all memory pinned"),
    "small": through_servers("sums", "a thousand small tensors, gathered and scattered by a kernel"),
    "reuse": through_servers("reuse", "memory of a temporary is not reused while it is in use"),
    "reuse_expandable": through_servers(
        "reuse",
        "the same with PyTorch's expandable segments",
        env=THROUGH_SERVERS | EXPANDABLE,
        cannot=on_cuda_only(BY_PYTORCH),
    ),
    "ranks_on_one_gpu": by_nccl("ranks", "two ranks of a machine by NCCL on one GPU", logs_nccl=True),
    "ranks_sharing_a_gpu": Check(
        "ranks",
        "the same by NCCL's own way for ranks that share a GPU",
        workers=2,
        machines="aa",
        env={"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2", **ON_ONE_GPU},
        cannot=on_cuda_only("the stand-in of NCCL is of version 2.28, which has no such way"),
    ),
    "ranks_on_own_gpus": Check(
        "ranks",
        "two ranks of a machine by NCCL, each with a GPU of its own",
        workers=2,
        machines="aa",
        env=AMONG_RANKS,
        devices=2,
        cannot=on_cuda_only("for the stand-in of NCCL, two devices differ in nothing from two ranks on one"),
    ),
    "streams": by_nccl("following", "a stream waits for a sum of NCCL, and no thread does"),
    "streams_through_servers": through_servers("following", "a stream waits for a sum from a server"),
    "pcie_groups": by_nccl(
        "ranks",
        "two ranks of a machine, each a PCIe group of its own",
        env={**ONE_GPU, "GRADLANE_PCIE_SWITCH_SIZE": "1"},
    ),
    "four_ranks": by_nccl(
        "ranks",
        "four ranks as two machines: sums, means, weighted means, broadcasts",
        workers=4,
        machines="aabb",
        logs_nccl=True,
    ),
    "kernels": Check(
        "kernels", "every kernel against the host's arithmetic, NaN and odd lengths", cannot=ABOUT_DEVICES
    ),
    "parameters": through_servers("parameters", "parameters are changed from the device and read to it"),
    "as_on_the_host": through_servers("sums", "reductions of device tensors have the bits of those in host memory"),
    "killed": by_nccl(
        "lifetimes",
        "kill -9 in the middle of collectives, then a matmul in the survivor",
        lost=1,
        cannot={"cpu": "it is about NCCL"},
    ),
    "group_issue": by_nccl("collectives", "what a group of 4 KiB, 4 MiB and 8 x 4 MiB costs"),
    "capture": through_servers("capturing", "graph capture beside copies", workers=1, cannot=on_cuda_only(BY_PYTORCH)),
    "capture_nccl": by_nccl("capturing", "graph capture beside NCCL", cannot=on_cuda_only(BY_PYTORCH)),
    "copies": Check(
        "copies",
        "the engine's copies, and those of registered memory, against the machine's own",
        cannot=ABOUT_DEVICES,
    ),
    "waking": Check("waking", "how late a thread sees that the device is done, by way to wait", cannot=ABOUT_DEVICES),
    "timings": through_servers("copies", "enqueueing and completion", workers=1),
    "amp": through_servers("training_checks", "training under GradScaler, and of a narrow model"),
    "training": through_servers("training_checks", "training equals that of one process, in float64"),
    "several_places": through_servers(
        "training_checks",
        "a model on all devices and the CPU",
        cannot=on_cuda_only("PyTorch's copies between devices are not there; test_torch_cuda.py brings its own"),
    ),
    "overlap": through_servers("overlapping", "gradients leave during the backward pass"),
    "jax_sums": through_servers(
        "in_jax",
        "arrays of JAX on the device, eager and compiled",
        # What PyTorch and the other worker need of the device is left to them.
        env=THROUGH_SERVERS | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        always="",
        cannot=on_cuda_only("JAX knows no such device; the tests of its plugin run it on the CPU"),
    ),
    "fork": through_servers("lifetimes", "a forked child is refused, and its parent goes on"),
    "exit": through_servers(
        "lifetimes",
        "processes end without shutdown, with work under way",
        leaves=False,
        never=(*NOT_PINNED, "Traceback", "terminate called", "panicked"),
        seconds_max=120.0,
    ),
    "sanitizer": through_servers(
        "sums",
        "sums under compute-sanitizer",
        # PyTorch asks the driver for what an older one may not have, and takes the refusal for an answer.
        under=("compute-sanitizer", "--target-processes", "all", "--report-api-errors", "no", "--error-exitcode", "9"),
        seconds_max=540.0,
        cannot=on_cuda_only("there are no kernels to look into; the stand-in checks bounds itself"),
    ),
    "reduce_2": by_nccl("collectives", "reduction by size, two ranks on one GPU", seconds_max=540.0),
    "reduce_4": by_nccl(
        "collectives",
        "reduction by size, four ranks on one GPU",
        workers=4,
        machines="aaaa",
        seconds_max=540.0,
        cannot={"stand-ins": "the stand-in of NCCL has no bandwidth, and reduce_2 runs the same code there"},
    ),
    "step_servers": through_servers("steps", "step time of ResNet-50 through a server", seconds_max=540.0),
    "step_nccl": by_nccl("steps", "step time of ResNet-50 by NCCL, ours and PyTorch's", seconds_max=540.0),
    "quic": Check("quic", "the QUIC data path with 1, 2 and 4 workers, without a device", seconds_max=540.0),
}
