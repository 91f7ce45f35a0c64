"""Deferred updates: which updates are due after `step()`, what they wait for, and when they are done.

A window of gradients (`gradlane._window`) goes from one `step()` to the next. The states of a parameter:

    at rest ── its backward passes ──► on its way ── step() ──► due ── needed, or its average arrived ───► at rest
                                           └── synchronize() ──► at rest, its gradient an average
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from gradlane import _session, timeline
from gradlane._alike import Comparison, telling
from gradlane._model_choice import Choice, codecs_of_model
from gradlane._handle import Handle
from gradlane._reduction import Reduction
from gradlane._window import Window, forward_order
from gradlane.errors import Error, FailedPreconditionError, UnsupportedError
from gradlane.torch import _in_flight, _tensors
from gradlane.torch._declaration import Declaration
from gradlane.torch._feedback import Feedback, scale_in_place
from gradlane.torch._in_flight import CALL_SYNCHRONIZE, Loan, refuse_cleared
from gradlane.torch._known import Known
from gradlane.torch._owners import own, watch_frozen
from gradlane.torch._parameter_watch import ParameterWatch
from gradlane.torch._partial import PartialStep, Settings, settings_of
from gradlane.torch.ops import reduce_in_place

_CHUNK_BYTES = 4 << 20
"""The most bytes of parameters that are updated at once before they are needed: some milliseconds of work."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A gradient in flight, or an average that was not used yet."""

    transfer: Handle[torch.Tensor]
    loan: Loan
    is_own: bool
    """Whether this worker had a gradient; if not, zeros are in flight."""
    factor: float
    """What it was multiplied by for its error feedback, until it has landed."""
    is_due: bool = False
    has_landed: bool = False
    """Whether the average is in the gradient."""
    zeroed: bool = False
    """Whether the gradient is to be zeros after the update."""


@dataclass(slots=True, eq=False)
class _Slot:
    """One parameter."""

    position: int
    name: str
    parameter: torch.nn.Parameter
    reduction: Reduction
    kind: _tensors.Kind
    version: int = 0
    """Of the parameter at `step()`, while an update is due."""
    address: int = 0
    """Of the parameter's memory, while an update is due."""
    passed: int = 0
    """Backward passes in this window."""
    is_announced: bool = True
    """Whether its module was called since the last step, and so updated it."""


