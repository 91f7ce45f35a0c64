"""A Keras optimizer that steps on gradients averaged over all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import keras

from gradlane import _agreement, _names
from gradlane._averaging import Averaging, averaging_of
from gradlane._model_choice import Choice
from gradlane._reduction import Average, ReduceOp
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from gradlane.keras._backends import average_of_backend
from gradlane.keras.embedding import rows_of

Kind = TypeVar("Kind", bound=keras.optimizers.Optimizer)


def DistributedOptimizer(
    optimizer: Kind,
    *,
    op: ReduceOp = Average,
    compression: Choice = None,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    name: str | None = None,
) -> Kind:
    """Makes `optimizer` average its gradients over all workers; returns the same object, of a subclass of its class.

    Saved models do not refer to Gradlane and load where it is not installed; `gradlane.keras.load_model` makes the
    loaded optimizer distributed again.

    Under the policy `mixed_float16`, which needs a scaled loss, it returns a `LossScaleOptimizer` around `optimizer`.
    All workers then see an overflow of any of them, and skip the same steps.

    It also sends the gradients of each `gradlane.keras.Embedding`, with those of one step in one push for each table.

    Nothing is broadcast: use `BroadcastGlobalVariablesCallback`, or `gradlane.tensorflow.broadcast_variables`.

    Args:
        optimizer: any optimizer of Keras 3.
        op: `Average` or `Sum`.
        compression: how gradients travel: one of `Compression`, or a function that gives one for a variable's path
            and shape. None takes the setting `compression`. One of `Compression` leaves out vectors, scalars and small
            gradients unless it is `fp16`, `bf16` or has `compress_all=True`; if it would act on none, that is an error. A
            function is not asked about sparse gradients, and those whose shape is not known. Equal on all workers.
        sparse_as_dense: whether sparse gradients (of embeddings) are made dense instead of gathered.
        backward_passes_per_step: how many batches accumulate before their mean is averaged and applied: Keras'
            `gradient_accumulation_steps`, which may be set at the optimizer as well. Only the result is sent.
        name: a prefix of the tensors' names; needed only if workers make optimizers in different orders.
    Raises:
        InvalidArgumentError: `optimizer` is no optimizer of Keras 3, or is distributed already.
        UnsupportedError: gradients accumulate under a scaled loss; in a step: a scaled loss and rows of a table.
        FailedPreconditionError: gradients should accumulate, and the optimizer is built already.
        NotInitializedError: before `init()`.
    """
    _agreement.check_in_step()
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
        raise InvalidArgumentError(
            f"{kind} is no optimizer of Keras 3; give one of keras.optimizers, or use "
            "gradlane.tensorflow.DistributedGradientTape"
        )
    if is_distributed(optimizer):
        raise InvalidArgumentError("the optimizer is distributed already; wrap it once")
    _accumulate(optimizer, backward_passes_per_step)
    how, wrapped = averaging_of(op, compression, sparse_as_dense), optimizer
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and _is_mixed_float16():
        wrapped = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    scaled = isinstance(wrapped, keras.optimizers.LossScaleOptimizer)
    if scaled and wrapped.inner_optimizer.gradient_accumulation_steps:
        raise UnsupportedError(
            "gradients cannot accumulate under mixed_float16, because each worker would skip other batches; use "
            "mixed_bfloat16, or backward_passes_per_step=1"
        )
    own: type = type(wrapped)
    methods = {"__module__": own.__module__, "__qualname__": own.__qualname__, "_gradlane_how": how}
    # Changes the class of the object, because a new object made of its configuration would lose its state, and
    # schedules of the learning rate that are no classes of Keras.
    derived = type(own.__name__, (_Scaled if scaled else _Plain, own), methods)
    _publish(derived, own)
    object.__setattr__(wrapped, "__class__", derived)
    object.__setattr__(wrapped, "_gradlane_namespace", _names.namespace("keras.optimizer", name))
    return wrapped


def is_distributed(optimizer: object) -> bool:
    """Whether the optimizer averages its gradients."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return isinstance(optimizer, _Distributed) or isinstance(inner, _Distributed)


