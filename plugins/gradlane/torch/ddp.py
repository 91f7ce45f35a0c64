"""A module whose gradients are averaged over all workers when `backward()` returns."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.hooks import RemovableHandle

from gradlane._alike import telling
from gradlane._model_choice import Choice
from gradlane._reduction import AVERAGE
from gradlane._sets import from_one_left
from gradlane.errors import FailedPreconditionError, InvalidArgumentError
from gradlane import _names, _session
from gradlane._window import forward_order
from gradlane.torch._gradients import Gradients, PostAverageHook, Priority, SparsePolicy
from gradlane.torch._owners import is_owned, refuse_unknown, watch_copy, watch_frozen
from gradlane.torch._parameter_watch import ParameterWatch
from gradlane.torch._buffer_copies import BufferCopies
from gradlane.torch.broadcast import broadcast_alike, broadcast_optimizer_state


class DistributedDataParallel(nn.Module):
    """Wraps a module: all workers start from the parameters of rank 0, and every backward pass averages the gradients.

    A gradient is submitted as soon as autograd has computed it, while the rest of the backward pass goes on. All
    averages are complete when `backward()` returns, on devices for whatever the current stream does next. So gradient
    clipping, `GradScaler` and any optimizer work as in a single process.

        model = gl.DistributedDataParallel(model)
        loss(model(x), y).backward()
        optimizer.step()

    When an elastic job forms again (`gradlane.elastic`), the wrapper goes on with the workers that there are then. On a
    worker that comes to a job that trains already, it broadcasts nothing: the state comes with the first step.

    Every worker must make its wrappers in the same order, and run the same number of backward passes. Backward passes
    that reach no parameter of the module (`torch.autograd.grad`) do not count. To compile, wrap the compiled module.
    Gradients that you put into `parameter.grad` yourself after a backward pass are not averaged: average them by
    `push_pull`, or use `DistributedOptimizer`, which averages what it finds at `step()`.

    While a gradient is on its way, only the engine may use it. Other hooks on parameters may change it before, if they
    were registered before the module was wrapped; `register_post_average_hook` is for those that need the average.

    A copy (`copy.deepcopy`, `pickle`, `torch.save`) runs its module and averages nothing, also without a job: it suits
    moving averages of weights and checkpoints. In a job of several workers, a backward pass of a copy raises
    FailedPreconditionError; to train it, wrap its `module`. A shallow copy (`copy.copy`) is the same wrapper once more.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[object] | None = None,
        *,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        bucket_cap_mb: float | None = None,
        compression: Choice = None,
        sparse: SparsePolicy = "allgather",
        priority: Literal["backward"] | Priority = "backward",
        name: str | None = None,
    ) -> None:
        """Broadcasts parameters and buffers of rank 0 and declares the gradients.

        Args:
            module: on CUDA devices, on the CPU or on both. Parameters with `requires_grad=False` are left alone.
            device_ids: the one CUDA device of the whole module, to which inputs are moved. None or empty leaves inputs
                where they are, as a module on several devices needs.
            broadcast_buffers: whether buffers of rank 0 replace those of the others before each training forward pass. Set it
                to False if several forward passes come before their backward passes, and the model computes gradients
                through buffers that differ between workers.
            find_unused_parameters: whether a parameter may get no gradient. If so, workers without one contribute zeros
                if another has one. If not, all raise UnusedParametersError, which names parameters and ranks.
            bucket_cap_mb: accepted but not used, because the engine cuts and joins tensors by its own rules.
            compression: how gradients travel: one of `Compression`, or a function that gives one for a parameter's name and
                shape. None takes the setting `compression`. One of `Compression` leaves out vectors, scalars and small
                parameters unless it is `fp16`, `bf16` or has `compress_all=True`; if it would act on none, that is an
                error. Equal on all workers.
            sparse: "allgather" sends the rows of sparse gradients, "dense" makes them dense.
            priority: "backward" sends the gradients first that the next forward pass needs first; or a function of
                position and name.
            name: a prefix of the tensors' names; needed only if workers make wrappers in different orders.
        Raises:
            MismatchError: a worker's module has a parameter of another dtype or shape (both are named).
            UnsupportedError: a parameter is neither on the CPU nor on a CUDA device.
            InvalidArgumentError: there is nothing to average, something else averages the gradients already, or the
                module is not on `device_ids`.
        """
        super().__init__()
        del bucket_cap_mb
        self._namespace = _names.namespace("ddp", name)
        with telling("tensor", f"{self._namespace}/state/list"):  # the first comparison of `_copy_state`
            self._device = _only_device(module, device_ids)
            self.module = module
            named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
            if not named:
                raise InvalidArgumentError(
                    f"{type(module).__name__} has no parameter that requires a gradient; nothing to average"
                )
        frozen = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
        self._known = {id(parameter) for _, parameter in named}
        self._copy_state(root_rank=0)
        self._buffer_names = [name for name, _ in module.named_buffers()] if broadcast_buffers else []
        self._buffer_copies = BufferCopies(f"{self._namespace}/buffer/")
        self._gradients: Gradients | None = Gradients(
            self._namespace,
            named,
            AVERAGE,
            compression,
            sparse=sparse,
            sparse_parameters=_sparse_positions(module, named),
            priority=forward_order if priority == "backward" else priority,
            refuse_unused=not find_unused_parameters,
            remedy=_REMEDY_TOUCHED,
        )
        self._synchronizes = True
        self._original: tuple[DistributedDataParallel, ...] = ()
        """Of a shallow copy: the wrapper that it is a copy of."""
        self._is_joining = False
        self._backward_runs = False
        self._any_gradient = self._has_checked = False
        self._watch: ParameterWatch | None = ParameterWatch(self, named, DistributedDataParallel._gradient_is_ready)
        watch_frozen(self, frozen, _REMEDY_UNKNOWN)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the module."""
        if self._device is not None:
            inputs, keywords = _moved(inputs, self._device), _moved(keywords, self._device)
        if not torch.is_grad_enabled():
            return self.module(*inputs, **keywords)
        if self._gradients is None:
            self._refuse_training_of_a_copy()
            return self.module(*inputs, **keywords)
        self._gradients.refuse_left()
        self._backward_runs = False  # a backward pass that raised did not reset it
        if self._synchronizes:
            self._gradients.renew()
            self._refuse_unknown_parameters()
            if self.training and not self._is_joining:
                self._copy_buffers(self._gradients.leader)
        output = self.module(*inputs, **keywords)
        # Hooks on the outputs run in the outermost backward pass. A parameter's hook may run in an inner pass of
        # reentrant checkpointing, whose end is not the end of the backward pass.
        for tensor in _tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self._enter_backward())
        return output

    def register_post_average_hook(self, hook: PostAverageHook) -> RemovableHandle:
        """Calls `hook(parameter)` for each parameter whose gradient has become the average, at the end of `backward()`.

        The hook may use and change `parameter.grad` and the parameter. So it is the place for an optimizer that steps
        during the backward pass and frees each gradient:

            model.register_post_average_hook(lambda p: (optimizers[p].step(), optimizers[p].zero_grad()))

        Hooks run in the order of the parameters. They do not run inside of `no_sync()`, for a parameter that no worker
        used, after an error, and on a worker that has left `join()`.

        Returns:
            An object whose `remove()` ends the calls.
        Raises:
            FailedPreconditionError: this is a copy, which averages nothing.
        """
        if self._gradients is None:
            raise FailedPreconditionError("a copy of a DistributedDataParallel averages nothing; wrap its module")
        return self._gradients.register_post_average_hook(hook)

    def follow_learning_rate(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes the error feedback of the compression follow the learning rates of `optimizer`, from now on.

        What a gradient has lost at one learning rate counts for less, or more, at another one. `DistributedOptimizer` and
        `CrossBarrier` do this by themselves. The rates must be the same on all workers.
        """
        if self._gradients is not None:
            self._gradients.feedback.follow(optimizer)

    def follow_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Makes the error feedback of the compression follow the scale of the loss, from the next step on.

        Without this, what gradients have lost at one scale counts for more, or less, at another one. What it keeps does not
        change in a step that `scaler` skips because of an overflow, on the workers and in the sums of the servers; so it
        takes twice the memory on both. Call it on all workers, before the first step.
        """
        if self._gradients is not None:
            self._gradients.feedback.follow_scaler(scaler)

    def clip_locally(self, norm_max: float) -> None:
        """Clips gradients on this worker before error feedback adds what was lost of those before, from the next step on.

        An outlier would come back for many steps. Only gradients are clipped whose codecs have error feedback, each to a
        norm (L2) of `norm_max` / sqrt(workers), as deep gradient compression does. Call it on all workers.

        Raises:
            InvalidArgumentError: `norm_max` is not above zero, or no gradient has error feedback.
        """
        if self._gradients is not None:
            self._gradients.feedback.clip(norm_max)

    def feedback_state_dict(self) -> dict[str, Any]:
        """What the error feedback of the compression keeps on this worker and on servers; see `DistributedOptimizer.state_dict`.

        Save it for each rank, beside `state_dict()`.
        """
        return {} if self._gradients is None else self._gradients.feedback.state_dict()

    def load_feedback_state_dict(self, state: dict[str, Any]) -> None:
        """Puts that back, on all workers; see `DistributedOptimizer.load_state_dict`.

        Raises:
            InvalidArgumentError: it is of other parameters, or of another compression.
            MismatchError: another worker has loaded another state.
        """
        if self._gradients is not None and state:
            self._gradients.feedback.load_state_dict(state)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate gradients; the first one after it averages them."""
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    @contextlib.contextmanager
    def join(self, *optimizers: torch.optim.Optimizer) -> Iterator[None]:
        """Inside, workers may run different numbers of backward passes, as with batches that do not divide evenly.

            with model.join(optimizer):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss(model(x), y).backward()
                    optimizer.step()

        An average is that of the workers that still have data. A worker that leaves the block early takes part until
        the last one leaves, and adds nothing. Then all get the parameters and buffers of a worker that was among the
        last ones. While a worker waits so, the others may not use other operations of which it is a part.

        Every worker must enter the block, also one without any data. Buffers follow the lowest rank that has data, from
        one backward pass to the next. A worker that has left the block may not run passes until the last one has, in
        other threads neither: they raise FailedPreconditionError.

        Args:
            optimizers: those whose state is to be equal on all workers at the end, as for `broadcast_optimizer_state`.
        Raises:
            FailedPreconditionError: inside of another `join`, or a gradient is on its way.
            The errors of a backward pass: on leaving, for passes of the other workers.
        """
        gradients = self._gradients
        if gradients is None:
            yield
            return
        with gradients.uneven():
            self._is_joining = True
            try:
                self._copy_buffers(root_rank=0)
                yield
                with gradients.left("left model.join()"):
                    while gradients.sit_out():
                        self._copy_buffers(gradients.leader)
                    self._copy_state(gradients.leader)
                    for position, optimizer in enumerate(optimizers):
                        prefix = f"{self._namespace}/optimizer{position}."
                        from_one_left(gradients.leader, partial(broadcast_optimizer_state, optimizer, prefix=prefix))
            finally:
                self._is_joining = False

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy: other parameters, which are not declared, and no gradients to average."""
        fresh: dict[str, Any] = {"_gradients": None, "_watch": None, "_known": set(), "_is_joining": False}
        fresh |= {"_original": (), "_backward_runs": False, "_any_gradient": False, "_has_checked": False}
        return {**self.__dict__, **fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a copy, which also refuses to train if its module is called by itself."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._refuse_training_of_a_copy()

    def __copy__(self) -> DistributedDataParallel:
        """The same module, parameters and averages."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._original = (self,)  # the hooks on the parameters live as long as it; in a tuple, it is no module of ours
        return copied

    def _refuse_training_of_a_copy(self) -> None:
        """Makes backward passes raise that give this copy's parameters gradients which nobody averages."""
        if _session.is_initialized() and _session.size() > 1:
            unwatched = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad and not is_owned(p)]
            watch_copy(self, unwatched, "DistributedDataParallel; wrap its module in DistributedDataParallel to train it")

    def _gradient_is_ready(self, position: int) -> None:
        self._enter_backward()
        self._any_gradient = True
        if self._gradients is None:
            return
        if self._synchronizes:
            self._gradients.submit(position)
        else:
            self._gradients.mark_used(position)

    def _enter_backward(self) -> None:
        if self._gradients is not None:
            self._gradients.refuse_left()
        if not self._backward_runs:
            self._backward_runs = True
            torch.autograd.Variable._execution_engine.queue_callback(self._leave_backward)

    def _leave_backward(self) -> None:
        self._backward_runs = False
        had_gradient, self._any_gradient = self._any_gradient, False
        if self._watch is not None:
            self._watch.end()  # hooks of `register_post_average_hook` may change parameters
        if self._synchronizes and had_gradient and self._gradients is not None:
            if not self._has_checked:  # the module was called by itself
                self._refuse_unknown_parameters()
            self._has_checked = False
            self._gradients.finish()
            if self._is_joining:
                self._copy_buffers(self._gradients.leader)

    def _copy_state(self, root_rank: int) -> None:
        state = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        prefix = f"{self._namespace}/state/"
        named = {f"{prefix}{n}": tensor for n, tensor in state.items()}
        from_one_left(root_rank, lambda root: broadcast_alike(named, prefix, root))

    def _copy_buffers(self, root_rank: int) -> None:
        if not self._buffer_names:
            return
        buffers = dict(self.module.named_buffers())
        kept = {name: buffers[name] for name in self._buffer_names}
        from_one_left(root_rank, lambda root: self._buffer_copies.copy(kept, root, self._unsaved_buffers))

    def _unsaved_buffers(self) -> set[str]:
        """In training, the running statistics of a normalization are not used, and so no backward pass needs them."""
        return {
            f"{path}{'.' * bool(path)}{name}"
            for path, module in self.module.named_modules()
            if isinstance(module, _NormBase) and module.training
            for name in ("running_mean", "running_var", "num_batches_tracked")
        }

    def _refuse_unknown_parameters(self) -> None:
        refuse_unknown(self.module.named_parameters(), self._known, _REMEDY_UNKNOWN)
        self._has_checked = True


