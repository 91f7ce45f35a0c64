"""Rules: optimizers that run on the servers, for `gradlane.parameters`.

    from gradlane import parameters, rules

    parameters.init("w", weights, rule=rules.AdamW(lr=1e-3))
    parameters.push_pull("w", gradient, out=weights, update="step")

A rule is a value: an optimizer and its numbers. Give all workers the same one; whoever gives another hears of both in a
`MismatchError`. Formulas and defaults are those of PyTorch's optimizers of these names (of `Lion`, those of its paper), and
servers compute in float32, in float64 for float64. For float16 and bfloat16 they keep the values in float32 too, so that
small steps add up.

`clip_norm` scales the gradients of a round down to that norm, before all else, as `clip_grad_norm_` of PyTorch does; 0 is for no
bound. The norm is that of the round's mean or sum over all parameters of a clock whose rules clip, wherever their servers are, so
all of them name the same bound, and their mode has rounds: `Sync` or `Backup`. If a gradient is infinite or not a number, the
factor is 0. `clip_value` then clamps each element of a gradient to plus or minus that; 0 is for no bound.

A *schedule* lets the learning rate follow the steps, that is, how often the rule was applied to the parameter (to each part
of a large one), by the gradients of all workers:

    rule = rules.AdamW(lr=1e-3, schedule=rules.Cosine(10_000, minimum=1e-5, warm_up=100))

A rule can keep *averages* of the values that it makes, for evaluation, in float32 or float64 too. They follow its steps: what
is added or assigned to the parameter counts from the next step on. Before the first one they are the value. They change
nothing else, and are read into a tensor of the parameter's dtype:

    rule = rules.AdamW(lr=1e-3, ema=rules.EMA(0.999), window=rules.Window(0.15))
    parameters.pull("w", averaged, kind="ema")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gradlane.errors import InvalidArgumentError

__all__ = [
    "EMA",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Constant",
    "Cosine",
    "Lion",
    "Muon",
    "PaddleAdagrad",
    "PaddleAdam",
    "PaddleSharedAdam",
    "PaddleStdAdagrad",
    "Polynomial",
    "RMSprop",
    "RowwiseAdagrad",
    "Rule",
    "Schedule",
    "SparseAdam",
    "StepDecay",
    "Window",
]


@dataclass(frozen=True)
class Schedule:
    """What all schedules are: use one of those below."""

    warm_up: int = dataclasses.field(default=0, kw_only=True)
    """The rate rises to `lr` within so many steps first: lr·(k+1)/warm_up, with k steps before. Then the schedule begins."""
    by: Literal["steps", "samples"] = dataclasses.field(default="steps", kw_only=True)
    """What all these steps are. With "samples" k is the number of samples of the rounds before, which `Clock.tick(samples=...)`
    says; this needs a mode with rounds. A `ServerOptimizer` counts one sample for each step of a worker."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The rate stays `lr`."""


@dataclass(frozen=True)
class StepDecay(Schedule):
    """The rate is multiplied by `gamma` after every `every` steps, as `StepLR` does."""

    every: int
    gamma: float = 0.1


@dataclass(frozen=True)
class Cosine(Schedule):
    """The rate falls from `lr` to `minimum` within `steps` steps, as `CosineAnnealingLR` does, and stays there."""

    steps: int
    minimum: float = 0.0


@dataclass(frozen=True)
class Polynomial(Schedule):
    """The rate is lr·(1 - k/steps)^power, as that of `PolynomialLR`, and 0 from there on."""

    steps: int
    power: float = 1.0


_SCHEDULES: dict[type, str] = {Constant: "const", StepDecay: "step", Cosine: "cosine", Polynomial: "poly"}
"""How the engine calls them."""


@dataclass(frozen=True)
class EMA:
    """The exponential average: after each step decay·average + (1 - decay)·value, at first the value before the first step."""

    decay: float = 0.999
    ramp: bool = False
    """Whether early values count more: at step n the decay is min(decay, (1 + n) / (10 + n)), as TensorFlow has it."""


@dataclass(frozen=True)
class Window:
    """The mean of the last values, as Paddle's `ModelAverage` has it.

    A window ends when it has `share` times as many values as there were steps, but with `least` values at the least, and with
    `most` at the latest. The mean is that of the values in the present window and in the one before.
    """

    share: float
    least: int = 10_000
    most: int = 10_000


_AVERAGES: dict[str, tuple[type, dict[str, str]]] = {
    "ema": (EMA, {"decay": "ema", "ramp": "ema_ramp"}),
    "window": (Window, {"share": "window", "least": "window_min", "most": "window_max"}),
}
"""What each field of a rule takes, and how the engine calls the fields of that."""


@dataclass(frozen=True)
class Rule:
    """What all rules are. Numbers out of their range are refused where the rule is used first, by name."""

    lr: float = 1e-3
    """The learning rate."""
    schedule: Schedule | None = dataclasses.field(default=None, kw_only=True)
    """How the learning rate follows the steps; None if it stays."""
    ema: EMA | None = dataclasses.field(default=None, kw_only=True)
    """The exponential average of the values; None if it is not kept."""
    window: Window | None = dataclasses.field(default=None, kw_only=True)
    """The mean of the last values; None if it is not kept."""
    clip_norm: float = dataclasses.field(default=0.0, kw_only=True)
    """The norm that the gradients of a round have at most, over all parameters of a clock."""

    def __str__(self) -> str:
        """As the engine reads it, such as `sgd:lr=0.1`. Each call that takes a rule takes this text too."""
        return f"{type(self).__name__.lower()}:{','.join(self._settings())}"

    def _settings(self) -> Iterator[str]:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "schedule":
                yield from _schedule(value)
            elif field.name in _AVERAGES:
                yield from _average(field.name, value)
            elif field.name == "betas":
                if not isinstance(value, tuple | list) or len(value) != 2:
                    raise InvalidArgumentError(f"betas={value!r}; give two numbers")
                yield from (f"beta{index}={_number('betas', beta)!r}" for index, beta in enumerate(value, 1))
            elif field.name == "adjust_lr_fn":
                yield f"adjust={'original' if value is None else value}"
            else:
                yield f"{field.name}={_number(field.name, value)!r}"


