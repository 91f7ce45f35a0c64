"""`byteps.tensorflow`: the names, positional arguments and defaults of BytePS, over `gradlane.tensorflow`.

Devices for dense and sparse tensors are accepted and have no effect: TensorFlow places the operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import tensorflow as tf

import gradlane.tensorflow as gl
from gradlane import _session
from gradlane._compression import Compression, Compressor
from gradlane._operations import check_root
from gradlane._reduction import Average, ReduceOp, Sum, broadcast_of
from gradlane.compat.byteps.common import (
    get_pushpull_speed,
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
from gradlane.compat.byteps.tensorflow._unnamed import under_a_name
from gradlane.errors import FailedPreconditionError, UnsupportedError
from gradlane.tensorflow._reduce import reduce_all
from gradlane.tensorflow.variables import as_bits, broadcast_assignments, of_bits

__all__ = [
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Sum",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]

_ASYNCHRONOUS = "gradlane.tensorflow.ServerOptimizer"


def push_pull(
    tensor: Any,
    scope: str = "",
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    enable_async: bool = False,
) -> Any:
    """Averages a tensor over all workers; see `gradlane.tensorflow.push_pull`.

    Args:
        tensor: `tf.Tensor`, `tf.Variable` or `tf.IndexedSlices`.
        scope: put before its name, which follows from its dtype and shape, and in a function from the order of the calls.
        average, op, compression: as in BytePS; without the first two the average.
        enable_async: is not there.
    """
    del device_dense, device_sparse
    if enable_async:
        raise UnsupportedError("enable_async=True: every sum has the contributions of all workers; leave it out")
    return under_a_name(
        tensor,
        f"{scope}push_pull",
        lambda chosen: gl.push_pull(tensor, chosen, average=average, op=op, compression=compression),
    )


def broadcast(tensor: Any, root_rank: int, scope: str = "", name: str | None = None, is_variable: bool = True) -> Any:
    """Gives every worker the value of `tensor` on `root_rank`: assigns it to a variable, or returns a new tensor.

    Args:
        tensor: `tf.Variable`, or a tensor.
        root_rank: the rank whose value all workers get.
        scope: put before the name.
        name: equal on all workers; None makes one as `push_pull` does.
        is_variable: has no effect; a variable is recognised.
    """
    del is_variable
    if name:
        return _broadcast(tensor, root_rank, f"{scope}{name}")
    return under_a_name(tensor, f"{scope}broadcast", lambda chosen: _broadcast(tensor, root_rank, chosen))


def _broadcast(tensor: Any, root_rank: int, name: str) -> Any:
    if _session.passes_over(name, is_broadcast=True):
        return tensor
    if isinstance(tensor, tf.Variable):
        return broadcast_assignments([tensor], root_rank, name)[0]
    reduction = broadcast_of(check_root(root_rank))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def received(value: Any) -> Any:
        def gradient(_: Any) -> NoReturn:
            raise UnsupportedError("a broadcast has no gradient; use tf.stop_gradient")

        [bits] = reduce_all([as_bits(value)], [name], reduction)
        return of_bits(bits, value.dtype), gradient

    return received(tensor)


def broadcast_variables(variables: Iterable[Any], root_rank: int, scope: str = "") -> None:
    """Gives every worker the values of `variables` on `root_rank`; see `gradlane.tensorflow.broadcast_variables`."""
    gl.broadcast_variables(variables, root_rank, name=f"{scope}variables")


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that gives every worker the global variables of `root_rank`, for sessions of TensorFlow 1.

    Raises:
        FailedPreconditionError: TensorFlow runs eagerly, and knows no global variables.
    """
    if tf.executing_eagerly():
        raise FailedPreconditionError(
            "there are no global variables in eager execution; use broadcast_variables(model.variables, root_rank), or "
            "BroadcastGlobalVariablesCallback with Keras"
        )
    return tf.group(*broadcast_assignments(tf.compat.v1.global_variables(), root_rank, "global variables"))


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives every worker the global variables of `root_rank` when a session of TensorFlow 1 begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """`device` has no effect."""
        super().__init__()
        del device
        self._root = root_rank
        self._broadcast: Any = None

    def begin(self) -> None:
        """Adds the operation to the graph."""
        self._broadcast = broadcast_global_variables(self._root)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the operation."""
        del coord
        session.run(self._broadcast)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
) -> Any:
    """Makes an optimizer of Keras or of TensorFlow 1 distributed; see `gradlane.tensorflow.DistributedOptimizer`.

    `use_locking` has no effect, and `name` is that of the tensors.

    Raises:
        UnsupportedError: `BYTEPS_ENABLE_ASYNC` asks for asynchronous training.
    """
    refuse_asynchronous("DistributedOptimizer of byteps.tensorflow", _ASYNCHRONOUS)
    del use_locking, device_dense, device_sparse
    return gl.DistributedOptimizer(
        optimizer,
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        name=name,
    )


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
) -> Any:
    """Makes a gradient tape distributed; see `gradlane.tensorflow.DistributedGradientTape`.

    Raises:
        UnsupportedError: `BYTEPS_ENABLE_ASYNC` asks for asynchronous training.
    """
    refuse_asynchronous("DistributedGradientTape", _ASYNCHRONOUS)
    del device_dense, device_sparse
    return gl.DistributedGradientTape(gradtape, op=op, compression=compression, sparse_as_dense=sparse_as_dense)
