"""An optimizer whose rule runs on the servers, and which waits for other workers as much as its mode says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch

from gradlane import _names, modes, parameters
from gradlane._handle import Handle
from gradlane.errors import FailedPreconditionError, InvalidArgumentError
from gradlane.modes import Async, Mode
from gradlane.parameters import Version
from gradlane.rules import Rule
from gradlane.torch._on_servers import compare, ended, trained
from gradlane.torch._owners import own
from gradlane.torch.broadcast import broadcast_parameters


@dataclass(frozen=True)
class StepOutcome:
    """What a step of a `ServerOptimizer` has come to."""

    fates: dict[parameters.Fate, int]
    """How many parameters had which fate: their gradients were accepted, scaled, discarded or dropped."""
    lag: int
    """The largest lag of a gradient, in versions."""
    tick: parameters.Tick | None
    """Where this worker stands, if the mode has a clock."""


class ServerOptimizer(torch.optim.Optimizer):
    """Trains a model whose weights live on the servers.

        optimizer = gl.ServerOptimizer(model.named_parameters(), rule=gl.rules.AdamW(lr=1e-3))
        for batch in loader:
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()

    `step()` sends each gradient to the servers of its parameter, which apply the rule to it, and takes over the weights that
    this makes, with the steps of other workers in them. Parameters without a gradient take over the present weights, too.
    The mode says when gradients are applied, and for whom a worker waits:

    * `gl.Async()`: when they come, and nobody waits. So a slow worker delays nobody, and its gradients are of older weights.
      With `max_staleness` those of too old weights are discarded, or scaled.
    * `gl.SSP(4)`: when they come, and a worker waits while the slowest is more than 4 steps behind.
    * `gl.Sync()`: once a step, to the mean of all. The weights are those of training by one worker with a larger batch.
    * `gl.Backup(k=3)`: once a step, to the mean of the first 3 workers; the gradients of the others are dropped.

    All workers make it, and begin with the weights of worker 0. Buffers, such as the running statistics of BatchNorm, stay on
    each worker. The job needs a server, unless this worker is alone.

    The learning rate and the moments are on the servers: give the rule a schedule in place of a scheduler of PyTorch, which is
    refused, as are `state_dict()` and groups with settings of their own. Clip gradients before `step()`, or by `clip_value` of the rule; with `torch.amp.GradScaler` a step whose
    gradients are not finite is left out, on this worker alone.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        rule: Rule,
        *,
        mode: Mode | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Gives the parameters of worker 0 to the servers and to all workers.

        Args:
            named_parameters: `model.named_parameters()`; names, dtypes and shapes are equal on all workers. Those that
                require no gradient are left out. Tensors are dense, contiguous and of floats.
            rule: one of `gradlane.rules`, equal on all workers.
            mode: one of `gradlane.modes`, equal on all workers; None for `Async()`.
            name: a prefix of the parameters' names; needed only if workers make optimizers in different orders.
            timeout: seconds for each use of the servers; None takes the job's step timeout.
        Raises:
            InvalidArgumentError: a parameter has no name, two have the same, none is left, `rule` is no rule, or a wrapper
                averages the gradients of the model.
            MismatchError: another worker's parameter has another dtype or shape, or another rule or mode.
            StallError: another worker did not make it in time.
            FailedPreconditionError: the job has no server.
        """
        if not isinstance(rule, Rule):
            raise InvalidArgumentError(f"rule={rule!r}; give one of gradlane.rules, such as rules.SGD(lr=0.1)")
        self._named = trained(named_parameters)
        own(self, list(self._named.items()))
        self._prefix, self._timeout = _names.namespace("server optimizer", name), timeout
        self.rule = rule
        self.mode = modes.check_mode(Async() if mode is None else mode)
        is_async = isinstance(self.mode, Async)
        self._clock = None if is_async else parameters.Clock(f"{self._prefix}/clock", self.mode)
        self._is_sent = False
        self.outcome: StepOutcome | None = None
        """What the last step has come to."""
        self.versions: dict[str, Version] = {}
        """Of each parameter the version that the last step has taken over: one more for each gradient that was applied, or for
        each round."""
        self._made: dict[str, Version] = {}
        super().__init__(list(self._named.values()), {"lr": rule.lr})
        compare(f"{self._prefix}/rule", "rule", str(rule))
        compare(f"{self._prefix}/mode", "mode", str(self.mode))
        # Else a part of one worker's could come first, and a part of another one's.
        broadcast_parameters(self._named, prefix=f"{self._prefix}/first ")
        paced = self.mode if isinstance(self.mode, Async) else self._clock
        begun = [
            parameters.init_async(self._name(label), parameter.detach(), rule=rule, mode=paced, timeout=timeout)
            for label, parameter in self._named.items()
        ]
        ended(begun)
        self.pull()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Sends the gradients, waits as the mode says, and takes over the weights.

        Where it has failed because others did not come in time, a call sends nothing again and goes on waiting.

        Returns:
            What `closure` does; without one, what became of the gradients: a `StepOutcome`.

        Raises:
            FailedPreconditionError: a scheduler has changed the learning rate, which is a part of the rule.
            InvalidArgumentError: a gradient is sparse.
            TimeoutError: others are too far behind; they are named.
        """
        rate = self.param_groups[0]["lr"]
        if rate != self.rule.lr:
            raise FailedPreconditionError(
                f"the learning rate is {rate}, and the rule on the servers has {self.rule.lr}; "
                "give the rule a schedule in place of a scheduler, such as rules.Cosine(1000)"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for label, parameter in self._named.items():
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise InvalidArgumentError(f"the gradient of {label} is sparse; make the layer with sparse=False")
        tick = self._in_rounds() if modes.has_rounds(self.mode) else self._at_once()
        self.outcome = _outcome(self._made, tick)
        return self.outcome if closure is None else loss

    def leave(self) -> None:
        """Tell that this worker does no more steps, so that others wait for it no more. A mode without a clock waits for nobody.

        Call it behind the last step, where workers may have different numbers of batches.
        """
        if self._clock is not None:
            self._clock.leave(timeout=self._timeout)

    def averages(self, kind: Literal["ema", "window"] = "ema") -> dict[str, torch.Tensor]:
        """An average of the weights that the rule keeps, in new tensors, for an evaluation of another model:

            evaluated = copy.deepcopy(model)
            evaluated.load_state_dict(optimizer.averages("ema"), strict=False)

        Raises:
            InvalidArgumentError: the rule does not keep this average.
        """
        if kind not in ("ema", "window"):
            raise InvalidArgumentError(f'kind={kind!r}; give "ema" or "window"')
        averages = {label: torch.empty_like(parameter.detach()) for label, parameter in self._named.items()}
        ended(
            [
                parameters.pull_async(self._name(label), average, kind=kind, timeout=self._timeout)
                for label, average in averages.items()
            ]
        )
        return averages

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuses groups after the first one, which the constructor makes."""
        if self.param_groups:
            raise FailedPreconditionError(
                "the parameters of a ServerOptimizer are fixed; make another one for those that come later"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> NoReturn:
        """Refused: what there would be to save is on the servers."""
        raise FailedPreconditionError(
            "the moments of a ServerOptimizer are on the servers, and are not saved; save the weights, by the model's state_dict()"
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> NoReturn:
        """Refused, as `state_dict`."""
        raise FailedPreconditionError(
            "the moments of a ServerOptimizer are on the servers, and cannot be loaded; load the weights before you make it"
        )

    def __getstate__(self) -> NoReturn:
        """Refused: a copy would train the same weights on the servers."""
        raise FailedPreconditionError("a ServerOptimizer is not copied or pickled; make one for another model")

    def _name(self, label: str) -> str:
        return f"{self._prefix}/{label}"

    def _at_once(self) -> parameters.Tick | None:
        """Each gradient is applied when it comes, and brings the weights back."""
        if not self._is_sent:
            begun = {
                label: self._pulled(label, parameter) if parameter.grad is None else self._stepped(label, parameter)
                for label, parameter in self._named.items()
            }
            self.versions = self._made = dict(zip(begun, ended(begun.values()), strict=True))
        return self._tick()

    def _in_rounds(self) -> parameters.Tick | None:
        """Gradients are kept until the round is closed. Then the weights are there."""
        if not self._is_sent:
            with_gradient = {label: each for label, each in self._named.items() if each.grad is not None}
            begun = {label: self._pushed(label, parameter) for label, parameter in with_gradient.items()}
            self._made = dict(zip(begun, ended(begun.values()), strict=True))
        tick = self._tick()
        self.pull()
        return tick

    def _tick(self) -> parameters.Tick | None:
        if self._clock is None:
            return None
        # What was sent is in the round, whatever becomes of the wait.
        self._is_sent = True
        tick = self._clock.tick(timeout=self._timeout)
        self._is_sent = False
        return tick

    def pull(self) -> None:
        """Takes over the present weights, with the steps of all workers that were made."""
        begun = {label: self._pulled(label, parameter) for label, parameter in self._named.items()}
        self.versions = dict(zip(begun, ended(begun.values()), strict=True))

    def _pulled(self, label: str, parameter: torch.nn.Parameter) -> Handle[Version]:
        return parameters.pull_async(self._name(label), parameter.detach(), timeout=self._timeout)

    def _pushed(self, label: str, parameter: torch.nn.Parameter) -> Handle[Version]:
        assert parameter.grad is not None
        gradient = parameter.grad.detach().contiguous()
        return parameters.push_async(self._name(label), gradient, update="step", timeout=self._timeout)

    def _stepped(self, label: str, parameter: torch.nn.Parameter) -> Handle[Version]:
        assert parameter.grad is not None
        return parameters.push_pull_async(
            self._name(label),
            parameter.grad.detach().contiguous(),
            out=parameter.detach(),
            update="step",
            timeout=self._timeout,
        )


def _outcome(made: dict[str, Version], tick: parameters.Tick | None) -> StepOutcome:
    fates: dict[parameters.Fate, int] = {}
    for version in made.values():
        # A gradient that was kept for a round was applied with that, or dropped.
        fate = tick.fate if version.fate == "kept" and tick is not None else version.fate
        fates[fate] = fates.get(fate, 0) + 1
    return StepOutcome(fates, max((version.lag for version in made.values()), default=0), tick)
