"""Training without a barrier between two steps: a layer waits for its own gradients, not for those of all layers.

    optimizer = gl.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, labels in data:
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()    # submits gradients; those of the first layers overtake
        optimizer.step()                          # returns at once

The idea is that of ByteScheduler (SOSP 2019) and of BytePS's class of the same name. Those reimplement SGD, Adam and
RMSprop; here the optimizer's own `step` runs, for the parameters of one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from gradlane._model_choice import Choice
from gradlane._reduction import Average, ReduceOp, reduction_of
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from gradlane import _names
from gradlane.torch._copies import Averaging, plain_class
from gradlane.torch._deferred import Deferred
from gradlane.torch._known import places, refused_group
from gradlane.torch._module_hooks import Hook, forget_compiled
from gradlane.torch.ddp import DistributedDataParallel
from gradlane.torch.optimizer import check_passes, name_parameters

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def CrossBarrier(
    model: nn.Module,
    optimizer: Kind,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: Choice = None,
    backward_passes_per_step: int = 1,
    num_steps: int | None = None,
    op: ReduceOp = Average,
    *,
    sparse_as_dense: bool = False,
    opaque: Sequence[type[nn.Module]] = (nn.MultiheadAttention,),
    name: str | None = None,
) -> Kind:
    """Averages the gradients of `optimizer` over all workers while training goes on; returns the same object.

    `step()` records the learning rate and all other settings, and returns at once. The forward pass updates the
    parameters of each module before it runs the module. It waits there until their averages have arrived, and meanwhile
    updates other parameters whose averages have. The weights are bitwise those of `DistributedOptimizer`.

    Any code that reads weights or gradients outside of a forward pass of `model` has to wait for them:

    - `state_dict()` and `load_state_dict()` of model and optimizer wait by themselves. So do forward passes without
      gradients or in `eval()` mode. A single worker may do this alone.
    - Call `optimizer.synchronize()` before other code that reads weights, such as a moving average or a copy of them.
    - Call `optimizer.synchronize()` between `backward()` and `step()` on all workers before gradients are clipped or
      unscaled. Clipping needs all gradients, so there is no overlap then. Reading a gradient in flight raises
      FailedPreconditionError.

    Every worker must call `step()` equally often. A parameter that only some workers used gets the average with zeros
    from the others; a parameter that no worker used is left out. With hooks on the optimizer's steps, `step()` waits
    for all gradients, because hooks may read them. Nothing is broadcast: call `broadcast_parameters` and
    `broadcast_optimizer_state` first. When an elastic job forms again (`gradlane.elastic`), all updates that are due are done
    before, and the optimizer goes on with the workers that there are then.

    If an operation fails, the next call that waits raises its error, with the name of the parameter, and so does every
    later call, because the weights then belong to two different steps. `remove()`, or leaving the optimizer as a
    context manager, makes it a plain optimizer again.

    Args:
        model: the model whose modules wait; holds all parameters of the optimizer, on CUDA devices or the CPU.
        optimizer: any torch optimizer that treats each parameter separately, as all but LBFGS do.
        named_parameters: names of parameters for errors; None takes those of `model`.
        compression: as for `DistributedDataParallel`.
        backward_passes_per_step: how many backward passes accumulate before they are averaged.
        num_steps: accepted for BytePS scripts; has no effect.
        op: `Average` or `Sum`.
        sparse_as_dense: whether sparse gradients travel dense; they are refused otherwise. For the update they are
            sparse again.
        opaque: classes of modules that use parameters of inner modules without calling these; they wait for all.
        name: a prefix of the tensors' names; needed only if workers make optimizers in different orders.
    Raises:
        InvalidArgumentError: the optimizer has parameters that `model` lacks, or `model` averages by itself.
        UnsupportedError: the optimizer cannot be stepped for some parameters before others.
        MismatchError: a worker's parameter has another dtype or shape (both are named).
    """
    del num_steps
    if isinstance(optimizer, Averaging):
        raise InvalidArgumentError("the optimizer is distributed already; give CrossBarrier a plain one")
    averaging = (DistributedDataParallel, nn.parallel.DistributedDataParallel)
    if any(isinstance(module, averaging) for module in model.modules()):
        raise InvalidArgumentError("the model averages its gradients by itself; give CrossBarrier what it wraps")
    _refuse_homeless(model, optimizer)
    kind = plain_class(optimizer)
    named = list(model.named_parameters() if named_parameters is None else named_parameters)
    listed = name_parameters(optimizer, named)
    updates = Deferred(
        _names.namespace("cross_barrier", name),
        optimizer,
        listed,
        named,
        reduction_of(op),
        compression,
        passes=check_passes(backward_passes_per_step),
        sparse_as_dense=sparse_as_dense,
    )
    barrier = _Barrier(model, updates, listed, tuple(opaque), kind, optimizer.__dict__.pop("step", None))
    # As for DistributedOptimizer, schedulers refer to this object. An earlier scheduler has replaced its `step` with a
    # wrapper of the class's method; our `step` also does the work of that wrapper.
    optimizer.__class__ = type(kind.__name__, (_CrossBarrier, kind), {"__module__": kind.__module__})
    optimizer._barrier = barrier  # type: ignore[attr-defined]
    return optimizer


class _CrossBarrier(Averaging):
    """The methods of the optimizer in addition to its own class, or instead of it."""

    _barrier: _Barrier

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Makes the updates due, with the present settings. Each is done when it is needed or its average has arrived.

        Raises:
            UnsupportedError: a closure is given, which would need the updated weights at once.
        """
        if closure is not None:
            raise UnsupportedError("step(closure) needs all updates at once; use DistributedOptimizer")
        self._opt_called = True  # schedulers read this
        self._barrier.updates.step()

    # Keeps PyTorch from wrapping it: `Deferred.step` handles hooks, and schedulers are handled above.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Waits for all gradients in flight, and does the updates that are due.

        Right after `step()` a single worker may call it. From the next training forward pass until `step()`, all
        workers must call it. The gradients are averages then and may be changed, and `step()` updates all
        parameters at once.
        """
        self._barrier.updates.synchronize()

    def remove(self) -> None:
        """Does the updates that are due, unless an operation failed before, and makes this a plain optimizer again.

        Raises:
            FailedPreconditionError: between `backward()` and `step()`, because gradients are in flight.
        """
        self._barrier.updates.close()
        self._detach()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients. Those of updates that are due are cleared after the update.

        Raises:
            FailedPreconditionError: gradients are in flight, and `step()` was not called.
        """
        if self._barrier.updates.clear_gradients(set_to_none):
            super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The state after all updates that are due, with that of error feedback; see `DistributedOptimizer`."""
        self._barrier.updates.settle()
        return self._barrier.updates.feedback.add_to(super().state_dict())

    def follow_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Makes error feedback follow the scale of the loss; see `DistributedDataParallel.follow_scaler`."""
        self._barrier.updates.feedback.follow_scaler(scaler)

    def clip_locally(self, norm_max: float) -> None:
        """Clips gradients on this worker before error feedback; see `DistributedDataParallel.clip_locally`."""
        self._barrier.updates.feedback.clip(norm_max)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """A copy is a plain optimizer, with the state after all updates that are due."""
        self._barrier.updates.settle()
        return super().__reduce_ex__(protocol)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state in place of that after all updates that are due."""
        self._barrier.updates.settle()
        super().load_state_dict(self._barrier.updates.feedback.take_from(state_dict))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not possible any more: the parameters are fixed on all workers."""
        raise refused_group(self, "CrossBarrier")

    def __enter__(self: Kind) -> Kind:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.remove()
        else:  # nothing is waited for: the other workers may not come either
            self._detach()

    def _detach(self) -> None:
        barrier = self._barrier
        barrier.remove()
        barrier.updates.abandon()
        del self._barrier
        self.__class__ = barrier.kind  # type: ignore[assignment]
        if barrier.own_step is not None:
            self.step = barrier.own_step  # type: ignore[method-assign]


