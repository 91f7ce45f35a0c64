"""What modes of parameters cost beside a sum, what is left of a job with a slow worker, and how much memory a server takes.

gradlane run -n 2 -s 1 -- python bench/modes.py time                  64 MiB and 4 KB, each mode beside the sum
gradlane run -n 4 -s 1 -- python bench/modes.py slow                  worker 0 is five times slower than the others
gradlane run -n 2 -s 1 -- python bench/modes.py memory                the memory of the server beside what it keeps, 256 MiB with adamw
... time --peer tcp                                                     PyTorch's RPC beside them; `any` lets it use shared memory
... --steps 3                                                           tries it out

With GRADLANE_LOCAL_REDUCE=off the sum goes through the server too, as the parameters do.

The peer is a parameter server after PyTorch's tutorial of `torch.distributed.rpc`: a process with one function that applies SGD to
what it is given, under a lock, and returns a copy of the values. "async sgd" does the same work here.

`time` takes all ways in turns, and checks each result. A row tells the median time, and its share of the sum's time in the same
turn: the median, and what four of five turns lie between. `slow` has steps that rest without the processor, five times as long
on worker 0. A row tells the steps that all have done, as a number of fast workers, and the largest lead over the slowest.
`memory` tells the most memory that the server has had, less the values and what adamw keeps of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import gradlane
import numpy as np
from gradlane import modes, parameters, rules

SIZES = {"64 MiB": 16 << 20, "4 KB": 1024}
"""Elements of float32."""


def main() -> int:
    options = arguments()
    if options.what == "serve":
        serve(options)
        return 0
    gradlane.init()
    {"time": times, "slow": slow, "memory": memory}[options.what](options)
    gradlane.shutdown()
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["time", "slow", "memory", "serve"], help="`serve` is what `time` starts as the peer's server")
    parser.add_argument("--peer", choices=["tcp", "any"], help="in `time`, PyTorch's RPC, over these of its transports")
    parser.add_argument("--at", type=int, nargs=2, metavar=("PORT", "WORKERS"), help="in `serve`")
    parser.add_argument("--steps", type=int, default=15, help="turns; in `slow`, steps of a fast worker (default 15)")
    parser.add_argument("--rest", type=float, default=0.05, help="seconds of a step in `slow` (default 0.05)")
    return parser.parse_args()


def times(options: argparse.Namespace) -> None:
    with contextlib.nullcontext() if options.peer is None else peer(options.peer):
        for size, elements in SIZES.items():
            time_size(size, elements, options)


def time_size(size: str, elements: int, options: argparse.Namespace) -> None:
    turns = options.steps if elements > 1 << 20 else 20 * options.steps
    ways = {"sum": summed(elements), "async": at_once(elements, None)}
    ways |= {"async sgd": at_once(elements, rules.SGD(lr=1.0)), "async adamw": at_once(elements, rules.AdamW())}
    ways |= {} if options.peer is None else {f"rpc {options.peer}": by_rpc(elements)}
    ways |= {"sync": in_rounds(elements, modes.Sync()), "ssp": in_rounds(elements, modes.SSP(1))}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(-1, turns):
        for way, step in ways.items():
            gradlane.barrier(f"{size} {way}")
            began = time.perf_counter()
            step(turn + 1)
            if turn >= 0:
                taken[way].append(time.perf_counter() - began)
    if gradlane.rank() == 0:
        for way, seconds in taken.items():
            milliseconds = 1e3 * statistics.median(seconds)
            print(f"{size:7} {way:12} {milliseconds:9.3f} ms, {share(seconds, taken['sum'])} of the sum", flush=True)
        if options.peer is not None:
            ours = share(taken["async sgd"], taken[f"rpc {options.peer}"])
            print(f"{size:7} async sgd takes {ours} of the time of rpc {options.peer}", flush=True)


def share(seconds: list[float], of: list[float]) -> str:
    """The time of one way as a part of another's in the same turn: the median, and what four of five turns lie between."""
    shares = sorted(mine / other for mine, other in zip(seconds, of, strict=True))
    tenth = len(shares) // 10
    return f"{statistics.median(shares):.2f} ({shares[tenth]:.2f}-{shares[-1 - tenth]:.2f})"


def summed(elements: int):
    values = np.ones(elements, np.float32)

    def step(turn: int) -> None:
        values.fill(1)
        gradlane.push_pull(values, f"sum {elements}", op=gradlane.Sum)
        assert values[0] == values[-1] == gradlane.size()

    return step


def at_once(elements: int, rule: rules.Rule | None):
    name, update = f"at once {elements} {rule}", "add" if rule is None else "step"
    # Where each change is a whole number, what others did in between can be told from a wrong result.
    adds = rule is None or isinstance(rule, rules.SGD)
    change, values = np.full(elements, 1 if rule is None else -1, np.float32), np.zeros(elements, np.float32)
    parameters.init(name, values, rule=rule)

    def step(turn: int) -> None:
        version = parameters.push_pull(name, change, out=values, update=update)
        assert version >= turn + 2
        if adds:
            check_changes(turn, values[0], values[-1])

    return step


def check_changes(turn: int, *values: float) -> None:
    """A worker's own changes are in a value; those of others in the same turn may be."""
    assert all(turn + 1 <= value <= gradlane.size() * (turn + 1) and value == int(value) for value in values)