def _schedule(schedule: object) -> Iterator[str]:
    """The settings of a schedule."""
    if schedule is None:
        return
    if type(schedule) not in _SCHEDULES:
        raise InvalidArgumentError(f"schedule={schedule!r}; give one of gradlane.rules, such as rules.Cosine(1000)")
    yield f"schedule={_SCHEDULES[type(schedule)]}"
    for field in dataclasses.fields(schedule):  # type: ignore[arg-type]
        if field.name == "by":
            yield f"by={getattr(schedule, field.name)}"
            continue
        yield f"{field.name}={_number(field.name, getattr(schedule, field.name))!r}"


def _average(field: str, average: object) -> Iterator[str]:
    """The settings of an average."""
    if average is None:
        return
    kind, names = _AVERAGES[field]
    if not isinstance(average, kind):
        raise InvalidArgumentError(f"{field}={average!r}; give a rules.{kind.__name__}")
    numbers = {name: _number(name, getattr(average, name)) for name in names}
    first = next(iter(names))
    if numbers[first] == 0:
        raise InvalidArgumentError(f"{field}={average!r}: {first} is 0; give a number above 0, or no average")
    yield from (f"{names[name]}={number!r}" for name, number in numbers.items())


def _number(name: str, value: object) -> float:
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise InvalidArgumentError(f"{name}={value!r}; give a number")
    return float(value)


def text_of(rule: object) -> str | None:
    """The rule as the engine reads it; None if there is none."""
    if rule is None or isinstance(rule, str):
        return rule
    if isinstance(rule, Rule):
        return str(rule)
    raise InvalidArgumentError(f"rule={rule!r}; give one of gradlane.rules, such as rules.SGD(lr=0.1), or its text")


@dataclass(frozen=True)
class SGD(Rule):
    """Gradient descent. With `momentum`, Nesterov's if `nesterov`, which needs a `dampening` of 0."""

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_value: float = 0.0


@dataclass(frozen=True)
class Adam(Rule):
    """Adam, with the weight decay as a part of the gradient."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_value: float = 0.0


@dataclass(frozen=True)
class SparseAdam(Rule):
    """Adam as PyTorch's optimizer of this name has it: `eps` is added to the root before that is corrected. For `gradlane.tables`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_value: float = 0.0


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam, with the weight decay apart from the gradient."""

    weight_decay: float = 1e-2


@dataclass(frozen=True)
class Adamax(Adam):
    """Adam by the infinity norm."""

    lr: float = 2e-3


@dataclass(frozen=True)
class Adagrad(Rule):
    """Adagrad."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0
    clip_value: float = 0.0


@dataclass(frozen=True)
class RMSprop(Rule):
    """RMSprop, with `momentum` and `centered` if they are asked for."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False
    weight_decay: float = 0.0
    clip_value: float = 0.0


@dataclass(frozen=True)
class Lion(Rule):
    """Lion (arXiv:2302.06675), with the weight decay apart from the gradient."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    clip_value: float = 0.0


@dataclass(frozen=True)
class Muon(Rule):
    """Muon, for matrices: a momentum made orthogonal by 5 iterations of Newton-Schulz, and weight decay apart from the gradient.

    As in PyTorch, which iterates in bfloat16. It changes a matrix as a whole, so one server keeps all of it, up to 64 MiB, and
    works on it at each step: about 2 s for 1024 x 1024 elements, 10 s for 2048 x 2048, the largest square. Other parameters
    of the server wait meanwhile. Parameters of another shape, and larger ones, are refused.
    """

    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    eps: float = 1e-7
    adjust_lr_fn: str | None = None
    """How the rate follows the shape: "original" (also None), "match_rms_adamw" or "spectral_unclamped"."""
    clip_value: float = 0.0


@dataclass(frozen=True)
class RowwiseAdagrad(Rule):
    """Adagrad with one number for a whole row: the sum of the mean squares of its gradients. For `gradlane.tables` alone, as those below."""

    lr: float = 1e-2
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0
    clip_value: float = 0.0


@dataclass(frozen=True)
class PaddleAdagrad(Rule):
    """`sparse_adagrad` of Paddle's tables: lr·g·sqrt(g0 / (g0 + sum)), with the sum before the step and one sum for a row.

    Their `sparse_naive_sgd` is `SGD(lr=0.05)`, and their bounds of weights are `bound=` of the table.
    """

    lr: float = 0.05
    initial_g2sum: float = 3.0
    clip_value: float = 0.0


@dataclass(frozen=True)
class PaddleStdAdagrad(PaddleAdagrad):
    """`std_adagrad` of Paddle's tables: the same with a sum for each element."""


@dataclass(frozen=True)
class PaddleAdam(SparseAdam):
    """`sparse_adam` of Paddle's tables: Adam where each row counts its own steps, and `eps` is not corrected."""


@dataclass(frozen=True)
class PaddleSharedAdam(PaddleAdam):
    """`sparse_shared_adam` of Paddle's tables: the same with two moments for a row, the means of those of its elements."""
