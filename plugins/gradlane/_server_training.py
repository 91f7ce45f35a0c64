"""Training of weights that live on servers, with a rule and in a mode. Knows no framework.

An optimizer of a framework knows its weights and gradients, and gives them here as tensors that `gradlane.parameters` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from gradlane import _names, modes, parameters
from gradlane._handle import Handle
from gradlane._objects import gather_by_rank
from gradlane.errors import Error, FailedPreconditionError, InvalidArgumentError, MismatchError
from gradlane.modes import Async, Mode
from gradlane.parameters import Version
from gradlane.rules import Rule

T = TypeVar("T")

Average = Literal["ema", "window"]
"""An average of the weights that a rule may keep."""


@dataclass(frozen=True)
class StepOutcome:
    """What a step of a `ServerOptimizer` has come to."""

    fates: dict[parameters.Fate, int]
    """How many parameters had which fate: their gradients were accepted, scaled, discarded or dropped."""
    lag: int
    """The largest lag of a gradient, in versions."""
    tick: parameters.Tick | None
    """Where this worker stands, if the mode has a clock."""


class ServerTraining:
    """Weights on the servers, each under a label that is equal on all workers.

    Make it, `compare()`, bring all workers to the same first weights, and `begin()` with these. Then take steps.
    """

    def __init__(self, rule: Rule, mode: Mode | None, name: str | None, timeout: float | None) -> None:
        """
        Args:
            rule: one of `gradlane.rules`.
            mode: one of `gradlane.modes`; None for `Async()`.
            name: a prefix of the parameters' names; None for a number.
            timeout: seconds for each use of the servers; None takes the job's step timeout.
        Raises:
            InvalidArgumentError: `rule` is no rule, or `mode` no mode.
        """
        if not isinstance(rule, Rule):
            raise InvalidArgumentError(f"rule={rule!r}; give one of gradlane.rules, such as rules.SGD(lr=0.1)")
        self.rule, self.mode = rule, modes.check_mode(Async() if mode is None else mode)
        self.prefix, self._timeout = _names.namespace("server optimizer", name), timeout
        is_async = isinstance(self.mode, Async)
        self._clock = None if is_async else parameters.Clock(f"{self.prefix}/clock", self.mode)
        self._is_sent = False
        self._made: dict[str, Version] = {}
        # Of the round that is open: what came to the servers, should a step fail before all of it did.
        self._brought: dict[str, Version] = {}
        self.outcome: StepOutcome | None = None
        """What the last step has come to."""
        self.versions: dict[str, Version] = {}
        """Of each weight the version that the last step has taken over: one more for each gradient that was applied, or for
        each round."""

    def compare(self) -> None:
        """Raises a MismatchError on all workers if one has another rule or mode."""
        compare(f"{self.prefix}/rule", "rule", str(self.rule))
        compare(f"{self.prefix}/mode", "mode", str(self.mode))

    def begin(self, weights: Mapping[str, Any]) -> None:
        """Gives the servers these weights, which are equal on all workers, and takes over the present ones.

        Else a part of one worker's could come first, and a part of another one's.
        """
        paced = self.mode if isinstance(self.mode, Async) else self._clock
        ended(
            [
                parameters.init_async(self._name(label), weight, rule=self.rule, mode=paced, timeout=self._timeout)
                for label, weight in weights.items()
            ]
        )
        self.pull(weights)

    def step(self, gradients: Mapping[str, Any], weights: Mapping[str, Any]) -> StepOutcome:
        """Sends the gradients, waits as the mode says, and takes over the weights.

        Where it has failed because others did not come in time, a call sends nothing again and goes on waiting.

        Args:
            gradients: of the weights that have one, by label.
            weights: by label, writable. A call that goes on waiting takes the same memory as the one that has failed.
        Raises:
            TimeoutError: others are too far behind; they are named.
        """
        has_rounds = modes.has_rounds(self.mode)
        tick = self._in_rounds(gradients, weights) if has_rounds else self._at_once(gradients, weights)
        self.outcome = _outcome(self._made, tick)
        return self.outcome

    def pull(self, weights: Mapping[str, Any]) -> None:
        """Takes over the present weights, with the steps of all workers that were made."""
        begun = {label: self._pulled(label, weight) for label, weight in weights.items()}
        self.versions = dict(zip(begun, ended(begun.values()), strict=True))

    def read_averages(self, kind: Average, averages: Mapping[str, Any]) -> None:
        """Reads an average of the weights that the rule keeps into these tensors.

        Raises:
            InvalidArgumentError: the rule does not keep this average.
        """
        if kind not in ("ema", "window"):
            raise InvalidArgumentError(f'kind={kind!r}; give "ema" or "window"')
        ended(
            [
                parameters.pull_async(self._name(label), average, kind=kind, timeout=self._timeout)
                for label, average in averages.items()
            ]
        )

    def leave(self) -> None:
        """Tells that this worker does no more steps. A mode without a clock waits for nobody."""
        if self._clock is not None:
            self._clock.leave(timeout=self._timeout)

    def __getstate__(self) -> NoReturn:
        """Refused: a copy would train the same weights on the servers."""
        raise FailedPreconditionError("a ServerOptimizer is not copied or pickled; make one for another model")

    def _at_once(self, gradients: Mapping[str, Any], weights: Mapping[str, Any]) -> parameters.Tick | None:
        """Each gradient is applied when it comes, and brings the weights back."""
        if not self._is_sent:
            begun = {
                label: self._stepped(label, gradients[label], weight) if label in gradients else self._pulled(label, weight)
                for label, weight in weights.items()
            }
            self.versions = self._made = dict(zip(begun, ended(begun.values()), strict=True))
        return self._tick()

    def _in_rounds(self, gradients: Mapping[str, Any], weights: Mapping[str, Any]) -> parameters.Tick | None:
        """Gradients are kept until the round is closed. Then the weights are there."""
        if not self._is_sent:
            self._bring(gradients)
            self._made, self._brought = self._brought, {}
        tick = self._tick()
        self.pull(weights)
        return tick

    def _bring(self, gradients: Mapping[str, Any]) -> None:
        """Brings the gradients of a round that the servers lack. A second one of a parameter would be refused."""
        error = None
        begun = {
            label: parameters.push_async(self._name(label), gradient, update="step", timeout=self._timeout)
            for label, gradient in gradients.items()
            if label not in self._brought
        }
        for label, handle in begun.items():
            try:
                self._brought[label] = handle.wait()
            except Error as failed:
                error = error or failed
        if error is not None:
            raise error

    def _tick(self) -> parameters.Tick | None:
        if self._clock is None:
            return None
        # What was sent is in the round, whatever becomes of the wait.
        self._is_sent = True
        tick = self._clock.tick(timeout=self._timeout)
        self._is_sent = False
        return tick

    def _pulled(self, label: str, weight: Any) -> Handle[Version]:
        return parameters.pull_async(self._name(label), weight, timeout=self._timeout)

    def _stepped(self, label: str, gradient: Any, weight: Any) -> Handle[Version]:
        return parameters.push_pull_async(
            self._name(label), gradient, out=weight, update="step", timeout=self._timeout
        )

    def _name(self, label: str) -> str:
        return f"{self.prefix}/{label}"


def _outcome(made: Mapping[str, Version], tick: parameters.Tick | None) -> StepOutcome:
    fates: dict[parameters.Fate, int] = {}
    for version in made.values():
        # A gradient that was kept for a round was applied with that, or dropped.
        fate = tick.fate if version.fate == "kept" and tick is not None else version.fate
        fates[fate] = fates.get(fate, 0) + 1
    return StepOutcome(fates, max((version.lag for version in made.values()), default=0), tick)


def compare(name: str, field: str, value: str) -> None:
    """Raises on all workers if one has another value of what `field` names, such as another rule."""
    values = gather_by_rank(value, name, plain=True)
    first = next(iter(values))
    for rank, other in values.items():
        if other != values[first]:
            raise MismatchError(
                f"worker {first} has the {field} {values[first]}, worker {rank} has {other}; give all workers the same",
                tensor=name,
                field=field,
                first=(first, values[first]),
                second=(rank, other),
            )


def ended(handles: Iterable[Handle[T]]) -> list[T]:
    """What they yield, once all have ended; the first error of all of them."""
    results, error = [], None
    for handle in handles:
        try:
            results.append(handle.wait())
        except Error as failed:
            error = error or failed
    if error is not None:
        raise error
    return results
