"""Finds gradients that PyTorch's own wrapper would not average, for the hook beneath it.

The wrapper copies gradients into buckets. It takes a gradient that another hook has cleared for zeros, and knows nothing
of parameters that came later.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradlane.torch import _tensors
from gradlane.torch._in_flight import refuse_cleared
from gradlane.torch._owners import Before, Named, is_owned, unknown, watch_frozen

_REMEDY = "wrap the model again after changing it"


class Beneath:
    """Watches the parameters of a model during backward passes.

    It has no hook on the module: such a hook would keep the model from `torch.jit.script`, and from compilation as one
    graph.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Puts hooks on the parameters of the model, which work as long as this object lives."""
        self._model = weakref.ref(model)
        named = list(model.named_parameters())
        self._kinds: dict[int, _tensors.Kind] = {}
        """By parameter: what it was in its first backward pass. A script may move the model to a device before."""
        self._before = {id(parameter): Before(parameter) for _, parameter in named if parameter.requires_grad}
        self._required = {id(parameter) for _, parameter in named if parameter.requires_grad}
        self._outside: set[int] | None = None
        """Parameters that were to get gradients from the start, but are in no bucket: the user averages them otherwise."""
        self._fresh: dict[int, str] = {}
        """The parameters that have got gradients in this backward pass, and their names."""
        self._pass: int | None = None
        """The backward pass of `_fresh`, by its number among those of autograd."""
        self._seen: set[int] = set()
        """Those in the buckets of this backward pass so far."""
        self._hooks: list[Any] = watch_frozen(self, [(n, p) for n, p in named if not p.requires_grad], _REMEDY)
        for name, parameter in named:
            if parameter.requires_grad:
                self._hooks.append(parameter.register_hook(self._weakly(Beneath._before_gradient, weakref.ref(parameter), name)))
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._weakly(Beneath._after, name)))
        weakref.finalize(self, _remove, self._hooks).atexit = False

    def check(self, bucket: Sequence[torch.Tensor], *, is_last: bool) -> None:
        """Raises if a gradient is lost. Called when all gradients of a bucket have been made.

        Raises:
            InvalidArgumentError: a parameter was added or unfrozen, and is in no bucket; it is named.
            FailedPreconditionError: another hook has cleared a gradient, or changed a parameter; it is named.
        """
        for parameter in bucket:
            name = self._fresh.pop(id(parameter), None)
            if name is not None:
                refuse_cleared(parameter, name)
                self._before[id(parameter)].refuse_change(parameter, name)
        self._seen.update(map(id, bucket))
        if is_last:
            seen, self._seen = self._seen, set()
            self._refuse_others(seen)

    def _refuse_others(self, seen: set[int]) -> None:
        others = [
            (name, parameter)
            for name, parameter in self._averaged_parameters()
            if parameter.requires_grad and id(parameter) not in seen and not is_owned(parameter)
        ]
        if self._outside is None:
            self._outside = {id(parameter) for _, parameter in others if id(parameter) in self._required}
        for name, parameter in others:
            if id(parameter) not in self._outside:
                raise unknown(name, _REMEDY)

    def _averaged_parameters(self) -> list[Named]:
        """The model's parameters without those that PyTorch was told to leave out."""
        model = self._model()
        if model is None:
            return []
        ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
        return [(name, parameter) for name, parameter in model.named_parameters() if name not in ignored]

    def _before_gradient(self, _: torch.Tensor, parameter: weakref.ref[torch.Tensor], name: str) -> None:
        living = parameter()
        if living is None:
            return
        number = torch._C._current_graph_task_id()
        if number != self._pass:  # an earlier pass may have ended with an error
            self._fresh.clear()
            self._pass = number
        self._before[id(living)].note(living)
        kind = self._kinds.setdefault(id(living), _tensors.kind_of(living))
        _tensors.check_kind(living, kind, name)

    def _after(self, parameter: torch.Tensor, name: str) -> None:
        refuse_cleared(parameter, name)
        self._fresh[id(parameter)] = name

    def _weakly(self, method: Callable[..., None], *arguments: object) -> Callable[..., None]:
        """Calls a method as long as this object lives."""
        reference = weakref.ref(self)

        def call(first: Any, *others: object) -> None:
            living = reference()
            if living is not None:
                method(living, first, *(arguments or others))

        return call


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()