_REMEDY_UNKNOWN = "wrap the module again after changing it"
_REMEDY_TOUCHED = (
    "use gradients when backward() has returned or in a hook of register_post_average_hook(), and change them before they "
    "are averaged only in hooks that were registered before the module was wrapped"
)


def _sparse_positions(module: nn.Module, named: Sequence[tuple[str, nn.Parameter]]) -> frozenset[int]:
    """Positions of the weights with sparse gradients. A worker that uses none of them must know them too."""
    weights = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse}
    return frozenset(i for i, (_, parameter) in enumerate(named) if id(parameter) in weights)


def _only_device(module: nn.Module, device_ids: Sequence[object] | None) -> torch.device | None:
    """The device to which inputs are moved, if `device_ids` names one; the whole module must be there."""
    if not device_ids:
        return None
    wanted = [torch.device("cuda", d) if isinstance(d, int) else torch.device(str(d)) for d in device_ids]
    present = {parameter.device for parameter in module.parameters()}
    if present != set(wanted):
        raise InvalidArgumentError(
            f"device_ids={list(device_ids)}, but the module is on {', '.join(sorted(map(str, present)))}; give the one "
            "device that the module is on, or leave device_ids out"
        )
    return wanted[0]


def _moved(value: Any, device: torch.device) -> Any:
    """A copy of `value` with all tensors in it on `device`."""
    match value:
        case torch.Tensor():
            return value.to(device, non_blocking=True)
        case dict():
            return {key: _moved(item, device) for key, item in value.items()}
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*[_moved(item, device) for item in value])
        case list() | tuple():
            return type(value)([_moved(item, device) for item in value])
        case _:
            return value


def _tensors_in(output: Any) -> Iterator[torch.Tensor]:
    match output:
        case torch.Tensor():
            yield output
        case dict():
            for item in output.values():
                yield from _tensors_in(item)
        case list() | tuple():
            for item in output:
                yield from _tensors_in(item)
        case _ if dataclasses.is_dataclass(output):
            for field in dataclasses.fields(output):
                yield from _tensors_in(getattr(output, field.name))
        case _:
            return
