"""Local SGD: each worker trains a model of its own, and every few steps the workers exchange what they have learnt."""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch

from gradlane import _names, _session, parameters
from gradlane._arguments import check_timeout
from gradlane._handle import Handle
from gradlane._operations import barrier
from gradlane._reduction import Average as Mean
from gradlane._reduction import Max
from gradlane._server_training import compare, ended
from gradlane.errors import Error, FailedPreconditionError, InvalidArgumentError, NotFiniteError
from gradlane.parameters import Version
from gradlane.torch import _tensors
from gradlane.torch._on_servers import trained
from gradlane.torch._owners import own
from gradlane.torch._parameter_watch import remove_all
from gradlane.torch.broadcast import broadcast_alike, broadcast_parameters
from gradlane.torch.exchanges import Average, Elastic, Exchange, Geo
from gradlane.torch.groups import grouped_push_pull_async_
from gradlane.torch.ops import push_pull_async_

Tensors = dict[str, torch.Tensor]
"""A tensor for each parameter, by its name."""

_WIDE = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32) | {torch.float64: torch.float64}
"""By the element type of weights: the one in which they are exchanged."""

_STATE = {"exchange", "steps", "since", "known", "shared"}
"""What a state has."""


class LocalSGD:
    """Trains a model on each worker, and exchanges the models every few steps, in place of gradients in every step.

        local = gl.LocalSGD(model.named_parameters(), optimizer, exchange=gl.exchanges.Average(), every=8)
        for batch in loader:
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()
            local.step()
        local.exchange()                # what the last steps have made, if they were fewer than 8

    So `every=8` sends an eighth of the bytes. `gl.exchanges` has the rules. With an `Average` that is synchronous, workers wait
    for each other, and exchange behind the same step: let all make equally many. With the other rules nobody waits; they need
    a server, unless this worker is alone.

    All workers make it, and begin with the weights of worker 0. The optimizer stays as it is: each worker has its own, with its
    moments, scheduler and scaler. Buffers, such as the running statistics of BatchNorm, stay on each worker too. What changes
    weights besides the optimizer, such as `model.load_state_dict()`, counts as progress of this worker.

    Differences are computed, sent and added in float32, those of float64 in float64. Shared weights are kept so, and of weights
    of float16 and bfloat16 each worker keeps what rounding takes. So progress adds up that is too small for their types.

    N, of the rules, is the number of workers at an exchange, also where a job goes on without lost ones. A worker that comes to
    a job later cannot make one.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        optimizer: torch.optim.Optimizer,
        *,
        exchange: Exchange,
        every: int,
        may_skip: bool = False,
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Gives the parameters of worker 0 to all workers.

        Args:
            named_parameters: `model.named_parameters()`; names, dtypes and shapes are equal on all workers. Those that
                require no gradient are left out. Tensors are dense and of floats.
            optimizer: trains these parameters and no others.
            exchange: one of `gradlane.torch.exchanges`, equal on all workers.
            every: after how many steps the workers exchange; equal on all workers.
            may_skip: whether the optimizer may leave steps out, as under a `GradScaler`. Else `step()` asks for one.
            name: a prefix of the tensors' names; needed only if workers make several of these in different orders.
            timeout: seconds for each use of the servers; None takes the job's step timeout. A synchronous average takes no
                other, because the step timeout alone ends a sum on all workers.
        Raises:
            InvalidArgumentError: an argument is not what it should be, or a wrapper averages the gradients of the model.
            MismatchError: another worker's parameter has another dtype or shape, or another exchange or `every`.
            StallError: another worker did not make it in time.
            FailedPreconditionError: the job has no server.
        """
        if not isinstance(exchange, Average | Elastic | Geo):
            raise InvalidArgumentError(f"exchange={exchange}; give one of gradlane.torch.exchanges, such as Average()")
        check_timeout(timeout)
        if timeout is not None and isinstance(exchange, Average) and exchange.synchronous:
            raise InvalidArgumentError(
                f"timeout={timeout}; a synchronous average takes none, because the job's step timeout ends a sum on all workers: "
                "set GRADLANE_STEP_TIMEOUT"
            )
        self.rule, self.every = exchange, _count_of(every)
        self._named, self._optimizer = trained(named_parameters), optimizer
        _check_trained(self._named, optimizer)
        own(self, list(self._named.items()))
        self._kinds = {label: _tensors.kind_of(parameter) for label, parameter in self._named.items()}
        self._prefix, self._timeout = _names.namespace("local sgd", name), timeout
        self._may_skip, self._has_stepped, self._is_parked = may_skip, False, False
        self.steps = 0
        """How many steps this worker has made."""
        self._since = 0
        """How many of them after the last exchange."""
        self._exchanged = 0
        """How many exchanges this worker has made with all others, since they had the same shared weights."""
        compare(f"{self._prefix}/exchange", "exchange", f"{exchange} every {self.every} steps")
        broadcast_parameters(self._named, prefix=f"{self._prefix}/first ")
        first = {label: _in_wide(parameter) for label, parameter in self._named.items()}
        self._exact = {label: value.clone() for label, value in first.items() if value.dtype != self._named[label].dtype}
        """Weights after the last exchange, before they were rounded to a type of two bytes."""
        self._known = {} if isinstance(exchange, Elastic) else first
        """The shared weights as the last exchange has left them."""
        if not self._is_synchronous:
            ended([parameters.init_async(self._name(label), value, timeout=timeout) for label, value in first.items()])
        self._watch_steps()

    def step(self) -> bool:
        """Counts a step of the optimizer, and exchanges if it is the last of `every`. Returns whether it did.

        If the exchange fails, the next step tries it again.

        Raises:
            FailedPreconditionError: the optimizer has made no step since the last call.
            Error: as `exchange`.
        """
        self._refuse_parked("step()")
        if not (self._has_stepped or self._may_skip):
            raise FailedPreconditionError(
                "the optimizer has made no step since the last local.step(); call optimizer.step() before it. If a GradScaler "
                "may leave steps out, make the LocalSGD with may_skip=True"
            )
        self._has_stepped = False
        self.steps += 1
        self._since += 1
        if self._since < self.every:
            return False
        self.exchange()
        return True

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchanges now: at the end of a training, whose last steps may be fewer than `every`.

        With an `Average` that is synchronous all workers call it. If a parameter cannot be exchanged, its weights stay as they
        are, and the next exchange sends what this one did not.

        Raises:
            StallError: the average is synchronous, and another worker did not come in time.
            NotFiniteError: the progress has a NaN or an infinity. Nothing was exchanged.
            InvalidArgumentError: a parameter has another dtype, shape or device now, or the optimizer trains others.
            Error: servers could not be used.
        """
        self._refuse_parked("exchange()")
        _check_trained(self._named, self._optimizer)
        for label, parameter in self._named.items():
            _check_kind(label, parameter, self._kinds[label])
        match self.rule:
            case Average(synchronous=True):
                self._average_together()
            case Average():
                self._average()
            case Elastic():
                self._pull_together()
            case Geo():
                self._merge()
        self._since = 0

    @contextlib.contextmanager
    def server_weights(self) -> Iterator[None]:
        """Inside, the model has the shared weights, to be tested or saved; afterwards it has its own again.

        Those of a synchronous average are what the last exchange has made; others are read from the servers now.
        """
        self._refuse_parked("server_weights()")
        shared = self._shared()
        own_weights = {label: parameter.detach().clone() for label, parameter in self._named.items()}
        self._is_parked = True
        try:
            self._give(shared)
            yield
        finally:
            self._give(own_weights)
            self._is_parked = False

    def state_dict(self) -> dict[str, Any]:
        """The exchange, the count of steps, the weights that this worker knows as shared, and those that are shared now.

        Save one for each worker, beside the states of its model and optimizer. What rounding to a type of two bytes has taken in
        the last exchange is not in it.
        """
        return {
            "exchange": str(self.rule),
            "steps": self.steps,
            "since": self._since,
            "known": {} if self._is_synchronous else {label: value.clone() for label, value in self._known.items()},
            "shared": self._shared(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state. All workers call it, each with its own; the shared weights become those of the first worker.

        The model's own weights are those of its `load_state_dict()`.

        Raises:
            InvalidArgumentError: the state is of another exchange or model, here or on another worker.
        """
        checked: Tensors | Exception
        try:
            checked = self._checked(state)
        except Exception as error:
            checked = error
        first = _session.ranks()[0]
        # The others hear of a worker whose state is refused, and wait for nothing.
        broadcast_alike(checked, f"{self._prefix}/loaded ", first)
        assert not isinstance(checked, Exception), "it was raised"
        shared = {label: checked[f"{self._prefix}/loaded {label}"] for label in self._named}
        if self._is_synchronous:
            self._known, self._exchanged = shared, 0
        else:
            if _session.rank() == first:
                ended(
                    [
                        parameters.push_async(self._name(label), value, update="assign", timeout=self._timeout)
                        for label, value in shared.items()
                    ]
                )
            barrier(f"{self._prefix}/loaded", timeout=self._timeout)
            self._known = {label: self._beside(label, value) for label, value in state["known"].items()}
        self._exact = {label: _in_wide(self._named[label]) for label in self._exact}
        self.steps, self._since = state["steps"], state["since"]

    def __getstate__(self) -> NoReturn:
        """Refused: a copy would exchange the same weights again."""
        raise FailedPreconditionError("a LocalSGD is not copied or pickled; make one for another model, or save its state_dict()")

    @property
    def _is_synchronous(self) -> bool:
        return isinstance(self.rule, Average) and self.rule.synchronous

    def _average_together(self) -> None:
        """c += r/N * sum of (x - o); x = o = c."""
        moved = {label: self._present(label) - known for label, known in self._known.items()}
        counts = torch.tensor([self._exchanged, -self._exchanged])
        agreed = push_pull_async_(counts, f"{self._prefix}/exchanges", op=Max)
        # A mean, because it is that of the workers whose contributions are in the sum, also if one was lost meanwhile.
        averaged = grouped_push_pull_async_(list(moved.values()), [self._name(label) for label in moved], op=Mean)
        begun: list[Handle[Any]] = [agreed, averaged]
        ended(begun)
        if counts.tolist() != [self._exchanged, -self._exchanged]:
            raise FailedPreconditionError(
                f"this worker has made {self._exchanged} exchanges and another one {-int(counts[1])} to {int(counts[0])}, so "
                "their shared weights differ; load a state on all workers"
            )
        _check_finite(moved)  # now, so that all workers find the same
        for label, mean in moved.items():
            self._land(label, self._known[label].add_(mean, alpha=self.rule.rate))
        self._exchanged += 1

    def _average(self) -> None:
        """c += r/N * (x - o); x = o = c."""
        sent = {label: (self._present(label) - known).mul_(self._share()) for label, known in self._known.items()}
        for label, shared in self._added(sent, reads=True):
            self._known[label].copy_(shared)
            self._land(label, shared)

    def _pull_together(self) -> None:
        """With d = x - c: c += r/N * d; x -= r/N * d."""
        sent = {label: (self._present(label) - shared).mul_(self._share()) for label, shared in self._shared().items()}
        for label, _ in self._added(sent, reads=False):
            self._land(label, self._present(label).sub_(sent[label]))

    def _merge(self) -> None:
        """With d = r/N * (x - o): o += d; c += d; x += c - o; o = c."""
        sent = {label: (self._present(label) - known).mul_(self._share()) for label, known in self._known.items()}
        for label, shared in self._added(sent, reads=True):
            known = self._known[label].add_(sent[label])
            self._land(label, self._present(label).add_(shared - known))
            known.copy_(shared)

    def _share(self) -> float:
        return self.rule.rate / _session.size()

    def _added(self, sent: Tensors, *, reads: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """Adds to the shared weights. Yields what was added, with the weights that this made if it `reads` them.

        Raises:
            Error: the first one, after all that were added.
        """
        _check_finite(sent)
        begun: list[tuple[str, torch.Tensor, Handle[Version]]] = []
        error = None
        try:
            for label, value in sent.items():
                out, name = torch.empty_like(value), self._name(label)
                if reads:
                    handle = parameters.push_pull_async(name, value, out, timeout=self._timeout)
                else:
                    handle = parameters.push_async(name, value, timeout=self._timeout)
                begun.append((label, out, handle))
        except Error as failed:
            error = failed
        for label, out, handle in begun:
            try:
                handle.wait()
            except Error as failed:
                error = error or failed
            else:
                yield label, out
        if error is not None:
            raise error

    def _shared(self) -> Tensors:
        """The shared weights, in memory of the caller's."""
        if self._is_synchronous:
            return {label: value.clone() for label, value in self._known.items()}
        shared = {label: torch.empty_like(_in_wide(parameter)) for label, parameter in self._named.items()}
        ended([parameters.pull_async(self._name(label), out, timeout=self._timeout) for label, out in shared.items()])
        return shared

    def _present(self, label: str) -> torch.Tensor:
        """The weights x, in memory of the caller's. What rounding took in the last exchange is added again."""
        present = _in_wide(self._named[label])
        exact = self._exact.get(label)
        return present if exact is None else present.sub_(exact.to(self._named[label].dtype)).add_(exact)

    def _land(self, label: str, weights: torch.Tensor) -> None:
        """Makes these the weights x."""
        self._named[label].copy_(weights)
        if label in self._exact:
            self._exact[label].copy_(weights)

    @torch.no_grad()
    def _give(self, weights: Tensors) -> None:
        for label, value in weights.items():
            self._named[label].copy_(value)

    def _checked(self, state: Mapping[str, Any]) -> Tensors:
        """Copies of the shared weights of a state that fits, by the names under which they travel."""
        if not isinstance(state, Mapping) or set(state) != _STATE:
            raise InvalidArgumentError("this is no state of a LocalSGD; give what its state_dict() has returned")
        if state["exchange"] != str(self.rule):
            raise InvalidArgumentError(
                f"the state is of an exchange by {state['exchange']}, and this one is by {self.rule}; give both the same"
            )
        wanted = {label: (_WIDE[parameter.dtype], parameter.shape) for label, parameter in self._named.items()}
        of_known = {} if self._is_synchronous or isinstance(self.rule, Elastic) else wanted
        for part, fits in (("known", of_known), ("shared", wanted)):
            has = {label: (value.dtype, value.shape) for label, value in state[part].items()}
            wrong = next((label for label in sorted({*has, *fits}) if has.get(label) != fits.get(label)), None)
            if wrong is not None:
                raise InvalidArgumentError(f"the state does not fit parameter {wrong}; load it into the model of which it is")
        return {f"{self._prefix}/loaded {label}": self._beside(label, value) for label, value in state["shared"].items()}

    def _beside(self, label: str, value: torch.Tensor) -> torch.Tensor:
        """A copy where the parameter is."""
        return value.to(self._named[label].device, copy=True).contiguous()

    def _name(self, label: str) -> str:
        return f"{self._prefix}/{label}"

    def _refuse_parked(self, call: str) -> None:
        if self._is_parked:
            raise FailedPreconditionError(
                f"{call} within server_weights(), where the model has the shared weights and not its own; leave that first"
            )

    def _watch_steps(self) -> None:
        """Notes the steps of the optimizer, and refuses them where they would be lost. The hooks do not keep this alive."""
        reference = weakref.ref(self)

        def before(*_: Any) -> None:
            if (local := reference()) is not None:
                local._refuse_parked("a step of the optimizer")

        def after(*_: Any) -> None:
            if (local := reference()) is not None:
                local._has_stepped = True

        hooks = [self._optimizer.register_step_pre_hook(before), self._optimizer.register_step_post_hook(after)]
        weakref.finalize(self, remove_all, hooks).atexit = False


def _count_of(every: object) -> int:
    try:
        count = operator.index(every)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidArgumentError(f"every={every!r}; give a number of steps") from error
    if count < 1:
        raise InvalidArgumentError(f"every={count} is out of range; give 1 or more steps")
    return count


def _check_trained(named: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Raises unless these are the parameters that the optimizer trains, of types that are exchanged."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(f"optimizer is {type(optimizer).__name__}; give one of torch.optim")
    labels = {id(parameter): label for label, parameter in named.items()}
    for label, parameter in named.items():
        if parameter.dtype not in _WIDE:
            raise InvalidArgumentError(
                f"parameter {label} is {_tensors.dtype_name(parameter.dtype)}; those are exchanged that are float16, bfloat16, "
                "float32 or float64"
            )
    in_optimizer = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    for key, label in labels.items():
        if key not in in_optimizer:
            raise InvalidArgumentError(f"the optimizer does not train parameter {label}; give those that it trains")
    for key, parameter in in_optimizer.items():
        if parameter.requires_grad and key not in labels:
            raise InvalidArgumentError(
                f"the optimizer trains a parameter of shape {list(parameter.shape)} that is not among named_parameters; give "
                "all that it trains, before the LocalSGD is made"
            )


def _check_kind(label: str, parameter: torch.Tensor, made_with: _tensors.Kind) -> None:
    if (now := _tensors.kind_of(parameter)) != made_with:
        kinds = ((_tensors.dtype_name(dtype), list(shape), device) for dtype, shape, device in (made_with, now))
        before, after = (f"{dtype} {shape} on {device}" for dtype, shape, device in kinds)
        raise InvalidArgumentError(
            f"parameter {label} is {after}, and was {before} when the LocalSGD was made; call half(), to() and what else "
            "changes parameters before that"
        )


def _check_finite(progress: Tensors) -> None:
    finite = torch.stack([value.isfinite().all().cpu() for value in progress.values()])
    if not finite.all():
        wrong = [label for label, is_finite in zip(progress, finite.tolist(), strict=True) if not is_finite][0]
        raise NotFiniteError(
            f"the progress of parameter {wrong} has a NaN or an infinity, so nothing was exchanged; load weights from before, "
            "or train with a lower learning rate",
            tensor=wrong,
        )


def _in_wide(parameter: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in the type in which it is exchanged."""
    return parameter.detach().to(_WIDE[parameter.dtype], copy=True).contiguous()