class Deferred:
    """The updates of one optimizer. Parameters are referred to by their position in the list."""

    def __init__(
        self,
        namespace: str,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        named: Sequence[tuple[str, torch.nn.Parameter]],
        reduction: Reduction,
        compression: Choice,
        *,
        passes: int,
        sparse_as_dense: bool,
    ) -> None:
        """Declares all parameters on all workers, in the order in which a forward pass needs them.

        A newcomer to an elastic job does so in its first window, as the others do then.

        Args:
            named: parameters that have names for errors, also such as are not averaged.
            reduction: of all gradients, but for their priorities and codecs.
            compression: what chooses the codec of each.
        """
        self._optimizer, self._passes, self._sparse_as_dense = optimizer, passes, sparse_as_dense
        self._slots = [
            _Slot(i, name, p, reduction.with_priority(forward_order(i, name)), _tensors.kind_of(p))
            for i, (name, p) in enumerate(parameters)
        ]
        self._window: Window[_Flight] = Window(namespace, [name for name, _ in parameters], self._start)
        self._known = Known(parameters, named, _REMEDY)
        self._partial_step = PartialStep(optimizer)
        only_sparse = isinstance(optimizer, torch.optim.SparseAdam)
        self._sparse = {slot.position for slot in self._slots if only_sparse}
        """Positions of parameters with sparse gradients, which are dense on their way."""
        self._due = 0
        """How many updates are due."""
        self._behind: list[_Slot] = []
        """The parameters that may still be due; the one that is needed last is at the end."""
        self._settings: Settings = []
        """The settings of the updates that are due."""
        self._is_settled = True
        """Whether, since the last step, all parameters were updated before anything else happened."""
        self._has_begun = False
        self._is_complete = False
        with telling("parameter", f"{namespace}/parameters"):
            for slot in self._slots:
                _tensors.check_place_of(slot.name, slot.parameter)
            codecs = codecs_of_model(compression, [(name, *_tensors.wire_form(p)) for name, p in parameters])
            for slot, codec in zip(self._slots, codecs, strict=True):
                slot.reduction = slot.reduction.encoded(codec)
            own(self, parameters)
        self._comparison_name = f"{namespace}/parameters"
        self._declaration = Declaration()
        self._late_comparison: Comparison | None = None
        """Of the parameters, in a session that has replaced another one; it is checked when the first window ends."""
        if self._declaration.was_made:
            self._begin_comparison().check()
        frozen = watch_frozen(self, self._known.frozen(optimizer), _REMEDY)
        self.hooks = [*frozen, *ParameterWatch(self, parameters, Deferred._gradient, Deferred._refuse_early).hooks]
        """To be removed with the hooks on the model."""
        self.feedback = Feedback(
            (slot.position, slot.name, self._window.name(slot.position), slot.parameter, slot.reduction.codec)
            for slot in self._slots
        )
        self.feedback.follow(optimizer)
        _session.move_along(self)
        if self._declaration.was_made:
            self._declare()
            self.feedback.begin()

    def _begin_comparison(self) -> Comparison:
        described = ((slot.name, slot.parameter) for slot in self._slots)
        rows = [(name, _tensors.dtype_name(p.dtype), tuple(p.shape)) for name, p in described]
        return Comparison("parameter", rows, self._comparison_name)

    def _declare(self) -> None:
        tensors = ((self._window.name(slot.position), slot.parameter, slot.reduction.codec) for slot in self._slots)
        _tensors.declare_encoded(_session.session(), tensors)

    def before_forming_again(self) -> None:
        """Does the updates that are due, whose averages come over the present session, and keeps what error feedback has."""
        if not self._declaration.is_present:
            return
        if not self._window.has_failed:
            with contextlib.suppress(Exception):  # it is recorded: the next call raises it again
                self.settle()
        self.feedback.keep()

    def renew(self) -> None:
        """Declares the parameters in the present session, if it is another one of this job than before.

        Raises:
            MismatchError: a worker's parameter has another dtype or shape (both are named).
        """
        self._declaration.renew(self._declare_again)

    def _declare_again(self) -> None:
        self._window.renew()
        self._late_comparison = self._begin_comparison()
        self._declare()
        self.feedback.begin()

    def begin(self) -> None:
        """Records that a training forward pass has begun."""
        self.renew()
        self._has_begun = True

    def need(self, positions: Sequence[int], module: str) -> None:
        """Waits for the averages of those of these parameters that are due, and updates them."""
        for position in positions:
            self._slots[position].is_announced = True
        if not self._due:
            return
        self._window.check()
        wanted = [slot for slot in map(self._slots.__getitem__, positions) if self._is_due(slot)]
        if not wanted:
            return
        if not all(map(self._has_landed, wanted)):
            with timeline.span(f"wait for {module}"):
                self._use_the_wait(wanted)
                self._land(wanted)
        wanted += self._following(max(slot.position for slot in wanted))
        with timeline.span(f"update {module}"):
            self._update(wanted)

    def settle(self) -> None:
        """Does all updates that are due."""
        self._is_settled = True
        if not self._due:
            return
        self._window.check()
        due = [slot for slot in self._slots if self._is_due(slot)]
        with timeline.span("wait for all"):
            self._land(due)
        with timeline.span("update all"):
            self._update(due)

    def step(self) -> None:
        """Ends the window: from now on its updates are due, with the optimizer's present settings."""
        self._window.check()
        self._known.refuse_others(self._optimizer)
        hooks = self._optimizer._optimizer_step_pre_hooks or self._optimizer._optimizer_step_post_hooks
        if hooks and not self._is_complete:
            self.settle()
            self._complete()
        if self._is_complete:
            self._partial_step.whole()
        else:
            self.settle()  # what no forward pass needed since the last step
            self._is_settled = False
            self._refuse_touched()
            self._end_window()
            self._partial_step.regroup()
            self._settings = settings_of(self._optimizer)
            for slot in self._slots:
                slot.is_announced = False
                slot.version, slot.address = slot.parameter._version, slot.parameter.data_ptr()
                self._flight(slot).is_due = True
            self._due, self._behind = len(self._slots), list(self._slots)
        self._has_begun, self._is_complete = False, False

    def synchronize(self) -> None:
        """Does all updates that are due. In a window that has begun, waits for all averages."""
        self._window.check()
        self.settle()
        if self._has_begun and not self._is_complete:
            self._known.refuse_others(self._optimizer)
            self._complete()

    def clear_gradients(self, set_to_none: bool) -> bool:
        """Prepares zero_grad(); returns whether the optimizer must still clear gradients itself."""
        self._is_complete = False
        early = [slot.name for slot in self._slots if self._is_early(slot)]
        if early and not self._window.has_failed:
            raise FailedPreconditionError(
                f"zero_grad() while the gradient of {early[0]} is on its way; call step() or synchronize() between "
                "backward() and zero_grad()"
            )
        if set_to_none or not self._due:
            return True  # if None replaces the veil, the gradient stays None after the update
        for slot in self._slots:
            flight = self._window.on_its_way(slot.position)
            if flight is not None:
                flight.zeroed = True
            elif slot.parameter.grad is not None:
                slot.parameter.grad = slot.parameter.grad.detach().zero_()
        return False

    def close(self) -> None:
        """Does the last updates.

        Raises:
            FailedPreconditionError: gradients are in flight for which step() was not called.
        """
        if self._window.has_failed:
            return
        self.settle()
        flying = [slot.name for slot in self._slots if self._window.on_its_way(slot.position) is not None]
        if flying:
            raise FailedPreconditionError(
                f"remove() while the gradient of {flying[0]} is on its way; call step() or synchronize() first"
            )

    def abandon(self) -> None:
        """Clears the gradients that are still on their way: nobody will put their averages into them."""
        for slot in self._slots:
            flight = self._window.on_its_way(slot.position)
            if flight is not None:
                flight.loan.abandon()

    def _refuse_early(self, position: int) -> None:
        """Raises unless the parameter may get a gradient now. Called before autograd changes the present one.

        Raises:
            FailedPreconditionError: the present one is in flight, or its update was not done before the forward pass.
        """
        slot = self._slots[position]
        self._window.check()
        # It does not matter whether it is updated by now: that may be luck, or may have come too late.
        if not (slot.is_announced or self._is_settled):
            raise FailedPreconditionError(
                f"parameter {slot.name} was used in a forward pass, but not by its module: it may not have been updated "
                "in time. Give the class of the module that used it in opaque=, or call synchronize() before the "
                "forward pass"
            )
        self._window.refuse_second(position, " (call synchronize() after it, on all workers)")

    def _gradient(self, position: int) -> None:
        """Handles a new gradient: submits it if this was the last backward pass of the window."""
        slot = self._slots[position]
        refuse_cleared(slot.parameter, slot.name)
        self._has_begun, self._is_complete = True, False
        slot.passed += 1
        self._window.mark_used(position)
        if slot.passed >= self._passes:
            self._window.submit(position)

    def _start(self, position: int) -> _Flight:
        if not self._declaration.is_present:
            self.renew()
        slot = self._slots[position]
        is_held = _in_flight.may_be_held(slot.parameter)
        gradient = given = slot.parameter.grad
        is_own = gradient is not None
        _tensors.check_kind(slot.parameter if gradient is None else gradient, slot.kind, slot.name)
        if gradient is None:
            gradient = torch.zeros_like(slot.parameter, memory_format=torch.contiguous_format)
        elif gradient.is_sparse:
            if not self._sparse_as_dense:
                raise UnsupportedError(
                    f"the gradient of {slot.name} is sparse; give sparse_as_dense=True, or use DistributedOptimizer"
                )
            gradient = gradient.to_dense()
            self._sparse.add(position)
        elif _tensors.overlaps_itself(gradient):
            gradient = gradient.contiguous()
        if is_own:
            self._window.mark_used(position)  # the user may have made it
        factor = self.feedback.prepare(position, gradient)
        loan = Loan(slot.parameter, gradient, slot.name, CALL_SYNCHRONIZE, given if is_held else None)
        transfer = reduce_in_place(loan.gradient, self._window.name(position), slot.reduction)
        loan.submitted()
        return _Flight(transfer, loan, is_own, factor)

    def _end_window(self) -> None:
        """Submits the remaining gradients, or zeros, and tells the workers which parameters were used."""
        self.renew()
        for slot in self._slots:
            slot.passed = 0
        comparison, self._late_comparison = self._late_comparison, None
        if comparison is not None:
            try:
                comparison.check()
            except Exception as error:
                self._window.fail(error)
                raise
        self._window.close("any")
        self.feedback.end_step()

    def _complete(self) -> None:
        """Ends the window, and puts all averages into the gradients."""
        self._refuse_touched()
        self._end_window()
        self._land(self._slots)
        for slot in self._slots:
            self._unveil(slot)
        self._is_complete = True

    def _following(self, position: int) -> list[_Slot]:
        """The next parameters whose averages have arrived: one step for several small ones costs much less."""
        found: list[_Slot] = []
        size = 0
        for other in itertools.islice(self._slots, position + 1, None):
            if not self._is_due(other) or not self._has_landed(other):
                break
            size += other.parameter.nbytes
            if size > _CHUNK_BYTES:
                break
            found.append(other)
        self._land(found)
        return found

    def _use_the_wait(self, wanted: list[_Slot]) -> None:
        """Until all of `wanted` have arrived, updates others that have. Those needed last arrive first."""
        while not all(map(self._has_landed, wanted)):
            chunk: list[_Slot] = []
            size = 0
            while self._behind and size < _CHUNK_BYTES and self._behind[-1] not in wanted:
                slot = self._behind[-1]
                if self._is_due(slot):
                    if not self._has_landed(slot):
                        break
                    chunk.append(slot)
                    size += slot.parameter.nbytes
                self._behind.pop()
            if not chunk:
                return
            self._land(chunk)
            with timeline.span("update ahead"):
                self._update(chunk)

    def _has_landed(self, slot: _Slot) -> bool:
        """Whether it can be updated without waiting."""
        flight = self._window.on_its_way(slot.position)
        return flight is None or (flight.transfer.ready() and (flight.is_own or self._window.knows_used()))

    def _flight(self, slot: _Slot) -> _Flight:
        flight = self._window.on_its_way(slot.position)
        assert flight is not None, "it is on its way"
        return flight

    def _is_due(self, slot: _Slot) -> bool:
        flight = self._window.on_its_way(slot.position)
        return flight is not None and flight.is_due

    def _is_early(self, slot: _Slot) -> bool:
        flight = self._window.on_its_way(slot.position)
        return flight is not None and not flight.is_due

    def _land(self, slots: Iterable[_Slot]) -> None:
        for slot in slots:
            flight = self._flight(slot)
            complaint = None if flight.has_landed else flight.loan.complaint(may_be_replaced=True)
            try:
                flight.transfer.wait()
                flight.has_landed = True
                if complaint is not None:
                    raise FailedPreconditionError(f"{complaint}; {CALL_SYNCHRONIZE}", tensor=slot.name)
                if not flight.is_own:
                    self._window.was_used(slot.position)
            except Exception as error:
                self._fail(slot, error)

    def _update(self, slots: list[_Slot]) -> None:
        """Steps parameters whose averages have landed."""
        cleared = [slot for slot in slots if slot.parameter.grad is not self._flight(slot).loan.placeholder]
        others = [slot.parameter.grad for slot in cleared]
        zeroed = [slot for slot in slots if self._flight(slot).zeroed]
        for slot in slots:
            if (slot.version, slot.address) != (slot.parameter._version, slot.parameter.data_ptr()):
                self._fail(slot, FailedPreconditionError(
                    f"parameter {slot.name} was changed between step() and its update, which comes when it is needed; call "
                    "synchronize() before parameters are changed or replaced",
                    tensor=slot.name,
                ))
        for slot in slots:
            self._unveil(slot)
        self._due -= len(slots)
        try:
            self._partial_step((slot.parameter for slot in slots), self._settings)
        except Exception as error:
            self._window.fail(error)  # some parameters are a step ahead of others
            raise
        for slot, other in zip(cleared, others, strict=True):
            slot.parameter.grad = other
        for slot in zeroed:
            if slot.parameter.grad is not None:
                slot.parameter.grad.zero_()

    def _unveil(self, slot: _Slot) -> None:
        """Puts the average into the gradient, or None if no worker had a gradient."""
        flight = self._window.take(slot.position)
        is_used = flight.is_own or self._window.was_used(slot.position)
        reduced = flight.transfer.wait()
        scale_in_place(reduced, 1.0 / flight.factor)
        gradient = None
        if is_used:
            gradient = flight.loan.average() if reduced is flight.loan.gradient else reduced
        if gradient is not None and slot.position in self._sparse:
            gradient = gradient.to_sparse(1)
        slot.parameter.grad = gradient

    def _fail(self, slot: _Slot, error: Exception) -> NoReturn:
        """Records that the workers are out of step, and raises `error` with the name of the parameter."""
        self._window.fail(error)
        if isinstance(error, Error) and error.fields.get("tensor") is None:
            named = type(error)(f"gradient of {slot.name}: {error}", **error.fields)
            self._window.fail(named)
            raise named from error
        raise error

    def _refuse_touched(self) -> None:
        """Raises if somebody changed a gradient that is on its way and not due yet."""
        for slot in self._slots:
            flight = self._window.on_its_way(slot.position)
            complaint = None if flight is None or flight.has_landed else flight.loan.complaint()
            if complaint is not None:
                self._fail(slot, FailedPreconditionError(f"{complaint}; {CALL_SYNCHRONIZE}"))


_REMEDY = "unfreeze parameters and add groups before CrossBarrier is made, or remove() it and make it again"