def in_rounds(elements: int, mode: modes.Mode):
    name = f"{mode} {elements}"
    clock = parameters.Clock(name, mode)
    gradient, values = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    parameters.init(name, values, rule=rules.SGD(lr=1.0), mode=clock)

    def step(turn: int) -> None:
        if modes.has_rounds(mode):
            parameters.push(name, gradient, update="step")
            assert clock.tick().round == turn + 1
            parameters.pull(name, values)
            assert values[0] == values[-1] == -(turn + 1.0)
        else:
            parameters.push_pull(name, gradient, out=values, update="step")
            clock.tick()

    return step


@contextlib.contextmanager
def peer(transport: str) -> Iterator[None]:
    """A parameter server over PyTorch's RPC, which worker 0 starts, and all workers as its clients."""
    from torch.distributed import rpc

    rank, size = gradlane.rank(), gradlane.size()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = gradlane.broadcast_object(free.getsockname()[1], 0)
    command = [sys.executable, __file__, "serve", "--at", str(port), str(size), "--peer", transport]
    with subprocess.Popen(command) if rank == 0 else contextlib.nullcontext() as server:
        join_peer(f"worker{rank}", 1 + rank, port, size, transport)
        try:
            yield
        finally:
            rpc.shutdown()
        assert server is None or server.wait(60.0) == 0


def join_peer(name: str, rank: int, port: int, workers: int, transport: str) -> None:
    from torch.distributed import rpc

    only_tcp = {"_transports": ["uv"], "_channels": ["basic"]} if transport == "tcp" else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", **only_tcp)
    rpc.init_rpc(name, rank=rank, world_size=1 + workers, rpc_backend_options=options)


def serve(options: argparse.Namespace) -> None:
    from torch.distributed import rpc

    port, workers = options.at
    join_peer("server", 0, port, workers, options.peer)
    rpc.shutdown()


kept: dict[int, object] = {}
"""On the peer's server: the values, by their number."""
applying = threading.Lock()


def applied(gradient):
    """On the peer's server: a step of SGD, with the rate 1."""
    with applying:
        values = kept.setdefault(len(gradient), gradient.new_zeros(len(gradient)))
        values.sub_(gradient)
        return values.clone()


def by_rpc(elements: int):
    import torch
    from torch.distributed import rpc

    gradient = torch.full((elements,), -1.0)

    def step(turn: int) -> None:
        values = rpc.rpc_sync("server", applied, args=(gradient,))
        check_changes(turn, values[0].item(), values[-1].item())

    return step


def slow(options: argparse.Namespace) -> None:
    size = gradlane.size()
    for way in (modes.Sync(), modes.SSP(4), modes.Backup(max(1, size - 1)), modes.Async()):
        name = f"slow {way}"
        clock = None if isinstance(way, modes.Async) else parameters.Clock(name, way)
        weights = np.zeros(1000, np.float32)
        parameters.init(name, weights, rule=rules.SGD(lr=1e-3), mode=clock or way)
        gradlane.barrier(f"{name} begins")
        began, steps, lead = time.perf_counter(), 0, 0
        while time.perf_counter() - began < options.steps * options.rest:
            time.sleep(options.rest * (5 if gradlane.rank() == 0 else 1))
            gradient = np.ones(1000, np.float32)
            if modes.has_rounds(way):
                parameters.push(name, gradient, update="step")
                tick = clock.tick()
                parameters.pull(name, weights)
                steps += tick.fate == "accepted"
            else:
                parameters.push_pull(name, gradient, out=weights, update="step")
                lead = max(lead, clock.tick().ahead) if clock else 0
                steps += 1
        if clock:
            clock.leave()
        seconds = time.perf_counter() - began
        done = np.array([steps / seconds * options.rest, lead], np.float64)
        worst = done.copy()
        gradlane.push_pull(done, f"{name} done", op=gradlane.Sum)
        gradlane.push_pull(worst, f"{name} lead", op=gradlane.Max)
        if gradlane.rank() == 0:
            print(f"{way!s:10} {done[0]:.2f} of {size} workers, a lead of {worst[1]:.0f} rounds", flush=True)


TENSORS = 4
"""Of 64 MiB each, in `memory`."""


def memory(options: argparse.Namespace) -> None:
    elements = SIZES["64 MiB"]
    values = np.zeros(elements, np.float32)
    gradients = {f"kept {number}": np.ones(elements, np.float32) for number in range(TENSORS)}
    for name in gradients:
        parameters.init(name, values, rule=rules.AdamW(lr=1e-3))
    for _ in range(options.steps):
        # All of them are under way at once, which takes more memory than one after the other.
        for handle in [parameters.push_async(name, gradient, update="step") for name, gradient in gradients.items()]:
            handle.wait()
        for name in gradients:
            parameters.pull(name, values)
    gradlane.barrier("memory")
    if gradlane.rank() == 0:
        command = [sys.executable, "-m", "gradlane", "status", "--json"]
        members = json.loads(subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout)["members"]
        [server] = [member["pid"] for member in members if member["role"] == "server"]
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server}/status").read_text(encoding="utf-8"))[1]) / 1024
        kept = 3 * TENSORS * elements * 4 / (1 << 20)
        print(f"the server has had {peak:.0f} MiB, of which it keeps {kept:.0f}: {peak - kept:.0f} MiB besides", flush=True)
    gradlane.barrier("told")


if __name__ == "__main__":
    sys.exit(main())
