"""Finds gradients that PyTorch's own wrapper would not average, for the hook beneath it.

The wrapper copies gradients into buckets. It takes a gradient that another hook has cleared for zeros, and knows nothing
of parameters that came later.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from gradlane.torch import _tensors
from gradlane.torch._in_flight import refuse_cleared
from gradlane.torch._owners import is_owned, unknown, watch_frozen
from gradlane.torch._parameter_watch import Named, ParameterWatch, pass_now

_REMEDY = "wrap the model again after changing it"


class LostGradients:
    """Watches the parameters of a model during backward passes.

    It has no hook on the module: such a hook would keep the model from `torch.jit.script`, and from compilation as one
    graph.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Puts hooks on the parameters of the model, which work as long as this object lives."""
        self._model = weakref.ref(model)
        named = list(model.named_parameters())
        self._kinds: dict[int, _tensors.Kind] = {}
        """By position: what the parameter was in its first backward pass. A script may move the model to a device before."""
        required = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self._positions = {id(parameter): position for position, (_, parameter) in enumerate(required)}
        """Of the parameters that were to get gradients from the start."""
        self._parameters = [(name, weakref.ref(parameter)) for name, parameter in required]
        self._outside: set[int] | None = None
        """Parameters that were to get gradients from the start, but are in no bucket: the user averages them otherwise."""
        self._fresh: set[int] = set()
        """The positions of the parameters that have got gradients in this backward pass."""
        self._seen: set[int] = set()
        """Those in the buckets of this backward pass so far."""
        self._pass: int | None = None
        """The backward pass of `_fresh`, by its number among those of autograd."""
        self._watch = ParameterWatch(self, required, LostGradients._after, LostGradients._before_gradient)
        watch_frozen(self, [(n, p) for n, p in named if not p.requires_grad], _REMEDY)

    def check(self, bucket: Sequence[torch.Tensor], *, is_last: bool) -> None:
        """Raises if a gradient is lost. Called when all gradients of a bucket have been made.

        Raises:
            InvalidArgumentError: a parameter was added or unfrozen, and is in no bucket; it is named.
            FailedPreconditionError: another hook has cleared a gradient, or changed a parameter; it is named.
        """
        fresh = [position for position in map(self._position, bucket) if position in self._fresh]
        for position in fresh:
            self._fresh.discard(position)
            self._refuse_cleared(position)
        # Later changes are in order: PyTorch's hooks may step as soon as a bucket has its average.
        self._watch.release(fresh)
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
            self._outside = {id(parameter) for _, parameter in others if id(parameter) in self._positions}
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

    def _before_gradient(self, position: int) -> None:
        number = pass_now()
        if number != self._pass:  # an earlier pass may have ended with an error
            self._fresh.clear()
            self._pass = number
        name, reference = self._parameters[position]
        parameter = reference()
        if parameter is not None:
            kind = self._kinds.get(position)
            if kind is None:
                kind = self._kinds[position] = _tensors.kind_of(parameter)
            _tensors.check_kind(parameter, kind, name)

    def _after(self, position: int) -> None:
        self._refuse_cleared(position)
        self._fresh.add(position)

    def _refuse_cleared(self, position: int) -> None:
        name, reference = self._parameters[position]
        parameter = reference()
        if parameter is not None:
            refuse_cleared(parameter, name)

    def _position(self, parameter: torch.Tensor) -> int | None:
        return self._positions.get(id(parameter))
