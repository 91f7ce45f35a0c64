"""Averages the gradients of a list of parameters, for the DDP wrapper and the optimizer.

Gradients belong to windows (`gradlane._window`), which may span several backward passes. The user of this class decides
when a window ends.

When an elastic job forms again, names begin anew. So everything is declared again then, before the first gradient of the
next window. A worker that has come to the job does the same: the others wait for no constructor of it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch.utils.hooks import RemovableHandle

from gradlane import _session
from gradlane._alike import Comparison, telling
from gradlane._model_choice import Choice, codecs_of_model
from gradlane._compression import AutoCompressor
from gradlane._handle import Handle
from gradlane._reduction import ReduceOp, Reduction
from gradlane._window import Window
from gradlane.errors import FailedPreconditionError, InvalidArgumentError
from gradlane.torch import _in_flight, _tensors
from gradlane.torch._bundles import Bundle, Bundled, bundles_of
from gradlane.torch._declaration import Declaration
from gradlane.torch._feedback import Feedback, scale_in_place
from gradlane.torch._in_flight import Loan, refuse, refuse_cleared
from gradlane.torch._owners import own
from gradlane.torch._sparse import SparseTransfer
from gradlane.torch.groups import begin_in_place
from gradlane.torch.ops import reduce_in_place, wait_all

Priority = Callable[[int, str], int]
"""Maps a parameter's position in the model and its name to a priority; higher goes first."""

SparsePolicy = Literal["allgather", "dense"]

Transfer = Handle[torch.Tensor] | Bundled | SparseTransfer
"""A gradient in flight."""

PostAverageHook = Callable[[torch.nn.Parameter], None]
"""Called with a parameter whose gradient is the average."""


