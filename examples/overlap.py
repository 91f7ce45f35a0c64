"""Measures the gain of overlap: a training step on slow links, compared with computing alone and sending alone.

    python examples/overlap.py --rate 1gbit      as root: two workers and two servers on links of 1 Gbit/s
    python examples/overlap.py                   over the loopback, to see that it runs

The model is like VGG: convolutions that compute much and weigh little, then layers that weigh much and compute little. Its
compute is either done by this machine's cores (`--compute cpu`) or waited for (`--compute timed`), layer by layer in
proportion to its operations: as where an accelerator computes, and as two workers and two servers that share two cores
cannot show. Either way it is set so that the backward pass takes as long as sending the gradients, times `--balance`.

Prints the time of a step for computing alone, for sending alone, and for training with `CrossBarrier`, with Gradlane's and
with PyTorch's DistributedDataParallel (over Gloo), and their ratios to the larger of the first two, which no training can
beat. Contenders take turns; a time is the median over the turns, of the slower worker. All must end with the same weights.
Writes the timeline of some steps of the first worker and the second to `--timeline`.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradlane.torch as gl
import torch
from torch import distributed, nn
from torch.nn import functional

from shaped import Machines, Unavailable

WORKERS, SERVERS = 2, 2
CONVOLUTIONS = ((3, 32, 32), (32, 64, 16), (64, 128, 16), (128, 128, 8), (128, 256, 8), (256, 256, 4))
"""Channels in and out, and the side of the picture after it."""
DENSE = ((4096, 1024), (1024, 1024), (1024, 10))
PLACE = Path(__file__).resolve()
# Parts that take milliseconds on a slow link: a whole part has to be at its server before its sum goes back, and tensors
# that share a part arrive together.
SETTINGS = {"OMP_NUM_THREADS": "1", "GRADLANE_PARTITION_BYTES": "1 MiB", "GRADLANE_FUSE_BYTES": "16 KiB"}


def main() -> int:
    options = arguments().parse_args()
    return measure(options) if options.worker else launch(options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", help="of every link, such as 1gbit; needs root")
    parser.add_argument("--mtu", type=int, default=1500, help="largest packet of a link")
    parser.add_argument("--compute", choices=("cpu", "timed"), default="timed")
    parser.add_argument("--balance", type=float, default=1.0, help="backward time by sending time")
    parser.add_argument("--steps", type=int, default=5, help="per turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--width", type=float, default=1.0, help="scales the layers")
    parser.add_argument("--without", nargs="*", default=[], help="contenders to leave out, such as gloo")
    parser.add_argument("--expect", type=float, help="fail if CrossBarrier's ratio is above")
    parser.add_argument("--timeline", type=Path, default=Path("overlap.json"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def launch(options: argparse.Namespace) -> int:
    """Starts workers and servers, on separate machines if the links are shaped."""
    worker = [sys.executable, str(PLACE), "--worker", *sys.argv[1:]]
    env = {name: value for name, value in SETTINGS.items() if name not in os.environ}
    if options.rate is not None:
        try:
            with Machines(WORKERS + SERVERS, options.rate, options.mtu) as machines:
                return machines.run(worker, WORKERS, SERVERS, env)
        except Unavailable as problem:
            print(problem, file=sys.stderr)
            return 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    job = [sys.executable, "-m", "gradlane", "run", "-n", str(WORKERS), "-s", str(SERVERS), "--"]
    return subprocess.run([*job, *worker], env=os.environ | env, check=False).returncode


class Timed(torch.autograd.Function):
    """Takes as long as a layer on an accelerator, and makes a gradient as large as that layer's."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, layer: Layer) -> torch.Tensor:
        ctx.layer, ctx.shapes = layer, (weight.shape, bias.shape)
        time.sleep(layer.seconds)
        return inputs + weight.view(-1)[0] + bias[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        time.sleep(2 * ctx.layer.seconds)
        weight, bias = (gradient.mean().expand(shape).contiguous() for shape in ctx.shapes)
        return gradient, weight, bias, None


class Layer(nn.Module):
    """A layer of the model, described by its weights and its operations."""

    def __init__(self, weight: tuple[int, ...], operations: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(weight) * (2 / (torch.Size(weight).numel() // weight[0])) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(weight[0]))
        self.operations = operations
        self.seconds: float | None = None
        """Seconds of the forward pass; the backward pass takes twice as long. None computes the layer."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.seconds is not None:
            outputs: torch.Tensor = Timed.apply(inputs, self.weight, self.bias, self)
            return outputs
        if self.weight.dim() == 2:
            return functional.linear(inputs.flatten(1), self.weight, self.bias)
        return functional.conv2d(inputs, self.weight, self.bias, padding=1)


class VggLike(nn.Module):
    def __init__(self, width: float) -> None:
        super().__init__()
        wide = {channels: max(8, int(channels * width)) for channels in (32, 64, 128, 256, 1024)} | {3: 3, 10: 10}
        wide[4096] = 16 * wide[256]
        self.layers = nn.ModuleList(
            [Layer((wide[o], wide[i], 3, 3), 9 * wide[i] * wide[o] * side * side) for i, o, side in CONVOLUTIONS]
            + [Layer((wide[o], wide[i]), wide[i] * wide[o]) for i, o in DENSE]
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            inputs = functional.relu(layer(inputs)) if number < len(self.layers) - 1 else layer(inputs)
            # Halves the picture where the next layer expects it.
            if layer.seconds is None and number < len(CONVOLUTIONS) and number in (0, 2, 4):
                inputs = functional.max_pool2d(inputs, 2)
        return inputs

    def take(self, forward_seconds: float) -> None:
        """Makes a forward pass take `forward_seconds`, spread over the layers by their operations."""
        operations = sum(layer.operations for layer in self.layers)
        for layer in self.layers:
            layer.seconds = forward_seconds * layer.operations / operations


class Training:
    """One worker's side of all contenders."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.batch = 8
        self.forward_seconds: float | None = None
        self.weights: dict[str, list[torch.Tensor]] = {}
        if "gloo" not in options.without:
            distributed.init_process_group("gloo", rank=gl.rank(), world_size=gl.size())

    def model(self) -> VggLike:
        torch.manual_seed(1)
        model = VggLike(self.options.width)
        if self.forward_seconds is not None:
            model.take(self.forward_seconds)
        return model

    def once(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One step of training."""
        inputs = torch.full((self.batch, 3, 32, 32), 0.01 * (1 + gl.rank()))
        with gl.timeline.span("forward"):
            loss = model(inputs).square().mean()
        optimizer.zero_grad()
        with gl.timeline.span("backward"):
            loss.backward()
        with gl.timeline.span("step"):
            optimizer.step()

    def compute(self) -> Callable[[], None]:
        model = self.model()
        optimizer = plain(model)
        return lambda: self.once(model, optimizer)

    def send(self) -> Callable[[], None]:
        """All gradients, in the order of a backward pass, with the priorities of the wrappers."""
        listed = list(self.model().named_parameters())
        gl.declare({f"alone/{name}": parameter for name, parameter in listed})
        gradients = [(f"alone/{name}", torch.ones_like(parameter)) for name, parameter in listed]

        def send() -> None:
            order = reversed(list(enumerate(gradients)))
            for handle in [gl.push_pull_async_(tensor, name, priority=-i) for i, (name, tensor) in order]:
                handle.wait()

        return send

    def crossed(self) -> Callable[[], None]:
        model = self.model()
        optimizer = gl.CrossBarrier(model, plain(model))
        self.weights["CrossBarrier"] = list(model.parameters())
        self.settle = optimizer.state_dict
        return lambda: self.once(model, optimizer)

    def wrapped(self) -> Callable[[], None]:
        model = gl.DistributedDataParallel(self.model())
        optimizer = plain(model)
        self.weights["DistributedDataParallel"] = list(model.parameters())
        return lambda: self.once(model, optimizer)

    def gloo(self) -> Callable[[], None]:
        model = nn.parallel.DistributedDataParallel(self.model(), gradient_as_bucket_view=True)
        optimizer = plain(model)
        self.weights["PyTorch's over Gloo"] = list(model.parameters())
        return lambda: self.once(model, optimizer)

    def calibrate(self, send_seconds: float) -> None:
        """Makes the backward pass, two thirds of the computing, take `balance` times as long as sending."""
        wanted = 1.5 * self.options.balance * send_seconds
        if self.options.compute == "timed":
            self.forward_seconds = wanted / 3
            return
        for _ in range(2):  # the second time with a better estimate
            took = statistics.median(turn(self.compute(), self.options.steps))
            self.batch = max(1, round(self.batch * slowest(wanted / took)))


def measure(options: argparse.Namespace) -> int:
    """Runs one worker; the first one prints."""
    torch.set_num_threads(1)
    gl.init()
    training = Training(options)
    send_seconds = slowest(statistics.median(turn(training.send(), options.steps)))
    training.calibrate(send_seconds)
    contenders = {
        "compute alone": training.compute(),
        "send alone": training.send(),
        "CrossBarrier": training.crossed(),
        "DistributedDataParallel": training.wrapped(),
    }
    if "gloo" not in options.without:
        contenders["PyTorch's over Gloo"] = training.gloo()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.turns):
        for name, once in contenders.items():
            seconds[name].append(slowest(statistics.mean(turn(once, options.steps))))
            if name == "CrossBarrier":
                training.settle()
    wrong = differing(training.weights)
    record(options, contenders["CrossBarrier"], training.settle)
    ratio = report(options, training, seconds)
    if wrong:
        print(f"wrong weights: {', '.join(wrong)}", file=sys.stderr)
    gl.shutdown()
    return 1 if wrong or (options.expect is not None and ratio > options.expect) else 0


def turn(once: Callable[[], None], steps: int) -> list[float]:
    """Seconds from the end of one step to the end of the next, for `steps` steps after one that starts together."""
    gl.barrier("turn")
    once()
    ends = [time.perf_counter()]
    for _ in range(steps):
        once()
        ends.append(time.perf_counter())
    return [after - before for before, after in zip(ends, ends[1:], strict=False)]


def slowest(seconds: float) -> float:
    """The largest value of all workers."""
    return max(gl.allgather_object(seconds, "seconds"))


def record(options: argparse.Namespace, once: Callable[[], None], settle: Callable[[], object]) -> None:
    """Writes the timeline of three steps."""
    gl.barrier("timeline")
    once()
    path = gl.start_timeline(options.timeline.resolve())
    for _ in range(3):
        once()
    settle()
    gl.stop_timeline()
    if gl.rank() == 0:
        print(f"timeline of three steps, for ui.perfetto.dev: {path}")


def differing(weights: dict[str, list[torch.Tensor]]) -> list[str]:
    """The contenders whose weights differ from those of CrossBarrier after the same steps."""
    (_, ours), *others = weights.items()
    return [name for name, theirs in others if not all(map(torch.equal, ours, theirs))]


def report(options: argparse.Namespace, training: Training, seconds: dict[str, list[float]]) -> float:
    """Prints the table, and returns the ratio of CrossBarrier."""
    medians = {name: statistics.median(turns) for name, turns in seconds.items()}
    bound = max(medians["compute alone"], medians["send alone"])
    size = sum(parameter.nbytes for parameter in training.weights["CrossBarrier"])
    if gl.rank() == 0:
        kind = "waited for" if options.compute == "timed" else f"done by the cores, batches of {training.batch}"
        print(f"{WORKERS} workers, {SERVERS} servers, links of {options.rate or 'the loopback'}")
        print(f"gradients {size / 1e6:.1f} MB, compute {kind}; {options.turns} turns of {options.steps} steps")
        print(f"{'':26}{'ms a step':>10}{'from':>8}{'to':>8}{'by max':>8}")
        for name, turns in seconds.items():
            row = f"{medians[name] * 1e3:10.1f}{min(turns) * 1e3:8.1f}{max(turns) * 1e3:8.1f}"
            print(f"{name:26}{row}{medians[name] / bound:8.2f}")
    return medians["CrossBarrier"] / bound


def plain(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


if __name__ == "__main__":
    sys.exit(main())
