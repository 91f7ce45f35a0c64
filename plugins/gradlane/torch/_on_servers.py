"""What trainings have in common whose weights live on the servers."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gradlane.errors import InvalidArgumentError


def trained(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, torch.nn.Parameter]:
    """Those that require a gradient, by name.

    Raises:
        InvalidArgumentError: one has no name, two have the same, one has two, or none is left.
    """
    named: dict[str, torch.nn.Parameter] = {}
    labels: dict[int, str] = {}
    for entry in named_parameters:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)):
            raise InvalidArgumentError("give model.named_parameters(): each parameter with its name")
        label, parameter = entry
        if label in named:
            raise InvalidArgumentError(f"two parameters are called {label}; give each its own name")
        if (first := labels.setdefault(id(parameter), label)) != label:
            raise InvalidArgumentError(f"{first} and {label} are one parameter; give it one name")
        if parameter.requires_grad:
            named[label] = parameter
    if not named:
        raise InvalidArgumentError("no parameter requires a gradient; there is nothing to train")
    return named