class Gradients:
    """Averages the gradients of `parameters`, in place. Parameters are referred to by their position in the list."""

    def __init__(
        self,
        namespace: str,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        reduction: Reduction,
        compression: Choice,
        *,
        sparse: SparsePolicy,
        sparse_parameters: frozenset[int],
        priority: Priority,
        refuse_unused: bool,
        remedy: str,
        sparse_again: Iterable[int] | None = None,
    ) -> None:
        """Declares all parameters on all workers. In a process set, the first gradient of each declares it.

        It waits for the other workers, but not in a process set: there the first window compares the parameters. Nor does it
        on a newcomer, which declares and compares them in its first window, as the others do then.

        Args:
            namespace: a prefix of all names.
            parameters: names and parameters, in the order in which a forward pass needs them.
            reduction: of all gradients, but for their priorities and codecs. This worker is one of those that take part.
            compression: what chooses the codec of each.
            sparse: how sparse gradients are reduced.
            sparse_parameters: positions whose gradients are known to be sparse.
            refuse_unused: whether a parameter without a gradient, on any worker, is an error.
            remedy: for errors, what to do instead of using gradients that are on their way.
            sparse_again: None leaves gradients dense that were made dense; else they become sparse again, and so do
                those at these positions, even if this worker had no gradient.
        Raises:
            MismatchError: the parameters of the workers differ; it names the first that does.
            InvalidArgumentError: a parameter cannot be reduced, something else averages its gradient already, or
                `compression` is none, or would act on no parameter.
        """
        if sparse not in ("allgather", "dense"):
            raise InvalidArgumentError(f'sparse={sparse!r} is no policy; use "allgather" or "dense"')
        self._reduction, self._sparse = reduction, sparse
        self._refuse_unused, self._remedy = refuse_unused, remedy
        self._among: Literal["all", "any"] = "all" if refuse_unused else "any"
        self._is_uneven = self._sits_out = False
        self._left: str | None = None
        """What this worker did to leave the others, while it takes part in their windows without data."""
        self._calls = 0
        """How many calls run that need this worker not to leave; threads of several devices submit side by side."""
        self._lock = threading.Lock()
        """Of the two above. It is not held during a call: a submission may wait for a thread of another worker."""
        self.leader = 0
        """The lowest of the ranks that had data in the last window in which any had."""
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._kinds = [_tensors.kind_of(parameter) for parameter in self._parameters]
        self._loans: dict[int, Loan] = {}
        """This worker's gradients in flight, by position."""
        weakref.finalize(self, _abandon, self._loans).atexit = False
        self._hooks: OrderedDict[int, PostAverageHook] = OrderedDict()
        self._reductions = [reduction.with_priority(priority(i, name)) for i, (name, _) in enumerate(parameters)]
        """That of each parameter's gradient. Its codec follows below."""
        self._factors: dict[int, float] = {}
        """What gradients in flight were multiplied by, by position, if not by 1."""
        self._known_sparse = frozenset(i for i in sparse_parameters if sparse == "allgather")
        self._gathered = set(self._known_sparse)
        self._sparse_again = None if sparse_again is None else set(sparse_again)
        self._window: Window[Transfer] = Window(namespace, self._names, self._start, reduction.process_set)
        self._comparison: Comparison | None = None
        """Of the parameters, begun and not yet checked."""
        self._late_comparison: Comparison | None = None
        """The same in a session that has replaced another one; it is checked when the first window ends."""
        self._declaration = Declaration()
        with telling("parameter", f"{namespace}/parameters", reduction.process_set):
            for name, parameter in parameters:
                _tensors.check_place_of(name, parameter)
            if reduction.process_set is not None and isinstance(compression, AutoCompressor):
                raise InvalidArgumentError(
                    "compression=Compression.auto is measured by all workers, and process_set has some of them; choose one"
                )
            codecs = codecs_of_model(compression, [(name, *_tensors.wire_form(p)) for name, p in parameters])
            self._reductions = [one.encoded(codec) for one, codec in zip(self._reductions, codecs, strict=True)]
            own(self, parameters)
        self._codecs, self._comparison_name = codecs, f"{namespace}/parameters"
        rows_of_feedback = zip(self._names, self._parameters, codecs, strict=True)
        self.feedback = Feedback((i, n, self._window.name(i), p, c) for i, (n, p, c) in enumerate(rows_of_feedback))
        """Of those of the gradients whose codecs have it."""
        self._bundles: dict[int, Bundle] = {}
        _session.move_along(self)
        if not self._declaration.was_made:
            return
        self._comparison = self._begin_comparison()
        self.feedback.begin()
        if reduction.process_set is None:
            # The members of sets may belong to several, and make their wrappers in different orders. So none waits here.
            self._compare()
            self._declare()

    def _begin_comparison(self) -> Comparison:
        named = zip(self._names, self._parameters, strict=True)
        rows = [(name, _tensors.dtype_name(p.dtype), tuple(p.shape)) for name, p in named]
        return Comparison("parameter", rows, self._comparison_name, self._reduction.process_set)

    def _declare(self) -> None:
        """Declares the parameters that are reduced dense, and learns which of them travel together."""
        dense = {i: parameter for i, parameter in enumerate(self._parameters) if i not in self._gathered}
        names, session = {self._window.name(i): i for i in dense}, _session.session()
        _tensors.declare_encoded(session, ((name, dense[i], self._codecs[i]) for name, i in names.items()))
        self._bundles = bundles_of(dense, names, session.companions(), self._start_together)

    def before_forming_again(self) -> None:
        """Keeps what error feedback has on this worker."""
        if self._declaration.is_present:
            self.feedback.keep()

    def renew(self) -> None:
        """Declares the parameters in the present session, if it is another one of this job than before.

        It waits for no other worker, because those may come to their wrappers in another order.

        Raises:
            FailedPreconditionError: the gradients are those of a process set, whose ranks were given anew.
            MismatchError: a worker's parameter has another dtype or shape (both are named).
        """
        self._declaration.renew(self._declare_again)

    def _declare_again(self) -> None:
        if self._declaration.was_made and self._reduction.process_set is not None:
            raise FailedPreconditionError(
                f"the gradients are averaged over the workers of {self._reduction.process_set}, and the elastic job has "
                "formed again since: its ranks were given anew. Make the process set and the wrapper again"
            )
        self._window.renew()
        self.leader = 0  # a worker that was there before, as the lowest ranks are
        # A newcomer knows only these.
        self._gathered = set(self._known_sparse)
        self._late_comparison = self._begin_comparison()
        if self._reduction.process_set is None:
            self._declare()
        self.feedback.begin()

    def register_post_average_hook(self, hook: PostAverageHook) -> RemovableHandle:
        """Calls `hook(parameter)` for each parameter with an average, at the end of every window."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def mark_used(self, position: int) -> None:
        """Records that the parameter has a gradient that is not to be submitted yet.

        Raises:
            FailedPreconditionError: this worker has left, or another hook has cleared the gradient.
        """
        self.refuse_left()
        refuse_cleared(self._parameters[position], self._names[position])
        self._window.mark_used(position)

    def submit(self, position: int) -> None:
        """Submits the parameter's gradient, in place.

        Raises:
            FailedPreconditionError: it is in flight already, another hook has cleared it, or this worker has left.
        """
        self._begin()
        try:
            self._window.refuse_second(position, "; in that case call zero_grad() and wrap the model again, on all workers")
            refuse_cleared(self._parameters[position], self._names[position])
            self._window.mark_used(position)
            self._window.submit(position)
        finally:
            self._end()

    @property
    def all_submitted(self) -> bool:
        """Whether every gradient of this window was submitted."""
        return self._window.all_submitted

    @property
    def any_submitted(self) -> bool:
        """Whether any gradient of this window was submitted."""
        return self._window.any_submitted

    def finish(self) -> None:
        """Ends the window: submits the remaining gradients, or zeros, and waits for the averages.

        A gradient that is there counts, also if autograd did not make it in this window. A parameter without a gradient
        on any worker keeps none. At last the hooks of `register_post_average_hook` run.

        Raises:
            UnusedParametersError: a worker had no gradient for some parameter, and `refuse_unused` was set.
            StallError: some workers did not come to the end of their window in time (they are named).
            FailedPreconditionError: this worker has left, or somebody changed a gradient that was on its way.
        """
        window = self._window
        self._begin()
        try:
            used = window.used()
            with self._failing():
                self._compare_late()
                window.close(self._among)
                self._land()
            self._refuse(used)
        finally:
            self._end()
        for hook in list(self._hooks.values()):
            for position, parameter in enumerate(self._parameters):
                if window.was_used(position):
                    hook(parameter)

    @contextlib.contextmanager
    def uneven(self) -> Iterator[None]:
        """Inside, an average is that of the workers that have data. All workers enter it between the same windows.

        Raises:
            InvalidArgumentError: the gradients are reduced by Min or Max, in which a worker without data has no part.
            FailedPreconditionError: it was entered already.
        """
        self.check_uneven()
        if self._is_uneven:
            raise FailedPreconditionError("join() inside of join(); leave the first one before")
        self._is_uneven = True
        try:
            yield
        finally:
            self._is_uneven = False

    def check_uneven(self) -> None:
        """Raises InvalidArgumentError if a worker without data would change what the others get."""
        if self._reduction.op in ("min", "max"):
            name = ReduceOp(self._reduction.op).name
            raise InvalidArgumentError(f"join with op={name}, in which zeros count; use Average or Sum")

    @contextlib.contextmanager
    def left(self, how: str) -> Iterator[None]:
        """Inside, this worker has left the others: it has no gradients of its own, and calls `sit_out`.

        Args:
            how: for errors, what it did to leave, such as "left model.join()".
        Raises:
            FailedPreconditionError: gradients are on their way, or it has left already.
        """
        with self._lock:
            self.refuse_left()
            self._window.check()
            if self._window.any_submitted or self._calls:
                raise FailedPreconditionError(
                    "join() while gradients are on their way; call step() or synchronize() first"
                )
            self._left = how
        try:
            yield
        finally:
            self._left = None

    def refuse_left(self) -> None:
        """Raises if this worker has left, because a gradient of its own would be one too many for the others.

        Raises:
            FailedPreconditionError: it has left, and the others have not all done so.
        """
        if self._left is not None:
            raise FailedPreconditionError(
                f"this worker has {self._left}, and now takes part in the passes of the others without data of its own: "
                "it may not run forward or backward passes of this model until all workers have done so. Let threads "
                "that run passes end before, or start them after the wait"
            )

    def sit_out(self) -> bool:
        """Takes part in the next window of the others without data of its own; gradients here do not change.

        Called inside of `left`.

        Returns:
            Whether a worker had data. If not, no gradient was sent.
        Raises:
            UnusedParametersError, StallError: as for `finish`.
        """
        window = self._window
        window.check()
        self.renew()
        self._compare()
        self._compare_late()
        used = bytes([1]) * len(self._parameters)
        with self._failing():
            window.sit_out(self._among)
            if not window.active():
                return False
            self._sits_out = True
            try:
                window.submit_rest()
                self._land()
            finally:
                self._sits_out = False
        self._refuse(used)
        return True

    def _begin(self) -> None:
        """Keeps this worker from leaving until `_end`. No context manager, because there is one call a gradient."""
        with self._lock:
            self.refuse_left()
            self._window.check()
            self._calls += 1
        try:
            if not self._declaration.is_present:
                self.renew()
            if self._comparison is not None:
                self._compare()
        except Exception:
            self._end()
            raise

    def _compare(self) -> None:
        """Raises if the parameters of the workers differ; waits for the workers in the first window only."""
        try:
            self._check(self._comparison)
        finally:
            self._comparison = None

    def _compare_late(self) -> None:
        """The same at the end of the first window in a session that has replaced another one."""
        comparison, self._late_comparison = self._late_comparison, None
        self._check(comparison)

    def _check(self, comparison: Comparison | None) -> None:
        if comparison is not None:
            try:
                comparison.check()
            except Exception as error:
                self._window.fail(error)
                raise

    def _end(self) -> None:
        with self._lock:
            self._calls -= 1

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Ends the window at the end, and keeps the error for later windows if there is one."""
        try:
            yield
        except Exception as error:
            self._window.fail(error)
            raise
        finally:
            self._window.clear()
            self._factors.clear()
            self.feedback.end_step()
            _abandon(self._loans)
            for bundle in set(self._bundles.values()):
                bundle.clear()

    def _refuse(self, used: bytes) -> None:
        """Raises if a parameter must be used by all workers and was not; `used` is what this worker had."""
        if self._refuse_unused and not all(map(self._window.was_used, range(len(used)))):
            raise self._window.unused(used)

    def _land(self) -> None:
        """Completes all transfers of the window."""
        window = self._window
        complaints = list(self._complaints())
        transfers = [window.take(position) for position in range(len(self._parameters))]
        for transfer in transfers:
            if isinstance(transfer, SparseTransfer):
                transfer.exchange()
        handles: list[Handle[Any]] = [transfer for transfer in transfers if isinstance(transfer, Handle)]
        bundles = {transfer.bundle for transfer in transfers if isinstance(transfer, Bundled)}
        wait_all(handles + [bundle.handle for bundle in bundles if bundle.handle is not None])
        active = window.active()
        self.leader = active[0]
        refuse(complaints, self._remedy)
        for position, (parameter, transfer) in enumerate(zip(self._parameters, transfers, strict=True)):
            reduced = transfer.wait()
            factor = self._factors.pop(position, 1.0)
            if self._sits_out:
                continue
            scale_in_place(reduced, 1.0 / factor)
            if isinstance(transfer, SparseTransfer) and self._is_uneven and self._reduction.op != "sum":
                reduced = reduced / len(active)
            loan = self._loans.pop(position, None)
            gradient = None if loan is None else loan.gradient
            # In place, the average is the gradient itself.
            if window.was_used(position) and reduced is not gradient:
                keeps_dense = gradient is not None and not gradient.is_sparse
                gradient = reduced.to_dense() if keeps_dense else reduced
            elif loan is not None:
                gradient = loan.average()
            if gradient is not None and not gradient.is_sparse and position in (self._sparse_again or ()):
                gradient = gradient.to_sparse(1)
            parameter.grad = gradient

    def _complaints(self) -> Iterator[str]:
        """What somebody else did to gradients while they were on their way."""
        for position, parameter in enumerate(self._parameters):
            loan = self._loans.get(position)
            if loan is not None and (complaint := loan.complaint()) is not None:
                yield complaint
            elif loan is None and parameter.grad is not None and not self._sits_out:
                yield f"the gradient of {self._names[position]} was set while the average was on its way"

    def _start(self, position: int) -> Transfer:
        parameter, name = self._parameters[position], self._window.name(position)
        gradient = None if self._sits_out else self._lend(position)
        if gradient is not None and gradient.is_sparse:
            self._gathered.add(position)  # also when this worker has none
        if position in self._gathered:
            bundle = self._bundles.pop(position, None)
            if bundle is not None:
                bundle.leave(position)
            reduction = self._reduction.summed() if self._is_uneven else self._reduction
            return SparseTransfer(_as_sparse(gradient, parameter), name, reduction)
        if gradient is None:
            gradient = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        if position in self._bundles:
            return self._bundles[position].add(position, gradient)
        factor = self.feedback.prepare(position, gradient)
        if factor != 1.0:
            self._factors[position] = factor
        transfer = reduce_in_place(gradient, name, self._weighted(self._reductions[position]))
        if position in self._loans:
            self._loans[position].submitted()
        return transfer

    def _lend(self, position: int) -> torch.Tensor | None:
        """Takes the gradient of a parameter out of the user's hands; None if there is none."""
        parameter, name = self._parameters[position], self._names[position]
        is_held = _in_flight.may_be_held(parameter)
        gradient = given = parameter.grad
        _tensors.check_kind(parameter if gradient is None else gradient, self._kinds[position], name)
        if gradient is None:
            return None
        if self._among == "any":
            self._window.mark_used(position)  # the user may have made it
        if gradient.is_sparse and self._sparse == "dense":
            gradient = gradient.to_dense()
            if self._sparse_again is not None:
                self._sparse_again.add(position)
        elif not gradient.is_sparse and _tensors.overlaps_itself(gradient):
            gradient = gradient.contiguous()
        loan = self._loans[position] = Loan(parameter, gradient, name, self._remedy, given if is_held else None)
        return loan.gradient

    def _start_together(
        self, positions: Sequence[int], gradients: Sequence[torch.Tensor]
    ) -> Handle[list[torch.Tensor]]:
        first = max((self._reductions[position] for position in positions), key=lambda one: one.priority)
        handle = begin_in_place(
            False,
            [gradient.detach() if gradient.requires_grad else gradient for gradient in gradients],
            [self._window.name(position) for position in positions],
            self._weighted(first),
        )
        for position in positions:
            if position in self._loans:
                self._loans[position].submitted()
        return handle

    def _weighted(self, reduction: Reduction) -> Reduction:
        """How a gradient is reduced now: by a weighted mean while some workers may have no data.

        Who has data is known only after the window, so each contribution carries whether it counts.
        """
        if self._is_uneven and reduction.op != "sum":
            return reduction.weighted(float(not self._sits_out))
        return reduction


def _abandon(loans: dict[int, Loan]) -> None:
    """Clears gradients whose averages nobody will wait for."""
    for loan in loans.values():
        loan.abandon()
    loans.clear()


def _as_sparse(gradient: torch.Tensor | None, parameter: torch.nn.Parameter) -> torch.Tensor:
    if gradient is None:
        return torch.sparse_coo_tensor(
            torch.empty((1, 0), dtype=torch.int64, device=parameter.device),
            torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device),
            parameter.shape,
            check_invariants=False,
        )
    # A weight that is shared by a sparse embedding and a dense layer gets a dense gradient.
    return gradient if gradient.is_sparse else gradient.to_sparse(1)
