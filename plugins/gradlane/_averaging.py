"""How gradients are averaged: what tapes and optimizers of several frameworks have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gradlane import _session
from gradlane._choice import together
from gradlane._compression import Compressor
from gradlane._model_choice import Choice, chooser_of, codec_of_model, codecs_of_model
from gradlane._reduction import ReduceOp, Reduction, reduction_of
from gradlane.errors import InvalidArgumentError

Gradient = tuple[str, str, tuple[int, ...] | None]
"""What a choice is made by: name, element type and shape; None for the shape of a sparse gradient, or if it is not known."""


@dataclass(frozen=True)
class Averaging:
    """The options of a wrapper."""

    reduction: Reduction
    """Of all gradients. Its codec is that of `compression`, unless that is a function."""
    compression: Choice
    sparse_as_dense: bool

    def reduction_of(self, gradients: Iterable[Gradient]) -> Reduction:
        """That of a list of gradients, with the codec of each.

        Raises:
            InvalidArgumentError: the compression acts on none of them, or is a function that gives no compressor.
        """
        must_act = isinstance(self.compression, Compressor) and self.compression.must_act
        if not must_act and chooser_of(self.compression) is None:
            return self.reduction
        return _chosen(self.reduction, self.compression, tuple(gradients), _session.generation())


def averaging_of(op: ReduceOp, compression: Choice, sparse_as_dense: bool, timeout: float | None = None) -> Averaging:
    """What the options of a wrapper ask for.

    Raises:
        InvalidArgumentError: gradients have no such reduction, or `compression` is none.
    """
    codec = codec_of_model(compression) if chooser_of(compression) is None else "none"
    reduction = reduction_of(op, timeout=timeout).encoded(codec)
    if not reduction.is_linear:
        raise InvalidArgumentError(f"gradients have no {op.name}; use Average or Sum")
    return Averaging(reduction, compression, sparse_as_dense)


@lru_cache(maxsize=64)
def _chosen(reduction: Reduction, compression: Choice, gradients: tuple[Gradient, ...], generation: int) -> Reduction:
    """`generation` is that of the session, whose settings say a part of it."""
    del generation
    known = {at: (name, dtype, shape) for at, (name, dtype, shape) in enumerate(gradients) if shape is not None}
    codecs = dict(zip(known, codecs_of_model(compression, list(known.values())), strict=True))
    if chooser_of(compression) is None:
        return reduction
    return reduction.encoded(together([codecs.get(at, "none") for at in range(len(gradients))]))


def path_of(position: int, variable: object) -> str:
    """The name of a variable, for a function that chooses: its path, or its position if it has none."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or position)


def label(position: int, variable: object) -> str:
    """A variable in messages. Paths differ between workers that build several models in different orders."""
    path = path_of(position, variable)
    return f"variable {position}" + ("" if path == str(position) else f" ({path})")
