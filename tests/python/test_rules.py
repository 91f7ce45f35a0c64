"""Rules: optimizers on the servers do what those of PyTorch do."""

import math
import sys

import gradlane
import numpy as np
import pytest
import torch
from gradlane import InvalidArgumentError, MismatchError, parameters, rules

pytestmark = [pytest.mark.workers(2, servers=3), pytest.mark.over("shm", "quic")]

STEPS = 100
LARGE = 3 << 20
"""Elements of float32 for several parts of the default length, on all servers."""


class Lion(torch.optim.Optimizer):
    """As its paper has it; PyTorch has none."""

    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, {})
        self.lr, self.betas, self.weight_decay = lr, betas, weight_decay

    @torch.no_grad()
    def step(self, closure=None):
        for one in self.param_groups[0]["params"]:
            mean = self.state[one].setdefault("mean", torch.zeros_like(one))
            along = (self.betas[0] * mean + (1 - self.betas[0]) * one.grad).sign()
            one.mul_(1 - self.lr * self.weight_decay).sub_(along, alpha=self.lr)
            mean.mul_(self.betas[1]).add_(one.grad, alpha=1 - self.betas[1])


PAIRS = [
    (rules.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (
        rules.SGD(lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    ),
    (
        rules.SGD(lr=0.05, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    ),
    (
        rules.Adam(lr=0.01, betas=(0.8, 0.99), weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99), weight_decay=0.1),
    ),
    (rules.AdamW(lr=0.01, weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
    (
        rules.Adagrad(lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1),
    ),
    (
        rules.RMSprop(lr=0.01, momentum=0.5, centered=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    ),
    (rules.Adamax(lr=0.01, weight_decay=0.01), lambda p: torch.optim.Adamax(p, lr=0.01, weight_decay=0.01)),
    (rules.Lion(lr=0.01, weight_decay=0.1), lambda p: Lion(p, 0.01, (0.9, 0.99), 0.1)),
]


def gradients(step, shape):
    """Those of a step, from float32's numbers, equal wherever they are made."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("rule", "peer"), PAIRS, ids=[str(rule) for rule, _ in PAIRS])
def test_a_hundred_steps_are_those_of_pytorch(rule, peer, dtype):
    """Worker 0 pushes; all read. Float32 is compared with a run in float64, so no error of the peer is in it."""
    name, shape = f"{rule} {dtype}", (7, 13)
    first = gradients(1000, shape)
    value = first.to(dtype)
    parameters.init(name, value, rule=rule)
    gradlane.barrier(f"has begun {name}")
    ours = torch.nn.Parameter(first.double())
    optimizer = peer([ours])
    for step in range(STEPS):
        ours.grad = gradients(step, shape).double()
        optimizer.step()
        if gradlane.rank() == 0:
            parameters.push(name, gradients(step, shape).to(dtype), update="step")
    gradlane.barrier(f"was changed {name}")
    assert parameters.pull(name, value) == 1 + STEPS
    error = 1e-12 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(value.double(), ours.detach(), rtol=error, atol=error)


def orthogonal(matrix):
    """As PyTorch's Muon makes a momentum orthogonal, in the type of the matrix and not in bfloat16."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if is_tall else x


@pytest.mark.parametrize("adjust", [None, "match_rms_adamw", "spectral_unclamped"])
@pytest.mark.parametrize("shape", [(7, 13), (40, 8)], ids=str)
def test_muon_is_that_of_pytorch(shape, adjust, monkeypatch):
    label, first = f"muon {shape} {adjust}", gradients(1000, shape).double()
    rule = rules.Muon(lr=0.02, adjust_lr_fn=adjust, schedule=rules.Polynomial(2 * STEPS))
    parameters.init(label, first, rule=rule)
    gradlane.barrier(f"has begun {label}")
    muon = sys.modules["torch.optim._muon"]
    ours = torch.nn.Parameter(first.clone())
    optimizer = torch.optim.Muon([ours], lr=0.02, adjust_lr_fn=adjust)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, 2 * STEPS)
    monkeypatch.setattr(muon, "_zeropower_via_newtonschulz", lambda matrix, *_: orthogonal(matrix))
    for step in range(STEPS):
        ours.grad = gradients(step, shape).double()
        optimizer.step()
        scheduler.step()
        if gradlane.rank() == 0:
            parameters.push(label, ours.grad, update="step")
    gradlane.barrier(f"was changed {label}")
    value = torch.empty_like(first)
    assert parameters.pull(label, value) == 1 + STEPS
    torch.testing.assert_close(value, ours.detach(), rtol=1e-6, atol=1e-6)


def test_a_rule_of_matrices_keeps_them_whole():
    """A matrix of several parts, if it were cut, and its averages."""
    label, shape, rank = "whole matrix", (16, 196_608), gradlane.rank()
    first = gradients(7, shape)
    parameters.init(label, first, rule=rules.Muon(lr=0.5, weight_decay=0.0, momentum=0.0, ema=rules.EMA(0.5)))
    gradlane.barrier(f"may begin {label}")
    gradient, value, average = gradients(8, shape), torch.empty(shape), torch.empty(shape)
    if rank == 0:
        # The rule takes a while where nothing is optimised.
        parameters.push(label, gradient, update="step", timeout=100)
    gradlane.barrier(f"was changed {label}", timeout=100)
    assert parameters.pull(label, value) == 2
    along = 0.5 * orthogonal(gradient.double())
    torch.testing.assert_close(value.double(), first - along, rtol=1e-5, atol=1e-5)
    parameters.pull(label, average, kind="ema")
    torch.testing.assert_close(average.double(), first - along / 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "why"), [((4,), r"muon of a parameter of shape \[4\]"), ((2, 2, 2), r"\[2, 2, 2\]"), ((2048, 2050), "up to 2048 x 2048")])
def test_a_rule_of_matrices_refuses_other_shapes(shape, why):
    with pytest.raises(InvalidArgumentError, match=why):
        parameters.init(f"never a matrix {gradlane.rank()}", np.zeros(shape, np.float32), rule=rules.Muon())


def warmed(after):
    """A scheduler of PyTorch behind ten steps in which the rate rises."""

    def begin(optimizer):
        rising = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=9)
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, after(optimizer)], milestones=[10])

    return begin


