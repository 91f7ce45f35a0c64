"""An optimizer whose rule runs on the servers, and which waits for other workers as much as its mode says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from gradlane._server_training import Average, ServerTraining, StepOutcome
from gradlane.errors import FailedPreconditionError, InvalidArgumentError
from gradlane.modes import Mode
from gradlane.parameters import Version
from gradlane.rules import Rule
from gradlane.torch._on_servers import trained
from gradlane.torch._owners import own
from gradlane.torch.broadcast import broadcast_parameters


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
    refused, as are `state_dict()` and groups with settings of their own. Clip gradients before `step()`, by `clip_value` of the rule,
    or in `Sync` and `Backup` by its `clip_norm`; with `torch.amp.GradScaler` a step whose gradients are not finite is left out, on this worker alone.
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
        self._named = trained(named_parameters)
        self._training = training = ServerTraining(rule, mode, name, timeout)
        own(self, list(self._named.items()))
        super().__init__(list(self._named.values()), {"lr": rule.lr})
        training.compare()
        broadcast_parameters(self._named, prefix=f"{training.prefix}/first ")
        training.begin(self._weights())

    @property
    def rule(self) -> Rule:
        """What the servers apply."""
        return self._training.rule

    @property
    def mode(self) -> Mode:
        """When they apply it."""
        return self._training.mode

    @property
    def outcome(self) -> StepOutcome | None:
        """What the last step has come to."""
        return self._training.outcome

    @property
    def versions(self) -> dict[str, Version]:
        """Of each parameter the version that the last step has taken over: one more for each gradient that was applied, or for
        each round."""
        return self._training.versions

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
        gradients = {}
        for label, parameter in self._named.items():
            if parameter.grad is None:
                continue
            if parameter.grad.layout != torch.strided:
                raise InvalidArgumentError(f"the gradient of {label} is sparse; make the layer with sparse=False")
            gradients[label] = parameter.grad.detach().contiguous()
        outcome = self._training.step(gradients, self._weights())
        return outcome if closure is None else loss

    def pull(self) -> None:
        """Takes over the present weights, with the steps of all workers that were made."""
        self._training.pull(self._weights())

    def leave(self) -> None:
        """Tell that this worker does no more steps, so that others wait for it no more. A mode without a clock waits for nobody.

        Call it behind the last step, where workers may have different numbers of batches.
        """
        self._training.leave()

    def averages(self, kind: Average = "ema") -> dict[str, torch.Tensor]:
        """An average of the weights that the rule keeps, in new tensors, for an evaluation of another model:

            evaluated = copy.deepcopy(model)
            evaluated.load_state_dict(optimizer.averages("ema"), strict=False)

        Raises:
            InvalidArgumentError: the rule does not keep this average.
        """
        averages = {label: torch.empty_like(weight) for label, weight in self._weights().items()}
        self._training.read_averages(kind, averages)
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
        self._training.__getstate__()

    def _weights(self) -> dict[str, torch.Tensor]:
        return {label: parameter.detach() for label, parameter in self._named.items()}