class _Distributed:
    """The methods of a distributed optimizer before those of its own class."""

    _gradlane_how: Averaging
    _gradlane_namespace: str | None = None

    def _averaged(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        variables = list(self._trainable_variables if variables is None else variables)  # type: ignore[attr-defined]
        if self._gradlane_namespace is None:  # Keras made this object from the configuration of another
            object.__setattr__(self, "_gradlane_namespace", _names.namespace("keras.optimizer.copy", None))
        assert self._gradlane_namespace is not None
        gradients = list(gradients)
        weights = [i for i, variable in enumerate(variables) if rows_of(variable) is None]
        anchors = [i for i, gradient in enumerate(gradients) if gradient is not None and rows_of(variables[i]) is not None]
        own = [gradients[i] for i in weights], [variables[i] for i in weights]
        averages = average_of_backend()(*own, self._gradlane_namespace, self._gradlane_how) if weights else []
        # Averages wait for all workers, so none of these changes rows before the others have read them in this step.
        sent = self._sent([rows_of(variables[i]) for i in anchors], [gradients[i] for i in anchors], averages) if anchors else []
        for i, gradient in zip(weights + anchors, averages + sent, strict=True):
            gradients[i] = gradient
        return gradients

    def _sent(self, rows: Sequence[Any], gradients: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        """Sends the gradients of rows of tables, and returns those of their anchors."""
        if isinstance(self, keras.optimizers.LossScaleOptimizer):
            raise UnsupportedError(
                f"table {rows[0].table.name}: its gradients are those of a scaled loss; use the policy mixed_bfloat16 or float32"
            )
        from gradlane.tensorflow._table_rows import send

        return send(rows, gradients, 1.0 / (self.gradient_accumulation_steps or 1), after)  # type: ignore[attr-defined]


class _Plain(_Distributed):
    """An optimizer without a scaled loss."""

    _gradlane_pending: tuple[list[Any], list[Any] | None] | None = None
    """Where gradients accumulate: what `apply` got, so that `_clip_gradients` knows which variables have none."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Averages the gradients and updates the variables; see `keras.optimizers.Optimizer.apply`."""
        grads = list(grads)
        trainable_variables = None if trainable_variables is None else list(trainable_variables)
        if not self.gradient_accumulation_steps:  # type: ignore[attr-defined]
            grads = self._averaged(grads, trainable_variables)
            super().apply(grads, trainable_variables)  # type: ignore[misc]
            return
        object.__setattr__(self, "_gradlane_pending", (grads, trainable_variables))
        try:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
        finally:
            object.__setattr__(self, "_gradlane_pending", None)

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """Where Keras, having accumulated gradients, begins an update with their mean."""
        if self._gradlane_pending is not None:
            local, variables = self._gradlane_pending
            means = iter(grads)
            whole = [None if gradient is None else next(means) for gradient in local]
            grads = [gradient for gradient in self._averaged(whole, variables) if gradient is not None]
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def __setattr__(self, name: str, value: Any) -> None:
        # Where Keras wraps an optimizer in a LossScaleOptimizer, and nowhere else, it takes a constant scale from it.
        if name == "loss_scale_factor" and value is None and name in self.__dict__:
            raise InvalidArgumentError(
                "a LossScaleOptimizer around a distributed optimizer looks for overflows before gradients are "
                "averaged, so workers would skip different steps. Call "
                "keras.mixed_precision.set_global_policy('mixed_float16') before DistributedOptimizer, or give "
                "DistributedOptimizer a LossScaleOptimizer"
            )
        super().__setattr__(name, value)


class _Scaled(_Distributed):
    """A `LossScaleOptimizer`: averages before it looks for overflows, so that all workers find the same."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Averages the gradients and updates the variables; see `keras.optimizers.Optimizer.apply`."""
        trainable_variables = None if trainable_variables is None else list(trainable_variables)
        super().apply(self._averaged(grads, trainable_variables), trainable_variables)  # type: ignore[misc]

    def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        """The same for JAX; see `keras.optimizers.Optimizer.stateless_apply`."""
        averages = self._averaged(grads, None)
        return super().stateless_apply(optimizer_variables, averages, trainable_variables)  # type: ignore[misc]


def _publish(derived: type, own: type) -> None:
    """Makes saved models name the public class of Keras, as they do without Gradlane, and not the module it is in."""
    try:
        from keras.src.api_export import REGISTERED_OBJS_TO_NAMES as names  # no public function does it
    except ImportError:
        return
    if own in names:
        names[derived] = names[own]


def _accumulate(optimizer: Any, passes: int) -> None:
    if passes < 1:
        raise InvalidArgumentError(f"backward_passes_per_step={passes}; give at least 1")
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if passes == 1 or inner.gradient_accumulation_steps == passes:
        return
    if inner.gradient_accumulation_steps:
        raise InvalidArgumentError(
            f"backward_passes_per_step={passes} contradicts gradient_accumulation_steps="
            f"{inner.gradient_accumulation_steps} of the optimizer; give one of the two"
        )
    if inner.built:
        raise FailedPreconditionError(
            "the optimizer is built already, without room for accumulated gradients; wrap it before it is used"
        )
    inner.gradient_accumulation_steps = passes


def _is_mixed_float16() -> bool:
    name: str = keras.mixed_precision.dtype_policy().name
    return name == "mixed_float16"
