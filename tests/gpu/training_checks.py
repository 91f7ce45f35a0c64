"""Training on a device against the same training in one process."""

from __future__ import annotations

import contextlib

import gradlane.torch as gl
import torch
import torch.nn.functional as F
from groups import gloo
from places import device, put, put_module
from telling import passed
from torch import nn
from training import by_cross_barrier, by_optimizer, by_wrapper, mine, step

STEPS = 8
TOLERANCE = 1e-9
"""Absolute, on weights of about 1 in float64: the sum over workers is taken in another order, and kernels for half a
batch may add in another one than those for a whole. In float32 a rounding can grow beyond any tolerance that still
tells a fault.
"""


def made(seed: int = 7, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A small model on this worker's device."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)]
    return put_module(nn.Sequential(*layers).to(dtype))


def batches(steps: int = STEPS, dtype: torch.dtype = torch.float64, where=put):
    """Two batches in turn, the same on all workers."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(2, 32, 1, 8, 8, generator=generator).to(dtype)
    rule = torch.randn(64, 10, generator=generator).to(dtype)
    for number in range(steps):
        batch = inputs[number % 2]
        yield where(batch.clone()), where((batch.flatten(1) @ rule).argmax(1))


def sgd(parameters):
    """Plain steps, whose differences stay as small as those of the gradients."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters):
    """Steps of about one size."""
    # AdamW divides a gradient by its own size. With a small `eps` it would make a whole step of a rounding.
    return torch.optim.AdamW(parameters, lr=3e-3, eps=1e-3)


def by_hook(model, optimizer, compression=gl.Compression.none):
    """By PyTorch's wrapper with the hook of Gradlane."""
    # A small cap, for several buckets, which PyTorch builds anew after the first step.
    wrapped = nn.parallel.DistributedDataParallel(
        model, process_group=gloo(), bucket_cap_mb=0.05, gradient_as_bucket_view=True
    )
    wrapped.register_comm_hook(gl.State(model, compression=compression), gl.ddp_comm_hook)
    return wrapped, optimizer(wrapped.parameters())


def training() -> None:
    """Each way in with two optimizers, from weights that only rank 0 has; then what is special."""
    exact()
    for way_in in (by_wrapper, by_optimizer, by_hook, by_cross_barrier):
        for optimizer in (sgd, adamw):
            local = made(seed=7 + gl.rank())  # different on purpose: rank 0 is broadcast
            trained, stepping = way_in(local, optimizer)
            losses = [step(trained, stepping, mine(batch)) for batch in batches()]
            if way_in is by_cross_barrier:
                stepping.remove()
            reference = made()
            plain = optimizer(reference.parameters())
            for batch in batches():
                step(reference, plain, batch)
            what = f"{way_in.__name__} with {optimizer.__name__}"
            assert_close(local, reference, what)
            assert losses[-1] < losses[0], losses
            passed(f"training {what} equals that of one process")
    compressed()
    accumulated()


def compressed() -> None:
    """What is narrowed on the way comes back through the streams of futures."""
    for compression in (gl.Compression.none, gl.Compression.bf16):
        model = made(dtype=torch.float32)
        wrapped, stepping = by_hook(model, sgd, compression)
        for batch in batches(dtype=torch.float32):
            step(wrapped, stepping, mine(batch))
        if compression is gl.Compression.none:
            exactly = [p.detach().clone() for p in model.parameters()]
    distance = max((a - b).abs().max().item() for a, b in zip(exactly, model.parameters(), strict=True))
    assert 0 < distance < 0.05, distance
    passed("bf16 on the wire under PyTorch's wrapper stays near")


def accumulated() -> None:
    """Gradients of two passes are sent once."""
    model, reference = made(), made()
    wrapped, stepping = by_wrapper(model, sgd)
    plain = sgd(reference.parameters())
    for number, batch in enumerate(batches()):
        with contextlib.nullcontext() if number % 2 else wrapped.no_sync():
            F.cross_entropy(wrapped(mine(batch)[0]), mine(batch)[1]).backward()
        F.cross_entropy(reference(batch[0]), batch[1]).backward()
        if number % 2:
            for optimizer in (stepping, plain):
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
    assert_close(model, reference, "no_sync")
    passed("no_sync with gradients that are kept equals one process")


def amp() -> None:
    """Under GradScaler the gradients of one worker become infinite; then a model whose weights are narrow."""
    exact()
    model, kind = made(dtype=torch.float32), device().type
    wrapped, stepping = by_wrapper(model, sgd)
    scaler = torch.amp.GradScaler(kind, init_scale=1024.0, growth_interval=1000)
    narrow = torch.float16 if kind == "cuda" else torch.bfloat16
    for number, (inputs, labels) in enumerate(map(mine, batches(4, torch.float32))):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        stepping.zero_grad()
        with torch.autocast(kind, narrow):
            loss = F.cross_entropy(wrapped(inputs).float(), labels)
        if number == 1 and gl.rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(stepping)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(stepping)
        scaler.update()
        is_same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        scales = gl.allgather_object((is_same, scaler.get_scale()), f"scale {number}")
        assert set(scales) == {(number == 1, 512.0 if number >= 1 else 1024.0)}, scales
    passed("an infinite gradient on one rank makes all skip the step, with the same scales")
    half = made().to(narrow)
    wrapped, stepping = by_wrapper(half, sgd)
    for inputs, labels in map(mine, batches()):
        stepping.zero_grad()
        F.cross_entropy(wrapped(inputs.to(narrow)).float(), labels).backward()
        stepping.step()
    digests = gl.allgather_object([p.double().sum().item() for p in half.parameters()], "half")
    assert digests[0] == digests[1]
    passed(f"a model of {narrow} stays the same on all workers")


class Parts(nn.Module):
    """A model on the CPU and on every device there is, up to two."""

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__()
        self.places = devices
        self.layers = nn.ModuleList(nn.Linear(64, 64).double().to(device) for device in devices)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer, device in zip(self.layers, self.places, strict=True):
            inputs = F.relu(layer(inputs.to(device)))
        return inputs.cpu()


def several_places() -> None:
    """A model on the CPU and up to two devices."""
    exact()
    places = [torch.device("cpu"), *(torch.device("cuda", n) for n in range(min(2, torch.cuda.device_count())))]

    def new(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Parts(places)

    model, reference = new(7 + gl.rank()), new(7)
    wrapped, stepping = by_wrapper(model, sgd)
    plain = sgd(reference.parameters())
    for inputs, labels in batches(where=lambda tensor: tensor):
        step(wrapped, stepping, mine((inputs.flatten(1), labels)))
        step(reference, plain, (inputs.flatten(1), labels))
    assert_close(model, reference, "several places")
    passed(f"a model on {', '.join(map(str, places))} trains as in one process")


def assert_close(model: nn.Module, reference: nn.Module, what: str) -> None:
    """The model has the weights of the reference, and the same ones on all workers."""
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    distance = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
    assert distance <= TOLERANCE, f"{what}: {distance}"
    sums = gl.allgather_object([p.double().sum().item() for p in model.parameters()], f"sums {what}")
    assert sums[0] == sums[-1], f"{what}: replicas differ"


def exact() -> None:
    """Has float32 be float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
