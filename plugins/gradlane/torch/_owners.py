"""Who averages the gradient of a parameter: one wrapper or optimizer at a time, because two would average averages.

Whoever averages gradients lives as long as its user refers to it: parameters and their hooks do not keep it alive.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from gradlane import _session
from gradlane.errors import FailedPreconditionError, InvalidArgumentError
from gradlane.torch._parameter_watch import Named, ours, remove_all

_owners: Any = WeakTensorKeyDictionary()
"""By parameter: a weak reference to the object that averages its gradient, and the enrolment of this process then."""


def own(owner: object, named: Sequence[Named]) -> None:
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
        _owners[parameter] = (weakref.ref(owner), _session.enrolment())


def is_owned(parameter: torch.Tensor) -> bool:
    """Whether an object of the present job averages the gradient of this parameter, also after the job has formed again."""
    owner, enrolment = _owners.get(parameter, (lambda: None, None))
    return owner() is not None and enrolment == _session.enrolment()


def watch_frozen(owner: object, named: Iterable[Named], remedy: str) -> list[RemovableHandle]:
    """Makes backward passes raise once these parameters get gradients, as long as `owner` lives.

    Args:
        named: parameters that require no gradient now.
        remedy: for the error, what to do.
    Returns:
        The hooks, to end this before.
    """
    reference = weakref.ref(owner)

    def hook(name: str) -> Callable[[torch.Tensor], None]:
        def refuse(parameter: torch.Tensor) -> None:
            if reference() is not None and not is_owned(parameter):
                raise unknown(name, remedy)

        return ours(refuse)

    hooks = []
    for name, parameter in named:
        if (parameter.is_floating_point() or parameter.is_complex()) and not parameter.is_inference():
            parameter.requires_grad_(True)  # PyTorch registers such a hook on no other parameter, but keeps it
            hooks.append(parameter.register_post_accumulate_grad_hook(hook(name)))
            parameter.requires_grad_(False)
    weakref.finalize(owner, remove_all, hooks).atexit = False
    return hooks


_watched_copies: Any = WeakTensorKeyDictionary()
"""The parameters that have a hook of `watch_copy`, each with a weak reference to the copy."""


def watch_copy(owner: object, named: Iterable[Named], remedy: str) -> None:
    """Makes backward passes raise that give these parameters gradients, as long as the copy `owner` lives.

    Args:
        named: parameters of a copy that averages nothing.
        remedy: for the error: of what it is a copy, and what to do.
    """
    fresh = [(n, p) for n, p in named if _watched_copies.get(p, lambda: None)() is not owner]
    reference = weakref.ref(owner)

    def hook(name: str) -> Callable[[torch.Tensor], None]:
        def refuse(parameter: torch.Tensor) -> None:
            if reference() is not None and not is_owned(parameter):
                raise copy_trains(name, remedy)

        return ours(refuse)

    hooks = []
    for name, parameter in fresh:
        hooks.append(parameter.register_post_accumulate_grad_hook(hook(name)))
        _watched_copies[parameter] = reference
    if hooks:
        weakref.finalize(owner, remove_all, hooks).atexit = False


def copy_trains(name: str, remedy: str) -> FailedPreconditionError:
    """The error about a copy that would train by itself."""
    return FailedPreconditionError(
        f"parameter {name} has a gradient of this worker alone, because a copy averages nothing: it is a copy of a {remedy}"
    )


def refuse_unknown(named: Iterable[Named], known: Container[int], remedy: str) -> None:
    """Raises if a parameter gets gradients that nobody averages.

    Args:
        named: the parameters that there are now.
        known: the ids of those that are averaged.
        remedy: for the error, what to do.
    Raises:
        InvalidArgumentError: there is one; it is named.
    """
    for name, parameter in named:
        if id(parameter) not in known and parameter.requires_grad and not is_owned(parameter):
            raise unknown(name, remedy)


def unknown(name: str, remedy: str) -> InvalidArgumentError:
    """The error about a parameter that nobody averages."""
    return InvalidArgumentError(
        f"parameter {name} was added, replaced or unfrozen after the workers agreed on what to average, and its gradient "
        f"would not be averaged; {remedy}"
    )


def _owned(named: Sequence[Named]) -> str | None:
    """The name of the first of these parameters that has an owner in the present job."""
    return next((name for name, parameter in named if is_owned(parameter)), None)
