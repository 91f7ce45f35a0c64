"""How gradients are averaged: what tapes and optimizers of several frameworks have in common."""

from __future__ import annotations

from dataclasses import dataclass

from gradlane._compression import Compression, Compressor, check_compression
from gradlane._reduction import Average, ReduceOp, Sum, resolve
from gradlane.errors import InvalidArgumentError


@dataclass(frozen=True)
class Averaging:
    """The options of a wrapper.

    Raises:
        InvalidArgumentError: gradients have no such reduction, or `compression` is none.
    """

    op: ReduceOp = Average
    compression: Compressor = Compression.none
    sparse_as_dense: bool = False

    def __post_init__(self) -> None:
        resolve(self.op, None, None)
        check_compression(self.compression)
        if self.op not in (Average, Sum):
            raise InvalidArgumentError(f"gradients have no {self.op.name}; use Average or Sum")


def label(position: int, variable: object) -> str:
    """A variable in messages. Paths differ between workers that build several models in different orders."""
    path = getattr(variable, "path", None) or getattr(variable, "name", None)
    return f"variable {position}" + (f" ({path})" if path else "")
