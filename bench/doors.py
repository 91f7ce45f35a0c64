"""Measures what each way into the engine adds to a training step on host tensors, and PyTorch's wrappers over Gloo beside them.

python bench/doors.py                                    two workers of this machine, which reduce among themselves
python bench/doors.py --transport quic                   through a server
python bench/doors.py --rate 1gbit                       as root: two workers and two servers, each on a link of its own
python bench/doors.py --short                            tries it out

A step makes known gradients, almost without computing, sums them, and lets SGD use them. "alone" does this without sums,
so what a row takes beyond it, `adds`, is what its sums cost. "plain calls" starts one sum for each gradient after the
backward pass, and waits for all; other doors begin during that pass. All rows run in turns in the same processes, over one
engine. Each has the median over the turns of its median step on the slower worker, and the smallest and largest of these.
After the last turn every weight of every row is compared with what its gradients make of it, exactly.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PLACE = Path(__file__).resolve()
sys.path[:0] = [str(PLACE.parents[1] / folder) for folder in ("plugins", "examples")]

import gradlane.compat.byteps  # noqa: E402, F401  makes `import byteps.torch` work
import gradlane.compat.horovod.torch as hvd  # noqa: E402
import gradlane.torch as gl  # noqa: E402
import torch  # noqa: E402
from byteps import torch as bps  # noqa: E402
from shaped import Machines, Unavailable  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

WORKERS = 2
LOADS: dict[str, list[tuple[int, ...]]] = {
    "400 gradients of 1,000 elements": [(1000,)] * 400,
    "4 gradients of 4 Mi elements": [(2048, 2048)] * 4,
    "a transformer block of 12.6 M": [(3072, 1024), (3072,), (1024, 1024), (1024,), (4096, 1024), (4096,), (1024, 4096), (1024,)],
}
SHORT = {"20 gradients of 100 elements": [(100,)] * 20}
ALONE, PLAIN, DDP, GLOO = "alone", "plain calls", "PyTorch's DDP over Gradlane", "PyTorch's DDP over Gloo"
Step = Callable[[int], None]


class Given(torch.autograd.Function):
    """A layer that computes nothing. Its weight has a gradient that depends on the worker and the step alone."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, value: float) -> torch.Tensor:
        ctx.shape, ctx.value = weight.shape, value
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        return gradient, torch.full(ctx.shape, ctx.value), None


class Layer(nn.Module):
    """A layer with one weight, which is 0 in the beginning."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, inputs: torch.Tensor, value: float) -> torch.Tensor:
        outputs: torch.Tensor = Given.apply(inputs, self.weight, value)
        return outputs


class Layers(nn.ModuleList):
    """Layers with weights of these shapes."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__(map(Layer, shapes))

    def forward(self, inputs: torch.Tensor, value: float) -> torch.Tensor:
        for layer in self:
            inputs = layer(inputs, value)
        return inputs


