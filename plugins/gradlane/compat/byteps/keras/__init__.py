"""`byteps.keras`: the names, positional arguments and defaults of BytePS, over `gradlane.keras`."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any

import numpy as np

import gradlane
import gradlane.keras as gl
from gradlane import _buffers, _operations
from gradlane._compression import Compression, Compressor
from gradlane._operations import check_root
from gradlane._recent import RecentNames
from gradlane._reduction import broadcast_of
from gradlane.compat.byteps.common import (
    init,
    local_rank,
    local_size,
    rank,
    refuse_asynchronous,
    resume,
    shutdown,
    size,
    suspend,
)
from gradlane.compat.byteps.keras import callbacks
from gradlane.errors import FailedPreconditionError

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "init",
    "load_model",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]


_unnamed = RecentNames(4096)
"""The names of arrays that a script gives none; those for shapes that came long ago end."""


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
) -> Any:
    """Makes a Keras optimizer distributed; see `gradlane.keras.DistributedOptimizer`. `name` is that of the tensors.

    Raises:
        UnsupportedError: `BYTEPS_ENABLE_ASYNC` asks for asynchronous training.
    """
    refuse_asynchronous("DistributedOptimizer of byteps.keras", "gradlane.tensorflow.ServerOptimizer")
    del device_dense, device_sparse
    return gl.DistributedOptimizer(optimizer, compression=compression, sparse_as_dense=sparse_as_dense, name=name)


def broadcast_global_variables(root_rank: int) -> Any:
    """Is not there: Keras keeps no list of all variables.

    Raises:
        FailedPreconditionError: always; it says what to use.
    """
    raise FailedPreconditionError(
        f"Keras keeps no list of all variables; give model.fit BroadcastGlobalVariablesCallback({root_rank})"
    )


def push_pull(value: Any, name: str | None = None, average: bool = True) -> Any:
    """Averages a number or an array over all workers, and returns a new one.

    Args:
        value: a number, a NumPy array, or what can become one.
        name: equal on all workers; None makes one from dtype and shape.
        average: False for the sum.
    """
    array = np.array(value)
    if name:
        return gradlane.push_pull(array, name, average=average)
    key = f"push_pull.{array.dtype}.{array.shape}"
    return _unnamed.begin(key, lambda chosen: gradlane.push_pull_async(array, chosen, average=average)).wait()


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Gives every worker the number or array of `root_rank`; arguments are those of `push_pull`."""
    array = np.array(value)
    if name:
        return gradlane.broadcast(array, root_rank, name)
    place = _buffers.locate(array, writable=True)

    def submit(chosen: str) -> gradlane.Handle[Any]:
        return _operations.submit(chosen, place, place, broadcast_of(check_root(root_rank)), result=array)

    return _unnamed.begin(f"broadcast.{array.dtype}.{array.shape}", submit).wait()


def load_model(
    filepath: str | PathLike[str],
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Compressor = Compression.none,
) -> Any:
    """Loads a model and makes its optimizer distributed; see `gradlane.keras.load_model`.

    Args:
        filepath: what `model.save` has written.
        custom_optimizers: classes of optimizers that are not of Keras.
        custom_objects: other classes and functions of the model, by name.
        compression: the element type on the wire.
    """
    classes = {kind.__name__: kind for kind in custom_optimizers or ()}
    return gl.load_model(filepath, classes | (custom_objects or {}), compression=compression)
