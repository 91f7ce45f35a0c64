"""What trainings have in common whose weights live on the servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch

from gradlane._handle import Handle
from gradlane._objects import gather_by_rank
from gradlane.errors import Error, InvalidArgumentError, MismatchError

T = TypeVar("T")


def trained(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, torch.nn.Parameter]:
    """Those that require a gradient, by name.

    Raises:
        InvalidArgumentError: one has no name, two have the same, or none is left.
    """
    named: dict[str, torch.nn.Parameter] = {}
    for entry in named_parameters:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)):
            raise InvalidArgumentError("give model.named_parameters(): each parameter with its name")
        label, parameter = entry
        if label in named:
            raise InvalidArgumentError(f"two parameters are called {label}; give each its own name")
        if parameter.requires_grad:
            named[label] = parameter
    if not named:
        raise InvalidArgumentError("no parameter requires a gradient; there is nothing to train")
    return named


def compare(name: str, field: str, value: str) -> None:
    """Raises on all workers if one has another value of what `field` names, such as another rule."""
    values = gather_by_rank(value, name, plain=True)
    first = next(iter(values))
    for rank, other in values.items():
        if other != values[first]:
            raise MismatchError(
                f"worker {first} has the {field} {values[first]}, worker {rank} has {other}; give all workers the same",
                tensor=name,
                field=field,
                first=(first, values[first]),
                second=(rank, other),
            )


def ended(handles: Iterable[Handle[T]]) -> list[T]:
    """What they yield, once all have ended; the first error of all of them."""
    results, error = [], None
    for handle in handles:
        try:
            results.append(handle.wait())
        except Error as failed:
            error = error or failed
    if error is not None:
        raise error
    return results