class Doors:
    """One worker's side of all rows for one load."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], only: str) -> None:
        """With the rows whose names contain `only`, and those that they are compared with."""
        self.models: dict[str, Layers] = {}
        self.steps_done: dict[str, int] = {}
        self.gradlane = distributed.new_group(backend="gradlane")
        rows: dict[str, Callable[[nn.Module], Step]] = {
            ALONE: lambda model: training(model, sgd(model)),
            PLAIN: lambda model: training(model, sgd(model), plain_calls(model)),
            "one grouped call": lambda model: training(model, sgd(model), grouped_call(model)),
            "torch.ops.gradlane.push_pull": lambda model: training(model, sgd(model), operators(model)),
            "DistributedOptimizer": lambda model: training(
                model, gl.DistributedOptimizer(sgd(model), model.named_parameters())
            ),
            "DistributedDataParallel": lambda model: trained(gl.DistributedDataParallel(model)),
            "CrossBarrier": lambda model: training(model, gl.CrossBarrier(model, sgd(model))),
            "BytePS's DistributedOptimizer": lambda model: training(
                model, bps.DistributedOptimizer(sgd(model), model.named_parameters())
            ),
            "Horovod's DistributedOptimizer": lambda model: training(
                model, hvd.DistributedOptimizer(sgd(model), model.named_parameters())
            ),
            "PyTorch's DDP with our hook": hooked,
            DDP: lambda model: trained(ddp(model, self.gradlane)),
            GLOO: lambda model: trained(ddp(model, None)),
            "FSDP2 over Gradlane": lambda model: trained(sharded(model, self.gradlane)),
            "FSDP2 over Gloo": lambda model: trained(sharded(model, distributed.group.WORLD)),
        }
        self.steps: dict[str, Step] = {}
        for name, door in rows.items():
            if only not in name and name not in (ALONE, PLAIN, DDP, GLOO):
                continue
            self.models[name], self.steps_done[name] = Layers(shapes), 0
            self.steps[name] = door(self.models[name])

    def turn(self, name: str, steps: int) -> float:
        """The median step of the slower worker, ms."""
        once, durations = self.steps[name], []
        gl.barrier("turn")
        for _ in range(steps + 1):
            begun = time.perf_counter()
            once(self.steps_done[name])
            durations.append(time.perf_counter() - begun)
            self.steps_done[name] += 1
        if name == "CrossBarrier":  # whose last sums may be in flight
            self.settle()
        return 1000 * max(gl.allgather_object(statistics.median(durations[1:]), "durations"))

    def settle(self) -> None:
        """Lets CrossBarrier finish: the forward pass waits for the sums of the step before."""
        with torch.no_grad():
            self.models["CrossBarrier"](torch.zeros(()), 0.0)

    def check(self) -> None:
        """Compares every weight of every row with what it must be; raises an error that names the row."""
        for name, model in self.models.items():
            mean = 1.0 + gl.rank() if name == ALONE else statistics.mean(range(1, 1 + gl.size()))
            due = -mean * sum(map(scale, range(self.steps_done[name])))
            for number, weight in enumerate(model.parameters()):
                whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
                if not bool((whole == due).all()):
                    raise SystemExit(f"{name}: weight {number} is not {due} everywhere")


def scale(step: int) -> float:
    """What the gradients of a step are multiplied by, so that a sum of another step is noticed."""
    return 1.0 + step % 3


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def training(model: nn.Module, optimizer: torch.optim.Optimizer, summing: Callable[[], None] | None = None) -> Step:
    """A training step: backward pass, sums that the doors have not begun, optimizer."""
    leaf = torch.zeros((), requires_grad=True)

    def once(step: int) -> None:
        optimizer.zero_grad()
        model(leaf, scale(step) * (1 + gl.rank())).backward()
        if summing is not None:
            summing()
        optimizer.step()

    return once


def trained(model: nn.Module) -> Step:
    """The step of a model that sums its gradients itself."""
    return training(model, sgd(model))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """What a backward pass has made, in the order in which it makes them."""
    found = [weight.grad for weight in model.parameters()]
    return [gradient for gradient in reversed(found) if gradient is not None]


def names(model: nn.Module, door: str) -> list[str]:
    """A name for each of them; loads differ in their shapes."""
    shapes = "x".join(str(weight.numel()) for weight in model.parameters())[:60]
    return [f"{door} {shapes}.{name}" for name, _ in reversed(list(model.named_parameters()))]


def plain_calls(model: nn.Module) -> Callable[[], None]:
    called = names(model, "plain")
    gl.declare(dict(zip(called, map(torch.detach, reversed(list(model.parameters()))), strict=True)))

    def sum_all() -> None:
        for handle in list(map(gl.push_pull_async_, gradients(model), called)):
            handle.wait()

    return sum_all


def grouped_call(model: nn.Module) -> Callable[[], None]:
    called = names(model, "group")[0]
    return lambda: void(gl.grouped_push_pull_(gradients(model), called))


def operators(model: nn.Module) -> Callable[[], None]:
    called = names(model, "operator")

    def sum_all() -> None:
        for gradient, name in zip(gradients(model), called, strict=True):
            gradient.copy_(torch.ops.gradlane.push_pull(gradient, name, True))

    return sum_all


def hooked(model: nn.Module) -> Step:
    wrapper = ddp(model, None)
    wrapper.register_comm_hook(gl.State(wrapper), gl.ddp_comm_hook)
    return trained(wrapper)


def ddp(model: nn.Module, group: distributed.ProcessGroup | None) -> nn.parallel.DistributedDataParallel:
    return nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)


def sharded(model: nn.Module, group: distributed.ProcessGroup | None) -> nn.Module:
    assert group is not None
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    return model


def void(_: object) -> None:
    pass


def measure(options: argparse.Namespace) -> int:
    """Runs one worker; the first one prints."""
    torch.set_num_threads(1)
    gl.init()
    distributed.init_process_group("gloo", rank=gl.rank(), world_size=gl.size())
    loads, turns = (SHORT, 1) if options.short else (LOADS, options.turns)
    misses = []
    for load, shapes in loads.items():
        doors = Doors(shapes, options.only)
        times: dict[str, list[float]] = {name: [] for name in doors.steps}
        for turn in range(turns):
            names = list(times)
            first = turn * 5 % len(names)  # so that no row always follows the same one
            for name in names[first:] + names[:first]:
                times[name].append(doors.turn(name, options.steps))
        doors.check()
        ratio = report(load, times) if gl.rank() == 0 else 0.0
        if gl.rank() == 0 and options.expect is not None and ratio < options.expect:
            misses.append(f"{load}: Gloo takes {ratio:.2f} times as long as Gradlane, not {options.expect}")
    print("\n".join(misses), end="", file=sys.stderr)
    distributed.destroy_process_group()
    gl.shutdown()
    return 1 if misses else 0


def report(load: str, times: dict[str, list[float]]) -> float:
    """Prints a table. Returns how many times as long communication takes with DDP over Gloo as over Gradlane."""
    medians = {name: statistics.median(turns) for name, turns in times.items()}
    adds = {name: median - medians[ALONE] for name, median in medians.items()}
    print(f"\n{load}\n{'ms a step':32}{'median':>9}{'from':>9}{'to':>9}{'adds':>9}{'/ plain':>9}")
    for name, turns in times.items():
        row = f"{name:32}{medians[name]:9.2f}{min(turns):9.2f}{max(turns):9.2f}"
        print(row if name == ALONE else f"{row}{adds[name]:9.2f}{adds[name] / adds[PLAIN]:9.2f}")
    ratio = adds[GLOO] / adds[DDP]
    print(f"DDP over Gloo adds {ratio:.2f} times what DDP over Gradlane adds", flush=True)
    return ratio


def launch(options: argparse.Namespace) -> int:
    worker = [sys.executable, str(PLACE), "--worker", *sys.argv[1:]]
    env = {"OMP_NUM_THREADS": "1"}
    if options.rate is not None:
        try:
            with Machines(2 * WORKERS, options.rate) as machines:
                return machines.run(worker, WORKERS, WORKERS, env)
        except Unavailable as problem:
            print(problem, file=sys.stderr)
            return 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    return run_here(worker, options.transport, env)


def run_here(worker: Sequence[str], transport: str, env: dict[str, str]) -> int:
    """Runs the workers on this machine, with a server; returns the exit code."""
    if transport != "local":
        env = env | {"GRADLANE_LOCAL_REDUCE": "off", "GRADLANE_TRANSPORT": transport}
    job = [sys.executable, "-m", "gradlane", "run", "-n", str(WORKERS), "-s", "1", "--"]
    return subprocess.run([*job, *worker], env=os.environ | env, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transport", choices=["local", "shm", "quic"], default="local", help="what sums go through")
    parser.add_argument("--rate", help="of every link, such as 1gbit; needs root; sums go through QUIC")
    parser.add_argument("--only", default="", help="only the doors whose names contain this, such as Optimizer")
    parser.add_argument("--turns", type=int, default=5, help="turns of each row (default 5)")
    parser.add_argument("--steps", type=int, default=10, help="measured steps in a turn (default 10)")
    parser.add_argument("--expect", type=float, help="fail if DDP over Gloo takes less than this times as long as ours")
    parser.add_argument("--short", action="store_true", help="one turn with few small gradients")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return measure(options) if options.worker else launch(options)


if __name__ == "__main__":
    sys.exit(main())
