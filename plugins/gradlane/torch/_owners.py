"""Who averages the gradient of a parameter: one wrapper or optimizer at a time, because two would average averages.

Whoever averages gradients lives as long as its user refers to it: parameters and their hooks do not keep it alive.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from gradlane import _session
from gradlane.errors import InvalidArgumentError

T = TypeVar("T")

_owners: Any = WeakTensorKeyDictionary()
"""By parameter: a weak reference to the object that averages its gradient, and the generation of its session."""


def own(owner: object, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
    """Makes `owner` the one object that averages the gradients of these parameters.

    Raises:
        InvalidArgumentError: another one does so already.
    """
    if _owned(named) is not None:
        gc.collect()  # its last reference may be gone, and only a circle may keep it
    if (name := _owned(named)) is not None:
        raise InvalidArgumentError(
            f"the gradient of parameter {name} is averaged already; wrap a model once, either in "
            "DistributedDataParallel or by an optimizer of gradlane, or delete the first wrapper"
        )
    for _, parameter in named:
        _owners[parameter] = (weakref.ref(owner), _session.generation())


def watch(owner: T, parameters: Sequence[torch.nn.Parameter], ready: Callable[[T, int], None]) -> None:
    """Calls `ready(owner, position)` when a parameter has got its gradient, as long as `owner` lives."""
    reference = weakref.ref(owner)

    def hook(position: int) -> Callable[[torch.Tensor], None]:
        def gradient_is_ready(_: torch.Tensor) -> None:
            living = reference()
            if living is not None:
                ready(living, position)

        return gradient_is_ready

    hooks = [parameter.register_post_accumulate_grad_hook(hook(i)) for i, parameter in enumerate(parameters)]
    weakref.finalize(owner, _remove, hooks).atexit = False


def _owned(named: Sequence[tuple[str, torch.nn.Parameter]]) -> str | None:
    """The name of the first of these parameters that has an owner in the present session."""
    for name, parameter in named:
        owner, generation = _owners.get(parameter, (lambda: None, None))
        if owner() is not None and generation == _session.generation():
            return name
    return None


def _remove(hooks: Iterable[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