SCHEDULES = [
    (rules.Constant(warm_up=10), warmed(lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0))),
    (rules.StepDecay(30, gamma=0.5), lambda o: torch.optim.lr_scheduler.StepLR(o, 30, gamma=0.5)),
    (rules.StepDecay(7, gamma=0.8, warm_up=10), warmed(lambda o: torch.optim.lr_scheduler.StepLR(o, 7, gamma=0.8))),
    (rules.Cosine(STEPS, minimum=1e-4), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=1e-4)),
    (
        rules.Cosine(90, warm_up=10),
        lambda o: torch.optim.lr_scheduler.LambdaLR(
            o, lambda k: (k + 1) / 10 if k < 10 else (1 + math.cos(math.pi * (k - 10) / 90)) / 2
        ),
    ),
    (rules.Polynomial(80, power=2), lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 80, power=2)),
    (rules.Polynomial(60, warm_up=10), warmed(lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 60))),
]


@pytest.mark.parametrize(("schedule", "peer"), SCHEDULES, ids=[str(schedule) for schedule, _ in SCHEDULES])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
def test_a_schedule_is_that_of_pytorch(name, schedule, peer):
    """The rate follows the steps of all workers together, on each part, in one order for all of them."""
    rule = getattr(rules, name)(lr=0.02, weight_decay=0.1, schedule=schedule)
    label, first = str(rule), gradients(1000, (7, 13)).double()
    parameters.init(label, first, rule=rule)
    ours = torch.nn.Parameter(first.clone())
    optimizer = getattr(torch.optim, name)([ours], lr=0.02, weight_decay=0.1)
    scheduler = peer(optimizer)
    for step in range(STEPS):
        gradlane.barrier(f"before {step} of {label}")
        ours.grad = gradients(step, (7, 13)).double()
        optimizer.step()
        scheduler.step()
        if step % gradlane.size() == gradlane.rank():
            parameters.push(label, ours.grad, update="step")
    gradlane.barrier(f"was changed {label}")
    value = torch.empty_like(first)
    assert parameters.pull(label, value) == 1 + STEPS
    torch.testing.assert_close(value, ours.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_averages_are_those_of_the_closed_form_and_disturb_nothing(dtype):
    """A hundred pushes of all workers, of which the second half comes behind a value that was assigned."""
    label, shape = f"averaged {dtype}", (7, 13)
    keeps = {"ema": rules.EMA(0.9, ramp=True), "window": rules.Window(0.25, least=4, most=15)}
    first = gradients(1000, shape).to(dtype)
    parameters.init(label, first, rule=rules.SGD(lr=0.1, **keeps))
    gradlane.barrier(f"has begun {label}")
    value, ema, window, former = first.double(), first.double(), [], []
    found = {kind: torch.empty_like(first) for kind in ("value", "ema", "window")}
    for kind in ("ema", "window"):
        assert parameters.pull(label, found[kind], kind=kind) == 1
        assert torch.equal(found[kind], first), "the value before the first step"
    for step in range(STEPS):
        gradlane.barrier(f"before {step} of {label}")
        if step == STEPS // 2:
            value = first.double()
            if gradlane.rank() == 0:
                parameters.push(label, first, update="assign")
            gradlane.barrier(f"assigned {label}")
        gradient = gradients(step, shape).to(dtype)
        if step % gradlane.size() == gradlane.rank():
            parameters.push(label, gradient, update="step")
        value = value - 0.1 * gradient.double()
        decay = min(0.9, (2 + step) / (11 + step))
        ema = decay * ema + (1 - decay) * value
        window.append(value)
        if len(window) >= 4 and len(window) >= min(15, 0.25 * (step + 1)):
            former, window = window, []
    gradlane.barrier(f"was changed {label}")
    mean = torch.stack(former + window).mean(0)
    rtol = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2}[dtype]
    for kind, expected in {"value": value, "ema": ema, "window": mean}.items():
        assert parameters.pull(label, found[kind], kind=kind) == 2 + STEPS
        torch.testing.assert_close(found[kind].double(), expected, rtol=rtol, atol=rtol)


