"""Trains over slow links with every codec, beside PyTorch's DDP with its own hooks for communication, and compares the time to a loss.

    python examples/compression.py                                  as root: 100 Mbit/s and 1 Gbit/s, some minutes each
    python examples/compression.py --rates 100mbit --only int8 topk "Gloo, fp16"
    python examples/compression.py --rates none                     over the loopback, to see that it runs

Two trainings: a convolutional net on scikit-learn's handwritten digits, and a small transformer that predicts the next
character of Python's help texts. Each contender begins with the same weights and gets the same batches, on workers and
servers with a shaped link each. PyTorch's DDP runs over Gloo, which needs no servers; its PowerSGD hook also runs over
Gradlane's process group.

The loss to reach is that of training without compression after two thirds of its steps. Losses are means over all workers
and over 10 steps. At the end of each training, the weights of all workers must be equal, bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gradlane.torch as gl
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional

from shaped import Machines, Unavailable

PLACE = Path(__file__).resolve()
SMOOTHED_STEPS = 10
WITHOUT = "none"

CODECS = {
    WITHOUT: gl.Compression.none,
    "fp16": gl.Compression.fp16,
    "bf16": gl.Compression.bf16,
    "int8": gl.Compression.int8,
    "fp8_e4m3": gl.Compression.fp8_e4m3,
    "fp8_e5m2, feedback": gl.Compression.fp8_e5m2(feedback=True),
    "int4, feedback": gl.Compression.int4(feedback=True),
    "randomk 10 %, feedback": gl.Compression.randomk(k=100_000, feedback=True),
    "topk 1 %, feedback": gl.Compression.topk(feedback=True),
    "onebit, feedback": gl.Compression.onebit(feedback=True),
    "dithering, feedback": gl.Compression.dithering(feedback=True),
    "lossless": gl.Compression.lossless,
}
"""Ours, with the options that the README recommends."""


def power_sgd(group: Any, steps: int) -> tuple[object, Any]:
    """PyTorch's hook with rank 4, after a tenth of the steps without it, as its documentation advises."""
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=4, start_powerSGD_iter=max(2, steps // 10))
    return state, powerSGD_hook.powerSGD_hook


Hook = Callable[[Any, int], tuple[object, Any]]
"""Makes a hook and its state for a process group and a number of steps."""

HOOKS: dict[str, Hook | None] = {
    "Gloo": None,
    "Gloo, fp16": lambda group, _: (group, default_hooks.fp16_compress_hook),
    "Gloo, bf16": lambda group, _: (group, default_hooks.bf16_compress_hook),
    "Gloo, PowerSGD": power_sgd,
}
"""PyTorch's DDP over Gloo, with its hooks."""

OUR_GROUP_WITH_HOOK = "our group, PowerSGD"


def main() -> int:
    options = arguments().parse_args()
    if options.short:
        options.width, options.steps = 0.125, 6
    return work(options) if options.worker else launch(options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="*", default=["100mbit", "1gbit"], help="of every link; needs root unless none")
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--only", nargs="*", default=[], help=f"contenders beside {WITHOUT}")
    parser.add_argument("--workers", type=int, default=2, help="and as many servers")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--width", type=float, default=1.0, help="scales the layers")
    parser.add_argument("--short", action="store_true", help="small models and few steps: the figures mean nothing")
    parser.add_argument("--picture", type=Path, default=Path("compression.svg"), help="of the losses over time")
    parser.add_argument("--json", type=Path, help="a file for all losses and times")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser


def launch(options: argparse.Namespace) -> int:
    """Runs a job for each rate, prints their tables, and draws the picture."""
    trained: dict[str, list[Trained]] = {}
    for rate in options.rates:
        with tempfile.TemporaryDirectory(prefix="gradlane-compression-") as folder:
            found = Path(folder, "trained.json")
            worker = [sys.executable, str(PLACE), "--worker", str(found), *sys.argv[1:]]
            try:
                code = run(worker, rate, options.workers)
            except Unavailable as problem:
                print(problem, file=sys.stderr)
                return 2
            if code != 0:
                return code
            trained[rate] = [Trained(**fields) for fields in json.loads(found.read_text(encoding="utf-8"))]
        for task in options.tasks:
            report(rate, task, [one for one in trained[rate] if one.task == task], options)
    if options.json:
        options.json.write_text(json.dumps({rate: list(map(asdict, ones)) for rate, ones in trained.items()}), encoding="utf-8")
    draw(trained, options)
    return 0


def run(worker: list[str], rate: str, workers: int) -> int:
    """One job: on machines of their own if the links are shaped."""
    # A name of its own, because only one job of a name can run on a host.
    # The models are in host memory, and PyTorch's PowerSGD hook waits for a device where it sees one.
    env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GRADLANE_JOB": f"compression-{os.getpid()}"}
    if rate != "none":
        with Machines(2 * workers, rate) as machines:
            return machines.run(worker, workers, workers, env)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    env |= {"GRADLANE_LOCAL_REDUCE": "off", "GRADLANE_TRANSPORT": "quic"}
    job = [sys.executable, "-m", "gradlane", "run", "-n", str(workers), "-s", str(workers), "--"]
    return subprocess.run([*job, *worker], env=os.environ | env, check=False).returncode


# What is trained


class Task:
    """A model, its optimizer, and the batches of one worker."""

    def __init__(self, width: float) -> None:
        self.width = width

    def model(self) -> nn.Module:
        raise NotImplementedError

    def optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        raise NotImplementedError

    def batches(self, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        raise NotImplementedError

    def wide(self, channels: int) -> int:
        return max(8, int(channels * self.width) // 8 * 8)


class Digits(Task):
    """A convolutional net on 1,797 images of 8x8; nearly all of its weights are in one dense layer."""

    BATCH = 32

    def __init__(self, width: float) -> None:
        super().__init__(width)
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16 - 0.3
        self.labels = torch.tensor(labels)

    def model(self) -> nn.Module:
        few, many, dense = self.wide(16), self.wide(64), self.wide(1024)
        return nn.Sequential(
            nn.Conv2d(1, few, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(few, many, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * many, dense),
            nn.ReLU(),
            nn.Linear(dense, 10),
        )

    def optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def batches(self, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        draw = torch.Generator().manual_seed(1)
        for _ in range(steps):
            batch = torch.randint(len(self.images), (self.BATCH * gl.size(),), generator=draw)[gl.rank() :: gl.size()]
            yield self.images[batch], self.labels[batch]


class Characters(Task):
    """A transformer of two layers that predicts the next character of Python's help texts."""

    BATCH, CONTEXT = 8, 32

    def __init__(self, width: float) -> None:
        super().__init__(width)
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))
        self.text = torch.tensor(list(text.encode("ascii", "replace")))

    def model(self) -> nn.Module:
        return Transformer(self.wide(224), self.CONTEXT)

    def optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=2e-3)

    def batches(self, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        draw = torch.Generator().manual_seed(1)
        for _ in range(steps):
            begins = torch.randint(len(self.text) - self.CONTEXT - 1, (self.BATCH * gl.size(),), generator=draw)
            mine = begins[gl.rank() :: gl.size(), None] + torch.arange(self.CONTEXT + 1)
            yield self.text[mine[:, :-1]], self.text[mine[:, 1:]]


class Transformer(nn.Module):
    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(128, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 128)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.characters(inputs) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        outputs: torch.Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return outputs.transpose(1, 2)


TASKS: dict[str, type[Task]] = {"digits": Digits, "characters": Characters}


# One worker


@dataclass
class Trained:
    """What one contender came to."""

    task: str
    contender: str
    is_ours: bool
    parameters: int
    losses: list[float]
    """Of each step, the mean over the workers."""
    seconds: list[float]
    """From the beginning to the end of each step."""
    megabytes: float
    """That the worker's link carried in a step, mean of the two directions."""

    def smoothed(self) -> list[float]:
        ends = range(1, len(self.losses) + 1)
        return [statistics.mean(self.losses[max(0, end - SMOOTHED_STEPS) : end]) for end in ends]

    def seconds_to(self, loss: float) -> float | None:
        reached = (at for at, value in zip(self.seconds, self.smoothed(), strict=True) if value <= loss)
        return next(reached, None)


def work(options: argparse.Namespace) -> int:
    """Trains with all contenders in turn; the first worker writes what they came to."""
    torch.set_num_threads(1)
    gl.init()
    distributed.init_process_group("gloo", rank=gl.rank(), world_size=gl.size())
    ours = distributed.new_group(backend="gradlane")
    trained, differ = [], []
    for name in options.tasks:
        task = TASKS[name](options.width)
        for contender, wrap in contenders(options, ours).items():
            torch.manual_seed(1)
            model = wrap(task.model())
            one = train(name, contender, task, model, options.steps)
            trained.append(one)
            if len(set(gl.allgather_object(digest(model), "digest"))) > 1:
                differ.append(f"{name}, {contender}")
            if gl.rank() == 0:
                print(f"{name}, {contender}: {one.seconds[-1]:.1f} s", file=sys.stderr)
    if gl.rank() == 0:
        options.worker.write_text(json.dumps(list(map(asdict, trained))), encoding="utf-8")
    if differ:
        print(f"workers have different weights: {'; '.join(differ)}", file=sys.stderr)
    distributed.destroy_process_group()
    gl.shutdown()
    return 1 if differ else 0


def contenders(options: argparse.Namespace, ours: Any) -> dict[str, Callable[[nn.Module], nn.Module]]:
    """By name: what makes the model train on all workers."""

    def coded(compression: Any) -> Callable[[nn.Module], nn.Module]:
        return lambda model: gl.DistributedDataParallel(model, compression=compression)

    def hooked(hook: Hook | None, group: Any) -> Callable[[nn.Module], nn.Module]:
        def wrap(model: nn.Module) -> nn.Module:
            # The hook for PowerSGD begins collectives in callbacks, whose order among buckets may differ between workers: then Gloo
            # ends the process. With one bucket there is one order.
            bucket_mb = 1000 if hook is power_sgd else None
            wrapped = nn.parallel.DistributedDataParallel(
                model, process_group=group, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb
            )
            if hook is not None:
                wrapped.register_comm_hook(*hook(group, options.steps))
            return wrapped

        return wrap

    made = {name: coded(compression) for name, compression in CODECS.items()}
    made |= {name: hooked(hook, None) for name, hook in HOOKS.items()}
    made[OUR_GROUP_WITH_HOOK] = hooked(power_sgd, ours)
    unknown = [name for name in options.only if name not in made]
    if unknown:
        raise SystemExit(f"--only {unknown[0]!r} is no contender; there are {', '.join(made)}")
    return {name: wrap for name, wrap in made.items() if not options.only or name in [WITHOUT, *options.only]}


def train(task_name: str, contender: str, task: Task, model: nn.Module, steps: int) -> Trained:
    optimizer = task.optimizer(model.parameters())
    batches = list(task.batches(steps))
    losses, seconds = [], []
    gl.barrier("begin")
    carried, began = link_bytes(), time.perf_counter()
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    carried = link_bytes() - carried
    everywhere = gl.allgather_object(losses, "losses")
    return Trained(
        task=task_name,
        contender=contender,
        is_ours=contender not in HOOKS,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        losses=[statistics.mean(of) for of in zip(*everywhere, strict=True)],
        seconds=seconds,
        megabytes=carried / 2 / steps / 1e6,
    )


def link_bytes() -> int:
    """What the link of this machine has carried in both directions, headers included."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    lines = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()
    counts = next(line.partition(":")[2].split() for line in lines if line.strip().startswith(f"{name}:"))
    return int(counts[0]) + int(counts[8])


def digest(model: nn.Module) -> str:
    state = hashlib.sha256()
    for parameter in model.parameters():
        state.update(parameter.detach().contiguous().numpy().tobytes())
    return state.hexdigest()


# What came of it


def report(rate: str, task: str, trained: list[Trained], options: argparse.Namespace) -> None:
    """Prints a table of all contenders, and how much sooner each is there than PyTorch's best."""
    without = trained[0].smoothed()
    target = without[max(0, len(without) * 2 // 3 - 1)]
    theirs = [(seconds, one.contender) for one in trained if not one.is_ours and (seconds := one.seconds_to(target)) is not None]
    best = min(theirs, default=None)
    size = trained[0].parameters
    where = "the loopback" if rate == "none" else f"links of {rate}"
    print(f"\n{task}: {size / 1e6:.2f} M parameters, {options.workers} workers, {options.workers} servers, {where}")
    print(f"to a loss of {target:.3f}, in at most {options.steps} steps; MB: a step, on a worker's link, mean of both directions")
    if best is not None:
        print(f"x best: by how much sooner than PyTorch's best, {best[1]}, which takes {best[0]:.1f} s")
    print(f"{'':24}{'ms a step':>10}{'p10':>7}{'p90':>7}{'MB':>8}{'loss at end':>13}{'s to loss':>11}{'x best':>8}")
    for one in trained:
        steps = [end - begin for begin, end in zip([0.0, *one.seconds], one.seconds, strict=False)]
        tenths = statistics.quantiles(steps, n=10)
        reached = one.seconds_to(target)
        times = f"{reached:11.1f}" if reached is not None else f"{'not':>11}"
        factor = f"{best[0] / reached:8.2f}" if best is not None and reached is not None else f"{'':8}"
        row = f"{statistics.median(steps) * 1e3:10.0f}{tenths[0] * 1e3:7.0f}{tenths[-1] * 1e3:7.0f}{one.megabytes:8.3f}"
        print(f"{one.contender:24}{row}{one.smoothed()[-1]:13.3f}{times}{factor}", flush=True)


def draw(trained: dict[str, list[Trained]], options: argparse.Namespace) -> None:
    """Draws the losses over time: a row for each training, a column for each rate."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    tasks, rates = options.tasks, list(trained)
    size = (5 * len(rates) + 3, 4 * len(tasks))
    figure, grid = pyplot.subplots(len(tasks), len(rates), figsize=size, layout="constrained", squeeze=False)
    for row, task in zip(grid, tasks, strict=True):
        for axes, rate in zip(row, rates, strict=True):
            of_task = [one for one in trained[rate] if one.task == task]
            for number, one in enumerate(of_task):
                style = "-" if one.is_ours else "--"
                color = pyplot.get_cmap("tab20")(number % 20)
                axes.plot(one.seconds, one.smoothed(), style, color=color, label=one.contender, linewidth=1.2)
            axes.set(xscale="log", xlabel="seconds", ylabel="loss", title=f"{task}, {rate}")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    figure.savefig(options.picture)
    print(f"\nthe losses over time: {options.picture.resolve()}")


if __name__ == "__main__":
    sys.exit(main())
