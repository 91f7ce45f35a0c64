"""Loads saved models so that they can be trained on."""

from __future__ import annotations

from os import PathLike
from typing import Any

import keras

from gradlane._compression import Compressor
from gradlane._reduction import Average, ReduceOp
from gradlane.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: str | PathLike[str],
    custom_objects: dict[str, Any] | None = None,
    *,
    safe_mode: bool = True,
    op: ReduceOp = Average,
    compression: Compressor | None = None,
    sparse_as_dense: bool = False,
) -> Any:
    """Loads a model, and makes its optimizer distributed with its state. All workers read the same file.

    Args:
        filepath: what `model.save` has written.
        custom_objects, safe_mode: as for `keras.saving.load_model`.
        op, compression, sparse_as_dense: as for `DistributedOptimizer`.
    """
    model = keras.saving.load_model(filepath, custom_objects=custom_objects, safe_mode=safe_mode)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, op=op, compression=compression, sparse_as_dense=sparse_as_dense)
    return model
