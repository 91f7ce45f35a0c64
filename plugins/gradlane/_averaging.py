"""How gradients are averaged: what tapes and optimizers of several frameworks have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gradlane._model_choice import codec_of_model, codecs_of_model
from gradlane._compression import Compressor
from gradlane._reduction import ReduceOp, Reduction, reduction_of
from gradlane.errors import InvalidArgumentError


@dataclass(frozen=True)
class Averaging:
    """The options of a wrapper."""

    reduction: Reduction
    compression: Compressor | None
    """Its codec is in the reduction already."""
    sparse_as_dense: bool

    def check(self, tensors: Iterable[tuple[str, str, Iterable[int]]]) -> None:
        """Looks whether the compression acts on any of these gradients: their names, element types and shapes.

        Raises:
            InvalidArgumentError: it acts on none.
        """
        if self.compression is not None and self.compression.must_act:
            rows = tuple((name, dtype, tuple(shape)) for name, dtype, shape in tensors)
            _check_active(self.compression, self.reduction.codec, rows)


def averaging_of(op: ReduceOp, compression: Compressor | None, sparse_as_dense: bool) -> Averaging:
    """What the options of a wrapper ask for.

    Raises:
        InvalidArgumentError: gradients have no such reduction, or `compression` is none.
    """
    reduction = reduction_of(op).encoded(codec_of_model(compression))
    if not reduction.is_linear:
        raise InvalidArgumentError(f"gradients have no {op.name}; use Average or Sum")
    return Averaging(reduction, compression, sparse_as_dense)


@lru_cache(maxsize=64)
def _check_active(compression: Compressor, codec: str, rows: tuple[tuple[str, str, tuple[int, ...]], ...]) -> None:
    """`codec` is that of the compression in the present job."""
    del codec
    codecs_of_model(compression, rows)


def label(position: int, variable: object) -> str:
    """A variable in messages. Paths differ between workers that build several models in different orders."""
    path = getattr(variable, "path", None) or getattr(variable, "name", None)
    return f"variable {position}" + (f" ({path})" if path else "")
