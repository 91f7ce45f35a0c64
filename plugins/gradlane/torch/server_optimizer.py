"""An optimizer whose rule runs on the servers, and which waits for other workers as much as its mode says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import torch

from gradlane._accumulation import Accumulation, Merge
from gradlane._server_training import Average, ServerTraining, StepOutcome
from gradlane.errors import FailedPreconditionError, InvalidArgumentError
from gradlane.modes import Mode
from gradlane.parameters import Version
from gradlane.rules import Rule
from gradlane.torch._early import Early
from gradlane.torch._on_servers import trained
from gradlane.torch._owners import own, watch_frozen
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
    refused, as are groups with settings of their own. Clip gradients before `step()`, by `clip_value` of the rule, or in
    `Sync` and `Backup` by its `clip_norm`; with `torch.amp.GradScaler` a step whose gradients are not finite is left out, on
    this worker alone.

    With `accumulate=n`, the gradients of n calls of `step()` are sent together, in the n-th one. The others only take them out
    of the parameters, and return None. `flush()` sends those of the last calls, if they were fewer. A step that a GradScaler
    leaves out is none of the n. What is sent is their mean, in which each counts by the `samples` of its call: the gradient of
    the batch of all, for losses that are means over samples. In a mode with rounds the means of all workers count alike.

    With `overlap=True`, each gradient leaves during `backward()`, and `step()` waits for it. Until then its use raises
    FailedPreconditionError, as by clipping and by a GradScaler, and so does a second backward pass outside of `no_sync()`.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        rule: Rule,
        *,
        mode: Mode | None = None,
        accumulate: int = 1,
        merge: Merge = "mean",
        overlap: bool = False,
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Gives the parameters of worker 0 to the servers and to all workers.

        Args:
            named_parameters: `model.named_parameters()`; names, dtypes and shapes are equal on all workers. Those that
                require no gradient are left out. Tensors are dense, contiguous and of floats.
            rule: one of `gradlane.rules`, equal on all workers.
            mode: one of `gradlane.modes`, equal on all workers; None for `Async()`.
            accumulate: how many micro-batches are sent together. Workers may have different numbers.
            merge: what is sent of them: "mean", or "sum" for the sum of their gradients.
            overlap: whether gradients are sent during the backward pass.
            name: a prefix of the parameters' names; needed only if workers make optimizers in different orders.
            timeout: seconds for each use of the servers; None takes the job's step timeout.
        Raises:
            InvalidArgumentError: a parameter has no name, two have the same, none is left, `rule` is no rule, another argument
                is not what it should be, or a wrapper averages the gradients of the model.
            MismatchError: another worker's parameter has another dtype or shape, or another rule or mode.
            StallError: another worker did not make it in time.
            FailedPreconditionError: the job has no server.
        """
        given = list(named_parameters)
        self._named = trained(given)
        narrowed = partial(_narrowed, self._named)
        accumulation: Accumulation[torch.Tensor] = Accumulation(accumulate, merge, widened=_widened, narrowed=narrowed)
        self._accumulates, self._overlaps, self._is_local = accumulation.due > 1, overlap, False
        self._training = training = ServerTraining(rule, mode, name, timeout, accumulation if self._accumulates else None)
        own(self, list(self._named.items()))
        super().__init__(list(self._named.values()), {"lr": rule.lr})
        training.compare()
        broadcast_parameters(self._named, prefix=f"{training.prefix}/first ")
        training.begin(self._weights())
        watch_frozen(self, [(label, parameter) for label, parameter in given if not parameter.requires_grad], _UNFREEZE)
        self._early = Early(self, self._named if overlap else {}, ServerOptimizer._send_early)

    @property
    def rule(self) -> Rule:
        """What the servers apply."""
        return self._training.rule

    @property
    def mode(self) -> Mode:
        """When they apply it."""
        return self._training.mode

    @property
    def prefix(self) -> str:
        """What the names of its parameters on the servers begin with, before a slash: of those in a checkpoint, too."""
        return self._training.prefix

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
    def step(self, closure: Callable[[], Any] | None = None, *, samples: float | None = None) -> Any:
        """Sends the gradients, waits as the mode says, and takes over the weights.

        Where it has failed because others did not come in time, a call sends nothing again and goes on waiting.

        Args:
            closure: computes the loss and the gradients, as for any optimizer.
            samples: what this micro-batch counts in the mean, with `accumulate`; None for 1.

        Returns:
            What `closure` does; without one, what became of the gradients, a `StepOutcome`, or None if none were due.

        Raises:
            FailedPreconditionError: a scheduler has changed the learning rate, which is a part of the rule; it is called within
                `no_sync()` or by two threads; or a gradient was changed on its way.
            InvalidArgumentError: a gradient is sparse, or `samples` is no number above zero, or comes where gradients have left
                before.
            TimeoutError: others are too far behind; they are named.
        """
        rate = self.param_groups[0]["lr"]
        if rate != self.rule.lr:
            raise FailedPreconditionError(
                f"the learning rate is {rate}, and the rule on the servers has {self.rule.lr}; "
                "give the rule a schedule in place of a scheduler, such as rules.Cosine(1000)"
            )
        self._refuse_local("step()")
        loss = None
        with self._training.alone("step()"):
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            outcome = self._step(samples)
        return outcome if closure is None else loss

    def flush(self) -> StepOutcome | None:
        """Sends the micro-batches that `accumulate` has kept, if they are fewer than it says, and takes over the weights.

        Call it behind the last batch of an epoch. Their mean is over as many as they are.

        Returns:
            What became of the gradients; None if there were none.
        Raises:
            The errors of `step`. FailedPreconditionError too: gradients are on their way.
        """
        self._refuse_early("flush()")
        with self._training.alone("flush()"):
            return self._training.flush(self._weights())

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients stay here and add up, as they do in PyTorch; the next backward pass sends the sums.

        Without `overlap` they do so anyway, until `step()`.
        """
        was_local, self._is_local = self._is_local, True
        try:
            yield
        finally:
            self._is_local = was_local

    def pull(self) -> None:
        """Takes over the present weights, with the steps of all workers that were made, or those of a checkpoint that was loaded."""
        self._training.pull(self._weights())

    def leave(self) -> None:
        """Tell that this worker does no more steps, so that others wait for it no more. A mode without a clock waits for nobody.

        Call it behind the last step, where workers may have different numbers of batches. It flushes what was accumulated.
        """
        self.flush()
        self._training.leave()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients.

        Raises:
            FailedPreconditionError: some are on their way, as after a backward pass that was not followed by `step()`.
        """
        self._refuse_early("zero_grad()")
        super().zero_grad(set_to_none)

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

    def state_dict(self) -> dict[str, Any]:
        """What this worker keeps: the micro-batches that were accumulated, and where it stands: versions and round.

        Weights, moments and steps are on the servers, and no part of it.

        Raises:
            FailedPreconditionError: a step has failed half way, or gradients are on their way.
        """
        self._refuse_early("state_dict()")
        return {**super().state_dict(), "server_training": self._training.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the micro-batches of a state, and compares what else it has.

        Raises:
            InvalidArgumentError: it is no state of a ServerOptimizer, or of one with another rule, mode, model or accumulation.
            FailedPreconditionError: the servers do not have the weights and moments of this state, or those of later steps; or
                gradients are on their way.
        """
        self._refuse_early("load_state_dict()")
        if not isinstance(state_dict, Mapping) or "server_training" not in state_dict:
            raise InvalidArgumentError("this is no state of a ServerOptimizer; give what its state_dict() has returned")
        with self._training.alone("load_state_dict()"):
            self._training.load(state_dict["server_training"], self._copied)

    def __getstate__(self) -> NoReturn:
        """Refused: a copy would train the same weights on the servers."""
        self._training.__getstate__()

    def _step(self, samples: float | None) -> StepOutcome | None:
        if samples is not None and self._overlaps and self._accumulates:
            raise InvalidArgumentError(
                f"samples={samples} with overlap=True, where gradients leave before step() says it; leave one of them out"
            )
        try:
            gradients = self._gradients()
            if self._training.accumulate(gradients, 1.0 if samples is None else samples):
                for label in gradients:
                    self._named[label].grad = None
            outcome = self._training.step(gradients, self._weights())
        except BaseException:
            with contextlib.suppress(FailedPreconditionError):
                self._early.end(keeps=not self._accumulates)
            raise
        self._early.end(keeps=not self._accumulates)
        return outcome

    def _gradients(self) -> dict[str, torch.Tensor]:
        """The gradients that are there. Those of a micro-batch that have left are accumulated already."""
        left = self._early.gradients()
        gradients = {} if self._accumulates else left
        for label, parameter in self._named.items():
            if parameter.grad is not None and label not in left:
                gradients[label] = _dense(label, parameter.grad).detach().contiguous()
        return gradients

    def _send_early(self, label: str) -> None:
        """A backward pass has made this gradient."""
        if self._is_local:
            return
        self._training.refuse_failed("a backward pass")
        if not self._training.sends_next:
            return
        parameter = self._named[label]
        if parameter.grad is not None:
            _dense(label, parameter.grad)
        loan = self._early.lend(label, parameter)
        self._training.send_early(label, loan.gradient.detach())
        loan.submitted()

    def _refuse_early(self, call: str) -> None:
        if self._early:
            raise FailedPreconditionError(
                f"{call} while gradients are on their way to the servers; call step() between backward() and {call}"
            )

    def _refuse_local(self, call: str) -> None:
        if self._is_local:
            raise FailedPreconditionError(f"{call} within no_sync(), where gradients stay here; call it behind that")

    def _copied(self, label: str, total: torch.Tensor) -> torch.Tensor:
        """A copy where the parameter is."""
        if total.shape != self._named[label].shape:
            raise InvalidArgumentError(f"the state does not fit parameter {label}; load it into the model of which it is")
        return total.to(self._named[label].device, copy=True).contiguous()

    def _weights(self) -> dict[str, torch.Tensor]:
        return {label: parameter.detach() for label, parameter in self._named.items()}


_UNFREEZE = "unfreeze parameters before you make the ServerOptimizer"


def _widened(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32), copy=True)


def _narrowed(named: Mapping[str, torch.nn.Parameter], label: str, total: torch.Tensor) -> torch.Tensor:
    return total.to(named[label].dtype)


def _dense(label: str, gradient: torch.Tensor) -> torch.Tensor:
    if gradient.layout != torch.strided:
        raise InvalidArgumentError(f"the gradient of {label} is sparse; make the layer with sparse=False")
    return gradient
