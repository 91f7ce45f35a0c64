"""Training of weights that live on servers, with a rule and in a mode. Knows no framework.

An optimizer of a framework knows its weights and gradients, and gives them here as tensors that `gradlane.parameters` takes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, NoReturn, TypeVar

from gradlane import _names, modes, parameters
from gradlane._accumulation import Accumulation, check_samples
from gradlane._handle import Handle
from gradlane._objects import gather_by_rank
from gradlane.errors import Error, FailedPreconditionError, InvalidArgumentError, MismatchError
from gradlane.modes import Async, Mode
from gradlane.parameters import Version
from gradlane.rules import Rule

T = TypeVar("T")
"""An array of a framework."""

V = TypeVar("V")

Average = Literal["ema", "window"]
"""An average of the weights that a rule may keep."""


@dataclass(frozen=True)
class StepOutcome:
    """What a step of a `ServerOptimizer` has come to."""

    fates: dict[parameters.Fate, int]
    """Of how many parameters the gradients had which fate: accepted, scaled, discarded or dropped."""
    lag: int
    """The largest lag of a gradient, in versions."""
    tick: parameters.Tick | None
    """Where this worker stands, if the mode has a clock."""


@dataclass
class _Sent:
    """A step whose gradients are on the servers. It is over when this worker has ticked, and has the weights."""

    made: dict[str, Version]
    """What each gradient has come to."""
    reads: bool
    """Whether the weights are to be read yet."""
    tick: parameters.Tick | None = None


class ServerTraining(Generic[T]):
    """Weights on the servers, each under a label that is equal on all workers.

    Make it, `compare()`, bring all workers to the same first weights, and `begin()` with these. Then take steps:

    1. `send_early` for gradients that are to leave before the step, if any;
    2. `accumulate`, where gradients of several micro-batches are sent together;
    3. `step`, until it has ended without an error.
    """

    def __init__(
        self,
        rule: Rule,
        mode: Mode | None,
        name: str | None,
        timeout: float | None,
        accumulation: Accumulation[T] | None = None,
    ) -> None:
        """
        Args:
            rule: one of `gradlane.rules`.
            mode: one of `gradlane.modes`; None for `Async()`.
            name: a prefix of the parameters' names; None for a number.
            timeout: seconds for each use of the servers; None takes the job's step timeout.
            accumulation: of micro-batches that are sent together; None if each is sent alone.
        Raises:
            InvalidArgumentError: `rule` is no rule, or `mode` no mode.
        """
        if not isinstance(rule, Rule):
            raise InvalidArgumentError(f"rule={rule!r}; give one of gradlane.rules, such as rules.SGD(lr=0.1)")
        self.rule, self.mode = rule, modes.check_mode(Async() if mode is None else mode)
        self.prefix, self._timeout = _names.namespace("server optimizer", name), timeout
        is_async = isinstance(self.mode, Async)
        self._clock = None if is_async else parameters.Clock(f"{self.prefix}/clock", self.mode)
        self._accumulation = accumulation
        self._begun: dict[str, Handle[Version]] = {}
        """Gradients on their way."""
        # Of the step that is made: what came to the servers, should it fail before all of it did.
        self._brought: dict[str, Version] = {}
        self._sent: _Sent | None = None
        self._using = threading.Lock()
        self.outcome: StepOutcome | None = None
        """What the last step has come to."""
        self.versions: dict[str, Version] = {}
        """Of each weight the version that the last step has taken over: one more for each gradient that was applied, or for
        each round."""

    @property
    def sends_next(self) -> bool:
        """Whether the gradients of the next micro-batch are those with which a step sends."""
        return self._accumulation is None or self._accumulation.is_last_next

    def compare(self) -> None:
        """Raises a MismatchError on all workers if one has another rule or mode."""
        compare(f"{self.prefix}/rule", "rule", str(self.rule))
        compare(f"{self.prefix}/mode", "mode", str(self.mode))

    def begin(self, weights: Mapping[str, T]) -> None:
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

    def send_early(self, label: str, gradient: T) -> None:
        """Sends the gradient of a weight before its step, which waits for it. It may not change until then.

        Called only where `sends_next` and `refuse_failed` does not, once for a weight. The micro-batch counts as one sample.
        """
        sent = gradient
        if self._accumulation is not None:
            self._accumulation.add_early(label, gradient)
            sent = self._accumulation.merged_of(label, self._accumulation.samples + 1.0)
        self._begun[label] = self._pushed(label, sent)

    def accumulate(self, gradients: Mapping[str, T], samples: float) -> bool:
        """Adds a micro-batch to those that are sent together, without the gradients that were sent early.

        Returns:
            Whether it has: not if each is sent alone, nor if the last step has failed half way and is only to be ended.
        Raises:
            InvalidArgumentError: `samples` is no number above zero.
        """
        if self._accumulation is None:
            check_samples(samples)
            return False
        if self._is_failed or self._accumulation.is_full:
            return False
        self._accumulation.add(gradients, samples)
        return True

    def step(self, gradients: Mapping[str, T], weights: Mapping[str, T]) -> StepOutcome | None:
        """Sends the gradients, waits as the mode says, and takes over the weights. With too few micro-batches it does nothing.

        Where it has failed, a call sends nothing again: it sends what the servers lack, and goes on waiting.

        Args:
            gradients: of the weights that have one, by label. With an accumulation, what was accumulated is sent in place of these.
            weights: by label, writable. A call that goes on waiting takes the same memory as the one that has failed.
        Returns:
            What became of the gradients; None if none were due.
        Raises:
            TimeoutError: others are too far behind; they are named.
        """
        if self._sent is None:
            if self._accumulation is not None:
                if not self._accumulation.is_full:
                    return None
                gradients = self._accumulation.merged()
            self._sent = self._send(gradients, weights)
            if self._accumulation is not None:
                self._accumulation.clear()
        sent = self._sent
        if self._clock is not None and sent.tick is None:
            sent.tick = self._clock.tick(timeout=self._timeout)
        if sent.reads:
            self.pull(weights)
        self._sent = None
        self.outcome = _outcome(sent)
        return self.outcome

    def flush(self, weights: Mapping[str, T]) -> StepOutcome | None:
        """A step with the micro-batches that are there, also to end such a step that has failed; None if there are none.

        Where each is sent alone it does nothing.
        """
        if self._accumulation is None:
            return None
        self._accumulation.close()
        return self.step({}, weights)

    def pull(self, weights: Mapping[str, T]) -> None:
        """Takes over the present weights, with the steps of all workers that were made."""
        begun = {label: self._pulled(label, weight) for label, weight in weights.items()}
        self.versions = dict(zip(begun, ended(begun.values()), strict=True))

    def read_averages(self, kind: Average, averages: Mapping[str, T]) -> None:
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

    def refuse_failed(self, call: str) -> None:
        """Raises FailedPreconditionError if the last step has failed half way."""
        if self._is_failed:
            raise FailedPreconditionError(
                f"{call} after a step that has failed half way; call step() again until it has ended, and then go on"
            )

    def state(self) -> dict[str, Any]:
        """What this worker keeps.

        Raises:
            FailedPreconditionError: the last step has failed half way.
        """
        self.refuse_failed("state_dict()")
        return {
            "rule": str(self.rule),
            "mode": str(self.mode),
            "round": 0 if self._clock is None else self._clock.round,
            "versions": {label: int(version) for label, version in self.versions.items()},
            "accumulated": None if self._accumulation is None else self._accumulation.state(),
        }

    def load(self, state: Mapping[str, Any], copied: Callable[[str, Any], T]) -> None:
        """Takes over the micro-batches of what `state` has returned.

        Args:
            copied: makes a copy of a sum of gradients, in the place of the weight of a label.
        Raises:
            InvalidArgumentError: it is of another rule, mode, list of weights or accumulation.
            FailedPreconditionError: the servers are behind the versions of the state, or the last step has failed half way.
        """
        self.refuse_failed("load_state_dict()")
        for field, ours in (("rule", str(self.rule)), ("mode", str(self.mode))):
            if state[field] != ours:
                raise InvalidArgumentError(f"the state is of the {field} {state[field]}, and this one has {ours}; give both the same")
        saved = state["versions"]
        if differing := sorted(saved.keys() ^ self.versions.keys()):
            raise InvalidArgumentError(f"the state does not fit parameter {differing[0]}; load it into the model of which it is")
        for label, version in self.versions.items():
            if version < saved[label]:
                raise FailedPreconditionError(
                    f"the state was saved in round {state['round']} at version {saved[label]} of {label}, and the servers have "
                    f"version {int(version)}: their weights and moments are not those of it; begin without it, or bring these back"
                )
        if (accumulated := state["accumulated"]) is not None and accumulated["batches"]:
            if self._accumulation is None:
                raise InvalidArgumentError(f"the state has {accumulated['batches']} micro-batches; make this one with accumulate=, too")
            self._accumulation.load(accumulated, copied)
        elif self._accumulation is not None:
            self._accumulation.clear()

    @contextlib.contextmanager
    def alone(self, call: str) -> Iterator[None]:
        """Inside, this thread makes a step.

        Raises:
            FailedPreconditionError: another call makes one.
        """
        if not self._using.acquire(blocking=False):
            raise FailedPreconditionError(f"{call} within or beside another step of this ServerOptimizer; let one thread make its steps")
        try:
            yield
        finally:
            self._using.release()

    @property
    def _is_failed(self) -> bool:
        """Whether the last step has failed half way, and is to be called again."""
        return self._sent is not None or bool(self._brought)

    def _send(self, gradients: Mapping[str, T], weights: Mapping[str, T]) -> _Sent:
        """Brings the gradients that the servers lack. A second one of a parameter would count twice, or be refused."""
        # Where each gradient is applied when it comes, one exchange brings it and the weight.
        reads = modes.has_rounds(self.mode) or bool(self._begun)
        error, pulled = None, {}
        try:
            for label, weight in weights.items():
                if label in gradients and label not in self._begun and label not in self._brought:
                    send = self._pushed if reads else partial(self._stepped, weight=weight)
                    self._begun[label] = send(label, gradients[label])
                elif not reads:
                    pulled[label] = self._pulled(label, weight)
        except Error as failed:
            error = failed
        for label, handle in list(self._begun.items()):
            try:
                self._brought[label] = handle.wait()
            except Error as failed:
                error = error or failed
            del self._begun[label]
        read = dict(zip(pulled, ended(pulled.values(), error), strict=True))
        made, self._brought = self._brought, {}
        if not reads:
            self.versions = {label: read[label] if label in read else made[label] for label in weights}
        return _Sent(made, reads)

    def _pulled(self, label: str, weight: T) -> Handle[Version]:
        return parameters.pull_async(self._name(label), weight, timeout=self._timeout)

    def _pushed(self, label: str, gradient: T) -> Handle[Version]:
        return parameters.push_async(self._name(label), gradient, update="step", timeout=self._timeout)

    def _stepped(self, label: str, gradient: T, weight: T) -> Handle[Version]:
        return parameters.push_pull_async(
            self._name(label), gradient, out=weight, update="step", timeout=self._timeout
        )

    def _name(self, label: str) -> str:
        return f"{self.prefix}/{label}"


def _outcome(sent: _Sent) -> StepOutcome:
    fates: dict[parameters.Fate, int] = {}
    for version in sent.made.values():
        # A gradient that was kept for a round was applied with that, or dropped.
        fate = sent.tick.fate if version.fate == "kept" and sent.tick is not None else version.fate
        fates[fate] = fates.get(fate, 0) + 1
    return StepOutcome(fates, max((version.lag for version in sent.made.values()), default=0), sent.tick)


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


def ended(handles: Iterable[Handle[V]], error: Error | None = None) -> list[V]:
    """What they yield, once all have ended; the first error of all of them, behind `error`."""
    results = []
    for handle in handles:
        try:
            results.append(handle.wait())
        except Error as failed:
            error = error or failed
    if error is not None:
        raise error
    return results