class _Barrier:
    """The hooks on a model, which make its modules wait for their parameters."""

    def __init__(
        self,
        model: nn.Module,
        updates: Deferred,
        listed: list[tuple[str, nn.Parameter]],
        opaque: tuple[type[nn.Module], ...],
        kind: type[torch.optim.Optimizer],
        own_step: Any,
    ) -> None:
        self.updates, self.kind, self.own_step = updates, kind, own_step
        self._model = model
        positions = {id(parameter): position for position, (_, parameter) in enumerate(listed)}
        self._hooks: list[Any] = list(updates.hooks)
        for name, module in model.named_modules():
            within = module.parameters(recurse=isinstance(module, opaque))
            needed = tuple(positions[id(p)] for p in within if id(p) in positions)
            if needed or module is model:
                # Before other hooks, which may compute the module's weights from its parameters.
                hook = Hook(self._before_forward(name or type(model).__name__, needed))
                self._hooks.append(module.register_forward_pre_hook(hook, prepend=True))
            settle = Hook(lambda *_: updates.settle())
            self._hooks.append(module.register_state_dict_pre_hook(settle))
            self._hooks.append(module.register_load_state_dict_pre_hook(settle))
        forget_compiled()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _before_forward(self, name: str, needed: tuple[int, ...]) -> Callable[..., None]:
        updates = self.updates

        def wait(*_: object) -> None:
            # A pass without gradients may use weights without these hooks, and no backward pass would detect that. The
            # flag of the whole model decides, because parts of it may always be in eval() mode.
            if self._model.training and torch.is_grad_enabled():
                updates.begin()
                updates.need(needed, name)
            else:
                updates.settle()

        return wait


def _refuse_homeless(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises unless every parameter belongs to a module of `model`: otherwise nobody would wait for it."""
    at_home = {id(parameter) for parameter in model.parameters()}
    homeless = [place for place, parameter in places(optimizer) if parameter.requires_grad and id(parameter) not in at_home]
    if homeless:
        raise InvalidArgumentError(
            f"the optimizer has parameters (group.position) that are not the model's: {', '.join(homeless)}; give a "
            "module that holds all parameters of the optimizer, such as nn.ModuleList([model, loss])"
        )
