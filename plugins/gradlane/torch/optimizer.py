"""An optimizer that steps on gradients averaged over all workers."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from gradlane._alike import telling
from gradlane._model_choice import Choice
from gradlane._reduction import Average, ReduceOp, Reduction, Sum, reduction_of
from gradlane._sets import ProcessSet
from gradlane.errors import FailedPreconditionError, InvalidArgumentError
from gradlane import _names
from gradlane._window import forward_order
from gradlane.torch._copies import Averaging, plain_class, with_closure
from gradlane.torch._gradients import Gradients, PostAverageHook
from gradlane.torch._in_flight import CALL_SYNCHRONIZE
from gradlane.torch._known import Known, places, refused_group
from gradlane.torch._owners import watch_frozen
from gradlane.torch._parameter_watch import ParameterWatch
from gradlane.torch.ops import push_pull_

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def DistributedOptimizer(
    optimizer: Kind,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Choice = None,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    *,
    sparse_as_dense: bool = False,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    average_losses: bool | None = None,
) -> Kind:
    """Makes `optimizer` average its gradients over all workers; returns the same object, of a subclass of its class.

    Gradients are submitted during the backward pass. If every parameter got one, all averages are complete when
    `backward()` returns. Otherwise `step()` or `synchronize()` completes them: call `synchronize()` before you clip or
    unscale gradients of a model that leaves parameters out. A parameter that only some workers used gets the average
    with zeros from the others.

    While a gradient is on its way, only the engine may use it; every other use raises FailedPreconditionError. The
    parameters are fixed: an error names one that was unfrozen or added later.

    Keep the optimizer: with its last reference the averaging ends. A copy (`copy.deepcopy`, `pickle`, `torch.save`)
    averages nothing. In a job of several workers it does not step on gradients; give it to `DistributedOptimizer` to
    train with it. A shallow copy (`copy.copy`) is the same optimizer once more.

    Nothing is broadcast: call `broadcast_parameters` and `broadcast_optimizer_state` first. When an elastic job forms again
    (`gradlane.elastic`), the optimizer goes on with the workers that there are then, unless it has a `process_set`.

    Args:
        optimizer: any torch optimizer over parameters on CUDA devices or the CPU.
        named_parameters: `model.named_parameters()`: the names of parameters in errors, and their order. None names
            them by position.
        compression: how gradients travel: one of `Compression`, or a function that gives one for a parameter's name and
            shape. None takes the setting `compression`. One of `Compression` leaves out vectors, scalars and small
            parameters unless it is `fp16`, `bf16` or has `compress_all=True`; if it would act on none, that is an
            error. Equal on all workers.
        backward_passes_per_step: how many backward passes accumulate before they are averaged. Their sum is averaged:
            divide the loss by this number if you want their mean.
        op: `Average` or `Sum`.
        sparse_as_dense: whether sparse gradients travel dense instead of gathered. They are sparse again afterwards.
        name: a prefix of the tensors' names; needed only if workers make optimizers in different orders, or if some
            workers make fewer than others, as those outside of a `process_set` may.
        process_set: the workers whose gradients are averaged, of which this one is a member; all by default. Small
            gradients of a set share no messages.
        average_losses: whether `step(closure)` gets the average of the losses of all workers, so that all take the same
            decision by it, such as how far they go. That costs a sum in each step, for which the host waits, on devices
            too. None does it for LBFGS and for classes that are not PyTorch's. Equal on all workers.
    Raises:
        InvalidArgumentError: two parameters have the same name, a parameter of the optimizer has none, something else
            averages their gradients already, or this worker is not in `process_set`.
        MismatchError: a worker's parameter has another dtype or shape (both are named).
    """
    reduction = reduction_of(op, process_set=process_set)
    if process_set is not None:
        process_set.rank()  # raises if this worker is not a member
    namespace = _names.namespace("optimizer", name)
    with telling("parameter", f"{namespace}/parameters", process_set):
        if isinstance(optimizer, Averaging):
            raise InvalidArgumentError("the optimizer is distributed already; wrap it once")
        kind = plain_class(optimizer)
        named = None if named_parameters is None else list(named_parameters)
        name_parameters(optimizer, named)
    synchronizer = _Synchronizer(
        namespace,
        optimizer,
        named,
        reduction,
        compression,
        backward_passes_per_step,
        sparse_as_dense,
        isinstance(optimizer, torch.optim.SparseAdam),
        average_losses,
    )
    # Changes the class of the object instead of making a new one, because constructors differ, and an earlier learning
    # rate scheduler refers to this object.
    optimizer.__class__ = type(kind.__name__, (_Distributed, kind), {"__module__": kind.__module__})
    optimizer._synchronizer = synchronizer  # type: ignore[attr-defined]
    # A hook and not an override of step(): schedulers replace step() on the object.
    optimizer.register_step_pre_hook(synchronizer.before_step)
    return optimizer


class _Distributed(Averaging):
    """The methods of a distributed optimizer in addition to its own class."""

    _synchronizer: _Synchronizer

    def synchronize(self) -> None:
        """Completes the averages of this step; does nothing if they are complete. `step()` calls it."""
        self._synchronizer.synchronize()

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer, and what the error feedback of its compression keeps on this worker and on servers.

        Each worker keeps something else. So save a state for each rank, between the same two steps, and load it on the
        worker of that rank; with the state of another rank, or of a job of another size, what the worker has lost begins
        at zero, and a warning says so. What servers keep is read from them. It is the same in all states, and goes on with
        any number of workers and servers. Plain optimizers load the state, too.

        Raises:
            FailedPreconditionError: gradients are being averaged, or other workers have gone on.
        """
        return self._synchronizer.feedback.add_to(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` has returned, here or of a plain optimizer.

        Raises:
            InvalidArgumentError: the saved error feedback is of other parameters, or of another compression.
            MismatchError: another worker has loaded what servers kept at another time. If a worker has loaded none, the
                next step raises it on all workers.
        """
        super().load_state_dict(self._synchronizer.feedback.take_from(state_dict))

    def follow_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Makes error feedback follow the scale of the loss; see `DistributedDataParallel.follow_scaler`."""
        self._synchronizer.feedback.follow_scaler(scaler)

    def clip_locally(self, norm_max: float) -> None:
        """Clips gradients on this worker before error feedback; see `DistributedDataParallel.clip_locally`."""
        self._synchronizer.feedback.clip(norm_max)

    def register_post_average_hook(self, hook: PostAverageHook) -> RemovableHandle:
        """Calls `hook(parameter)` for each parameter whose gradient has become the average.

        The hook may use and change `parameter.grad` and the parameter. Hooks run where the averages are completed: at the
        end of `backward()`, in `synchronize()` or in `step()`. See `DistributedDataParallel.register_post_average_hook`.
        """
        return self._synchronizer.register_post_average_hook(hook)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, `step()` uses the gradients as they are."""
        with self._synchronizer.skipped():
            yield

    def join(self) -> int:
        """Say that this worker has no more data, and take part in the steps of the others until none has any.

        All workers that the optimizer averages over must call it. A worker that waits so adds zeros: an average is
        still divided by the number of all workers. For the average of those that have data, see
        `DistributedDataParallel.join`. This worker's parameters stay as they are; broadcast them afterwards from the
        rank that is returned, and the optimizer's state too. While a worker waits, the others may not use other
        operations of which it is a part, and it may not run backward passes in other threads: they raise
        FailedPreconditionError.

        Returns:
            A rank that was among the last ones with data, equal on all workers; 0 if none has had any.
        Raises:
            InvalidArgumentError: the gradients are reduced by Min or Max, in which a worker without data has no part.
            FailedPreconditionError: gradients are on their way.
            The errors of `synchronize`, for steps of the other workers.
        """
        return self._synchronizer.join()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes accumulate, from the next step on."""
        self._synchronizer.passes = check_passes(passes)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients.

        Raises:
            FailedPreconditionError: some are in flight, as after a backward pass that left parameters out.
        """
        self._synchronizer.refuse_in_flight("zero_grad()")
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not possible any more: the parameters are fixed on all workers."""
        raise refused_group(self, "DistributedOptimizer")


class _Synchronizer:
    """Decides when gradients are submitted and when they must have arrived."""

    def __init__(
        self,
        namespace: str,
        optimizer: torch.optim.Optimizer,
        given: list[tuple[str, torch.nn.Parameter]] | None,
        reduction: Reduction,
        compression: Choice,
        passes: int,
        sparse_as_dense: bool,
        takes_only_sparse: bool,
        average_losses: bool | None,
    ) -> None:
        self.passes = check_passes(passes)
        named = name_parameters(optimizer, given)
        self._reduction, self._loss_name = reduction, f"{namespace}/loss"
        is_torch = plain_class(optimizer).__module__.startswith("torch.optim.")
        may_decide = isinstance(optimizer, torch.optim.LBFGS) or not is_torch
        self._decides_by_loss = may_decide if average_losses is None else average_losses
        self._optimizer, self._known = weakref.ref(optimizer), Known(named, given or (), _REMEDY)
        self._passed: Counter[int] = Counter()
        self._is_complete = False
        self._is_skipped = False
        self._gradients = Gradients(
            namespace,
            named,
            reduction,
            compression,
            sparse="dense" if sparse_as_dense else "allgather",
            sparse_parameters=frozenset(),
            priority=forward_order,
            refuse_unused=False,
            remedy=CALL_SYNCHRONIZE,
            # That optimizer takes no other gradients, also from a worker that had none itself.
            sparse_again=range(len(named)) if takes_only_sparse else (),
        )
        self.feedback = self._gradients.feedback
        self.feedback.follow(optimizer)
        ParameterWatch(self, named, _Synchronizer._gradient_is_ready)
        watch_frozen(self, self._known.frozen(optimizer), _REMEDY)

    def register_post_average_hook(self, hook: PostAverageHook) -> RemovableHandle:
        return self._gradients.register_post_average_hook(hook)

    def synchronize(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            self._known.refuse_others(optimizer)
        if not self._is_complete:
            self._passed.clear()
            self._gradients.finish()
            self._is_complete = True

    def join(self) -> int:
        self._gradients.check_uneven()
        with self._gradients.left("called join() of its optimizer"):
            self._passed.clear()
            while self._gradients.sit_out():
                pass
            return self._gradients.leader

    def before_step(
        self, optimizer: torch.optim.Optimizer, positional: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Completes the averages. A closure makes the gradients during the step, so it is wrapped to complete them."""
        self._known.refuse_others(optimizer)
        with_averages = with_closure(positional, keywords, self._synchronized)
        if with_averages is not None:
            return with_averages
        if not self._is_skipped:
            self.synchronize()
        self._is_complete = False
        return None

    @contextlib.contextmanager
    def skipped(self) -> Iterator[None]:
        self._is_skipped = True
        try:
            yield
        finally:
            self._is_skipped = False

    def refuse_in_flight(self, call: str) -> None:
        if self._gradients.any_submitted:
            raise FailedPreconditionError(
                f"{call} while gradients are on their way; call step() or synchronize() between backward() and {call}"
            )

    def _synchronized(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            if not self._is_skipped:
                self.synchronize()
                loss = self._averaged(loss) if self._decides_by_loss else loss
            self._is_complete = False
            return loss

        return evaluate

    def _averaged(self, loss: Any) -> Any:
        """The average (or sum) of a number over the workers that have one, so that all of them decide alike by it.

        A worker whose closure gives no number takes part all the same, because the others wait for it.
        """
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss
        is_number = isinstance(value, float) or (isinstance(value, torch.Tensor) and value.numel() == 1)
        pair = torch.tensor([float(value) if is_number else 0.0, float(is_number)], dtype=torch.float64)
        total, count = push_pull_(pair, self._loss_name, op=Sum, process_set=self._reduction.process_set).unbind()
        if not is_number:
            return loss
        agreed = total if self._reduction.op == "sum" else total / count
        return agreed.to(value).view(value.shape) if isinstance(value, torch.Tensor) else agreed.item()

    def _gradient_is_ready(self, position: int) -> None:
        self._gradients.refuse_left()
        self._is_complete = False
        self._passed[position] += 1
        if self._passed[position] < self.passes:
            self._gradients.mark_used(position)
            return
        self._gradients.submit(position)
        # Waiting for less than all could deadlock: what this worker lacks may be what another one, waiting as well, has.
        if self._gradients.all_submitted:
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)


def name_parameters(
    optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.nn.Parameter]] | None
) -> list[tuple[str, torch.nn.Parameter]]:
    """The optimizer's parameters that require gradients, named and in the order of `named`."""
    own = {id(parameter): (place, parameter) for place, parameter in places(optimizer) if parameter.requires_grad}
    if named is None:
        return list(own.values())
    for pair in named:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InvalidArgumentError(
                "named_parameters holds no (name, parameter) pairs; give model.named_parameters()"
            )
    twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
    if twice:
        raise InvalidArgumentError(f"named_parameters gives several parameters one name: {', '.join(sorted(twice))}")
    unnamed = own.keys() - {id(parameter) for _, parameter in named}
    if unnamed:
        without = ", ".join(own[key][0] for key in own if key in unnamed)
        raise InvalidArgumentError(
            f"named_parameters names not all parameters of the optimizer; without a name (group.position): {without}"
        )
    return [(name, parameter) for name, parameter in named if id(parameter) in own]


def check_passes(passes: int) -> int:
    if passes < 1:
        raise InvalidArgumentError(f"backward_passes_per_step={passes}; give at least 1")
    return passes


_REMEDY = "unfreeze parameters and add groups before the optimizer is distributed"
