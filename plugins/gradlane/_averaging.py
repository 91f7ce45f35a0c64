"""How gradients are averaged: what tapes and optimizers of several frameworks have in common."""

from __future__ import annotations

from dataclasses import dataclass

from gradlane._compression import Compressor
from gradlane._reduction import ReduceOp, Reduction, reduction_of
from gradlane.errors import InvalidArgumentError


@dataclass(frozen=True)
class Averaging:
    """The options of a wrapper."""

    reduction: Reduction
    sparse_as_dense: bool


def averaging_of(op: ReduceOp, compression: Compressor, sparse_as_dense: bool) -> Averaging:
    """What the options of a wrapper ask for.

    Raises:
        InvalidArgumentError: gradients have no such reduction, or `compression` is none.
    """
    reduction = reduction_of(op, compression=compression)
    if not reduction.is_linear:
        raise InvalidArgumentError(f"gradients have no {op.name}; use Average or Sum")
    return Averaging(reduction, sparse_as_dense)


def label(position: int, variable: object) -> str:
    """A variable in messages. Paths differ between workers that build several models in different orders."""
    path = getattr(variable, "path", None) or getattr(variable, "name", None)
    return f"variable {position}" + (f" ({path})" if path else "")
