"""Training without the barrier between two steps: a layer waits for its own gradients, not for those of all layers.

    optimizer = gl.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, labels in data:
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()    # gradients start on their way, the first layers' overtaking
        optimizer.step()                          # returns at once

The idea is that of ByteScheduler (SOSP 2019) and of BytePS's class of the same name. Where those reimplement SGD, Adam and
RMSprop, the optimizer's own `step` runs here, for the parameters of one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from gradlane._reduction import Average, ReduceOp
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from gradlane.torch import _names
from gradlane.torch._deferred import Deferred
from gradlane.torch.compression import Compression, Compressor
from gradlane.torch.ddp import DistributedDataParallel
from gradlane.torch.optimizer import Averaging, check_passes, name_parameters

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def CrossBarrier(
    model: nn.Module,
    optimizer: Kind,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int | None = None,
    op: ReduceOp = Average,
    *,
    sparse_as_dense: bool = False,
    opaque: Sequence[type[nn.Module]] = (nn.MultiheadAttention,),
    name: str | None = None,
) -> Kind:
    """Averages the gradients of `optimizer` over all workers while training goes on; returns the same object.

    `step()` notes its learning rate and all other settings and returns at once. A parameter is updated when the forward
    pass comes to its module, which waits until the average has arrived; meanwhile others are updated whose averages are
    there. The weights are bit for bit those of `DistributedOptimizer`.

    What looks at weights or gradients otherwise than a forward pass of `model` has to wait for them:

    - `state_dict()` and `load_state_dict()` of model and optimizer wait by themselves, and so do forward passes without
      gradients or in `eval()` mode. On one worker alone is fine: the others need not take part.
    - `optimizer.synchronize()` before anything else that reads weights, such as a moving average of them.
    - `optimizer.synchronize()` between `backward()` and `step()` on all workers, where gradients are clipped or
      unscaled. It costs the overlap, as clipping needs all gradients. Touching a gradient on its way raises
      FailedPreconditionError.

    Every worker calls `step()` equally often. A parameter that only some workers used gets the average with zeros from
    the others; one that nobody used is left out. Hooks of the optimizer's steps make steps wait for all gradients, as
    hooks may look at them. Nothing is broadcast: call `broadcast_parameters` and `broadcast_optimizer_state` first.

    If an operation fails, its error is raised by whatever waits next, with the name of the parameter, and by everything
    after that: the weights are those of two different steps then. `remove()`, or leaving the optimizer as a context,
    gives the plain optimizer back.

    Args:
        model: its modules wait; holds all parameters of the optimizer, on CUDA devices or the CPU.
        optimizer: any torch optimizer that treats each parameter by itself, as all but LBFGS do.
        named_parameters: names parameters in errors; None takes those of `model`.
        compression: the element type on the wire.
        backward_passes_per_step: how many backward passes accumulate before they are averaged.
        num_steps: accepted for BytePS scripts; has no effect.
        op: `Average` or `Sum`.
        sparse_as_dense: whether sparse gradients are made dense; they are refused otherwise.
        opaque: modules that use parameters of modules inside of them without calling these; they wait for all of theirs.
        name: goes before the names of the tensors; needed only where workers make optimizers in different orders.
    Raises:
        InvalidArgumentError: the optimizer has parameters that `model` has not, or `model` averages by itself.
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
    named = list(model.named_parameters() if named_parameters is None else named_parameters)
    listed = name_parameters(optimizer, named)
    updates = Deferred(
        _names.namespace("cross_barrier", name),
        optimizer,
        listed,
        compression=compression,
        op=op,
        passes=check_passes(backward_passes_per_step),
        sparse_as_dense=sparse_as_dense,
    )
    kind = type(optimizer)
    barrier = _Barrier(model, updates, listed, tuple(opaque), kind, optimizer.__dict__.pop("step", None))
    # As for DistributedOptimizer: schedulers refer to this object. A scheduler made before has put a `step` on it that
    # calls the class's; ours does what that one did beside.
    optimizer.__class__ = type(kind.__name__, (_CrossBarrier, kind), {"__module__": kind.__module__})
    optimizer._barrier = barrier  # type: ignore[attr-defined]
    return optimizer


