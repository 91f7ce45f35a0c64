"""An optimizer whose rule runs on the servers, and which waits for no other worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn

import torch

from gradlane import _names, parameters
from gradlane._handle import Handle
from gradlane._objects import gather_by_rank
from gradlane.errors import Error, FailedPreconditionError, InvalidArgumentError, MismatchError
from gradlane.rules import Rule
from gradlane.torch._owners import own
from gradlane.torch.broadcast import broadcast_parameters


class ServerOptimizer(torch.optim.Optimizer):
    """Trains a model whose weights live on the servers, asynchronously.

        optimizer = gl.ServerOptimizer(model.named_parameters(), rule=gl.rules.AdamW(lr=1e-3))
        for batch in loader:
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()

    `step()` sends each gradient to the servers of its parameter, which apply the rule to it when it comes, and takes over
    the weights that this makes, with the steps of other workers in them. So a slow worker delays nobody, and its
    gradients are of older weights. Parameters without a gradient take over the present weights, too.

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
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Gives the parameters of worker 0 to the servers and to all workers.

        Args:
            named_parameters: `model.named_parameters()`; names, dtypes and shapes are equal on all workers. Those that
                require no gradient are left out. Tensors are dense, contiguous and of floats.
            rule: one of `gradlane.rules`, equal on all workers.
            name: a prefix of the parameters' names; needed only if workers make optimizers in different orders.
            timeout: seconds for each use of the servers; None takes the job's step timeout.
        Raises:
            InvalidArgumentError: a parameter has no name, two have the same, none is left, `rule` is no rule, or a wrapper
                averages the gradients of the model.
            MismatchError: another worker's parameter has another dtype or shape, or another rule.
            StallError: another worker did not make it in time.
            FailedPreconditionError: the job has no server.
        """
        if not isinstance(rule, Rule):
            raise InvalidArgumentError(f"rule={rule!r}; give one of gradlane.rules, such as rules.SGD(lr=0.1)")
        self._named = _trained(named_parameters)
        own(self, list(self._named.items()))
        self._prefix, self._timeout = _names.namespace("server optimizer", name), timeout
        self.rule = rule
        self.versions: dict[str, int] = {}
        """Of each parameter the version that the last step has taken over: one more for each step of any worker."""
        super().__init__(list(self._named.values()), {"lr": rule.lr})
        _compare_rules(f"{self._prefix}/rule", str(rule))
        # Else a part of one worker's could come first, and a part of another one's.
        broadcast_parameters(self._named, prefix=f"{self._prefix}/first ")
        begun = [
            parameters.init_async(self._name(label), parameter.detach(), rule=rule, timeout=timeout)
            for label, parameter in self._named.items()
        ]
        _ended(begun)
        self._use({label: self._pulled(label, parameter) for label, parameter in self._named.items()})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Sends the gradients, and takes over the weights that they make. Returns what `closure` does.

        Raises:
            FailedPreconditionError: a scheduler has changed the learning rate, which is a part of the rule.
            InvalidArgumentError: a gradient is sparse.
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
        self._use(
            {
                label: self._pulled(label, parameter) if parameter.grad is None else self._stepped(label, parameter)
                for label, parameter in self._named.items()
            }
        )
        return loss

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
        _ended(
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

    def _pulled(self, label: str, parameter: torch.nn.Parameter) -> Handle[int]:
        return parameters.pull_async(self._name(label), parameter.detach(), timeout=self._timeout)

    def _stepped(self, label: str, parameter: torch.nn.Parameter) -> Handle[int]:
        assert parameter.grad is not None
        return parameters.push_pull_async(
            self._name(label),
            parameter.grad.detach().contiguous(),
            out=parameter.detach(),
            update="step",
            timeout=self._timeout,
        )

    def _use(self, begun: dict[str, Handle[int]]) -> None:
        self.versions = dict(zip(begun, _ended(begun.values()), strict=True))


def _trained(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, torch.nn.Parameter]:
    named: dict[str, torch.nn.Parameter] = {}
    for entry in named_parameters:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)):
            raise InvalidArgumentError("give model.named_parameters(): each parameter with its name")
        label, parameter = entry
        if label in named:
            raise InvalidArgumentError(f"two parameters are called {label}; give each its own name")
        if parameter.requires_grad:
            named[label] = parameter
    if not named:
        raise InvalidArgumentError("no parameter requires a gradient; there is nothing to train")
    return named


def _compare_rules(name: str, rule: str) -> None:
    """Raises on all workers if one has another rule."""
    rules = gather_by_rank(rule, name, plain=True)
    first = next(iter(rules))
    for rank, other in rules.items():
        if other != rules[first]:
            raise MismatchError(
                f"worker {first} has the rule {rules[first]}, worker {rank} has {other}; give all workers the same",
                tensor=name,
                field="rule",
                first=(first, rules[first]),
                second=(rank, other),
            )


def _ended(handles: Iterable[Handle[int]]) -> list[int]:
    """What they yield, once all have ended; the first error of all of them."""
    versions, error = [], None
    for handle in handles:
        try:
            versions.append(handle.wait())
        except Error as failed:
            error = error or failed
    if error is not None:
        raise error
    return versions