def test_averages_of_large_tensors_come_from_all_servers():
    label = "large averages"
    first = gradients(7, (LARGE,))
    parameters.init(label, first, rule=rules.SGD(lr=1.0, ema=rules.EMA(0.5)))
    gradlane.barrier(f"may begin {label}")
    if gradlane.rank() == 0:
        parameters.push(label, torch.full((LARGE,), 2.0), update="step")
    gradlane.barrier(f"was changed {label}")
    value, average = torch.empty(LARGE), torch.empty(LARGE)
    parameters.pull_async(label, average, kind="ema").wait()
    parameters.pull(label, value)
    torch.testing.assert_close(value, first - 2, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(average, first - 1, rtol=1e-6, atol=1e-6)


def test_an_average_needs_a_rule_that_keeps_it():
    name = f"not averaged {gradlane.rank()}"
    out = np.zeros(2, np.float32)
    parameters.init(name, out, rule=rules.SGD(ema=rules.EMA(0.9)))
    with pytest.raises(InvalidArgumentError, match=r"pull \(window\) of a parameter whose rule keeps no such average"):
        parameters.pull(name, out, kind="window")
    with pytest.raises(InvalidArgumentError, match='kind=\'mean\'; give "value", "ema" or "window"'):
        parameters.pull(name, out, kind="mean")
    assert parameters.pull(name, out, kind="ema") == 1, "it is not harmed"
    parameters.init(f"plain {name}", out)
    with pytest.raises(InvalidArgumentError, match=r"pull \(ema\)"):
        parameters.pull(f"plain {name}", out, kind="ema")


@pytest.mark.workers(1, 2, servers=3)
def test_large_tensors_on_all_servers_are_changed_as_one():
    rule, rank = rules.AdamW(lr=0.01), gradlane.rank()
    first = gradients(7, (LARGE,))
    parameters.init("large", first, rule=rule)
    gradlane.barrier("large has begun")
    ours = torch.nn.Parameter(first.clone())
    optimizer = torch.optim.AdamW([ours], lr=0.01)
    value = torch.empty(LARGE)
    for step in range(3):
        ours.grad = gradients(step, (LARGE,))
        optimizer.step()
        if rank == 0:
            parameters.push_pull("large", ours.grad, out=value, update="step")
    gradlane.barrier("large was changed")
    assert parameters.pull("large", value) == 4
    torch.testing.assert_close(value, ours.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_add_up_small_steps(dtype):
    """Each step is below what the type can tell from 1."""
    name = f"small steps {dtype}"
    value = torch.ones(5, dtype=dtype)
    parameters.init(name, value, rule=rules.SGD(lr=1e-4))
    gradlane.barrier(f"may begin {name}")
    for _ in range(STEPS):
        parameters.push(name, torch.ones(5, dtype=dtype), update="step")
    gradlane.barrier(f"all did {name}")
    parameters.pull(name, value)
    expected = torch.full((5,), 1 - 1e-4 * STEPS * gradlane.size()).to(dtype)
    torch.testing.assert_close(value, expected, rtol=0, atol=float(torch.finfo(dtype).eps))


def test_gradients_of_all_workers_are_applied_once_each():
    value = np.zeros(3, np.float32)
    parameters.init("all", value, rule="sgd:lr=1")
    gradlane.barrier("all may begin")
    versions = [parameters.push("all", np.full(3, -float(8**gradlane.rank()), np.float32), update="step") for _ in range(5)]
    assert versions == sorted(set(versions))
    gradlane.barrier("all have pushed")
    assert parameters.pull("all", value) == 1 + 5 * gradlane.size()
    assert value.tolist() == [float(sum(5 * 8**rank for rank in range(gradlane.size())))] * 3


def test_what_is_assigned_is_what_the_rule_goes_on_from():
    if gradlane.rank() != 0:
        return
    value = torch.ones(2, dtype=torch.bfloat16)
    parameters.init("assigned", value, rule=rules.SGD(lr=1.0))
    parameters.push("assigned", value, update="step")
    parameters.push("assigned", torch.full((2,), 9.0, dtype=torch.bfloat16), update="assign")
    parameters.push_pull("assigned", torch.full((2,), 2.0, dtype=torch.bfloat16), out=value, update="step")
    assert value.tolist() == [7.0, 7.0]


def test_another_rule_is_refused_with_both():
    name = f"two rules {gradlane.size()}"
    if gradlane.rank() == 0:
        parameters.init(name, np.zeros(2, np.float32), rule=rules.SGD(lr=0.5))
    gradlane.barrier(f"declared {name}")
    other = rules.SGD(lr=0.25) if gradlane.rank() else rules.Adam()
    with pytest.raises(MismatchError, match=r"sgd:lr=0\.5") as raised:
        parameters.init(name, np.zeros(2, np.float32), rule=other)
    assert raised.value.fields["field"] == "rule"
    gradlane.barrier(f"refused {name}")


def test_a_parameter_with_a_rule_is_none_without():
    name = f"own rule {gradlane.rank()}"
    parameters.init(name, np.zeros(2, np.float32), rule=rules.Lion())
    with pytest.raises(MismatchError, match="now with rule none"):
        parameters.init(name, np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("sgdd", "no optimizer"),
        ("sgd:rate=1", "sets nothing"),
        (rules.SGD(lr=float("nan")), "lr is NaN"),
        (rules.SGD(lr=-1), "lr is -1"),
        (rules.Adam(betas=(0.9, 1.0)), "beta2 is 1"),
        (rules.SGD(nesterov=True), "nesterov"),
        (rules.SGD(lr="fast"), "lr='fast'"),
        (rules.Adam(betas=0.9), "betas=0.9"),
        (rules.Muon(adjust_lr_fn="none"), "there is no adjust none"),
        ("sgd:schedule=linear", "one of const, step, cosine, poly"),
        (rules.SGD(schedule=rules.Cosine(0)), "schedule cosine without steps"),
        (rules.SGD(schedule=rules.Cosine(100, minimum=1.0)), "minimum is 1"),
        (rules.SGD(schedule=rules.StepDecay(2.5)), "every is 2.5"),
        (rules.SGD(schedule=rules.Polynomial("many")), "steps='many'"),
        (rules.SGD(schedule="cosine"), "schedule='cosine'"),
        (rules.SGD(schedule=rules.Schedule(warm_up=10)), "schedule=Schedule"),
        (rules.SGD(ema=0.999), "ema=0.999; give a rules.EMA"),
        (rules.SGD(ema=rules.EMA(0.0)), "decay is 0"),
        (rules.SGD(ema=rules.EMA(1.0)), "ema is 1"),
        (rules.SGD(window=rules.Window(float("nan"))), "window is NaN"),
        (rules.SGD(window=rules.Window(0.5, most=0)), "window_max is 0"),
        (rules.SGD(window=rules.EMA()), "give a rules.Window"),
        ("sgd:ema_ramp=1", "ema_ramp without ema"),
        (rules.SGD(schedule=torch.optim.lr_scheduler.StepLR), "gradlane.rules"),
        (torch.optim.SGD, "gradlane.rules"),
    ],
)
def test_a_bad_rule_is_named(rule, why):
    with pytest.raises(InvalidArgumentError, match=why):
        parameters.init("never", np.zeros(2, np.float32), rule=rule)


def test_a_gradient_needs_a_rule_and_floats():
    name = f"no rule {gradlane.rank()}"
    parameters.init(name, np.zeros(2, np.float32))
    with pytest.raises(InvalidArgumentError, match="has no rule"):
        parameters.push(name, np.ones(2, np.float32), update="step")
    assert parameters.push(name, np.ones(2, np.float32)) == 2, "it is not harmed"
    with pytest.raises(InvalidArgumentError, match="of a parameter of int32"):
        parameters.init(f"integers {gradlane.rank()}", np.zeros(2, np.int32), rule=rules.SGD())