class _CrossBarrier(Averaging):
    """What the optimizer offers beside, or instead of, what its own class does."""

    _barrier: _Barrier

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Has the parameters updated with the present settings, each when it is needed or its average is there.

        Raises:
            UnsupportedError: a closure is given: it would need the updated weights at once.
        """
        if closure is not None:
            raise UnsupportedError("step(closure) needs all updates at once; use DistributedOptimizer")
        self._opt_called = True  # what schedulers look for
        self._barrier.updates.step()

    # PyTorch would put wrappers around it: for hooks, which `Deferred.step` minds, and for schedulers.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Waits for whatever is on its way, and does the updates that are due.

        After `step()` it concerns this worker alone. From the next training forward pass on, until `step()`, all workers
        have to call it; the gradients are averages then and may be changed, and `step()` updates all parameters at once.
        """
        self._barrier.updates.synchronize()

    def remove(self) -> None:
        """Does the updates that are due, unless an operation failed before, and makes this a plain optimizer again.

        Raises:
            FailedPreconditionError: between `backward()` and `step()`, where gradients are on their way.
        """
        self._barrier.updates.close()
        self._detach()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients; those of updates that are due are cleared after the update.

        Raises:
            FailedPreconditionError: gradients are on their way and no `step()` was called.
        """
        if self._barrier.updates.clear_gradients(set_to_none):
            super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The state after all updates that are due."""
        self._barrier.updates.settle()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state in place of that after all updates that are due."""
        self._barrier.updates.settle()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not possible any more: the parameters are fixed on all workers."""
        raise FailedPreconditionError(
            "the optimizer is distributed, and its parameters are fixed; add the group before CrossBarrier"
        )

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
        del self._barrier
        self.__class__ = barrier.kind  # type: ignore[assignment]
        if barrier.own_step is not None:
            self.step = barrier.own_step  # type: ignore[method-assign]


class _Barrier:
    """The hooks on a model by which its modules wait for their parameters."""

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
        self._hooks: list[Any] = []
        for name, module in model.named_modules():
            within = module.parameters(recurse=isinstance(module, opaque))
            needed = tuple(positions[id(p)] for p in within if id(p) in positions)
            if needed or module is model:
                # Before other hooks, which may make the weights that the module uses out of its parameters.
                hook = self._before_forward(name or type(model).__name__, needed)
                self._hooks.append(module.register_forward_pre_hook(hook, prepend=True))
            self._hooks.append(module.register_state_dict_pre_hook(lambda *_: updates.settle()))
            self._hooks.append(module.register_load_state_dict_pre_hook(lambda *_: updates.settle()))
        for position, (_, parameter) in enumerate(listed):
            self._hooks.append(parameter.register_hook(self._before_gradient(position)))
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._after_gradient(position)))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _before_forward(self, name: str, needed: tuple[int, ...]) -> Callable[..., None]:
        updates = self.updates

        def wait(*_: object) -> None:
            # A pass without gradients may use weights past the hooks, and nobody would notice in a backward pass. The
            # whole model is asked: parts of it may be in eval() mode for good.
            if self._model.training and torch.is_grad_enabled():
                updates.begin()
                updates.need(needed, name)
            else:
                updates.settle()

        return wait

    def _before_gradient(self, position: int) -> Callable[[torch.Tensor], None]:
        def check(_: torch.Tensor) -> None:
            self.updates.refuse_early(position)

        return check

    def _after_gradient(self, position: int) -> Callable[[torch.Tensor], None]:
        def gradient_is_ready(_: torch.Tensor) -> None:
            self.updates.gradient(position)

        return gradient_is_ready


def _refuse_homeless(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises unless some module of `model` has each of the parameters: else nobody would wait for it."""
    at_home = {id(parameter) for parameter in model.parameters()}
    places = [(f"{g}.{i}", p) for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])]
    homeless = [place for place, parameter in places if parameter.requires_grad and id(parameter) not in at_home]
    if homeless:
        raise InvalidArgumentError(
            f"the optimizer has parameters (group.position) that are not the model's: {', '.join(homeless)}; give a "
            "module that holds all that it steps, such as nn.ModuleList([model, loss])"
        )
