"""Callbacks for `model.fit` on several workers. Give all workers the same ones, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from gradlane import _session, elastic
from gradlane._objects import gather_by_rank
from gradlane._operations import check_root
from gradlane.errors import InvalidArgumentError, MismatchError
from gradlane.keras._rates import LearningRate
from gradlane.keras._values import broadcast_variables

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "ElasticCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "ModelCheckpoint",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all workers the weights and the optimizer's state of one of them when training begins.

    A worker that comes to an elastic job that trains already gets them with the state of `ElasticCallback` instead.

    A model whose input shapes are unknown is built by its first batch, and all is broadcast after that batch.
    """

    def __init__(self, root_rank: int = 0) -> None:
        """`root_rank` is the rank whose values all workers get."""
        super().__init__()
        self._root = root_rank
        self._is_done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Builds the optimizer and broadcasts, if the model is built."""
        del logs
        self._is_done = False
        if _build_optimizer(self.model):
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts after the first batch if the model was not built before it."""
        del batch, logs
        if not self._is_done:
            self._broadcast()

    def _broadcast(self) -> None:
        optimizer = self.model.optimizer
        variables = [*self.model.variables, *(optimizer.variables if optimizer is not None else [])]
        broadcast_variables(_once(variables), check_root(self._root))
        self._is_done = True


class ElasticCallback(keras.callbacks.Callback):
    """Counts the steps of `fit` as `gradlane.elastic.steps` does: a worker that gets SIGTERM ends its training behind a step.

    The workers that are left hear of it, and of workers that were lost or have come, behind the same step. A worker that
    comes while the others train gets the variables of model and optimizer with `elastic.State(model=model)`, if the model is
    built when training begins. See `gradlane.elastic`, also for the errors.

    The epochs of a newcomer begin with its own first step. So end the training by `State.step`, and let the learning rate follow
    the steps of the optimizer, as a schedule of Keras does. Where workers come, leave out callbacks that wait for other workers at
    the end of an epoch, such as `MetricAverageCallback`.

    Each batch is a step, also where gradients accumulate (`backward_passes_per_step`). What a worker that leaves has accumulated
    since the last update is missing then, and a newcomer begins with what the worker that sends it the state has accumulated.
    """

    def __init__(self, state: elastic.State | None = None) -> None:
        """`state` is what belongs to the training, or None."""
        super().__init__()
        # With JAX, Keras keeps the values of the variables elsewhere during an epoch, and `model` brings them back.
        self._steps = elastic.Steps(state, refresh=lambda: self.model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins the first step. A newcomer gets the state here, so the optimizer is built before."""
        del logs
        _build_optimizer(self.model)
        self.model.stop_training = not self._steps.begin()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends a step, and begins the next one."""
        del batch, logs
        self._steps.end()
        if not self._steps.begin():
            self.model.stop_training = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the loop over the steps."""
        del logs
        self._steps.rest()


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all workers. Put it before callbacks that use metrics.

    Raises:
        MismatchError: workers have different metrics.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the values in `logs`."""
        del epoch
        if logs is None or _session.size() == 1:
            return
        mine = {name: float(value) for name, value in sorted(logs.items()) if np.ndim(value) == 0}
        everyones = gather_by_rank(mine, "keras metrics", plain=True)
        first = next(iter(everyones))
        for rank, theirs in everyones.items():
            if list(theirs) != list(everyones[first]):
                raise MismatchError(
                    f"metrics of an epoch: worker {first} has {list(everyones[first])}, worker {rank} has {list(theirs)}; "
                    "compile the models alike",
                    tensor="keras metrics",
                    field="name",
                    first=(first, str(list(everyones[first]))),
                    second=(rank, str(list(theirs))),
                )
        logs.update({name: float(np.mean([theirs[name] for theirs in everyones.values()])) for name in mine})


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies the learning rate by a factor that depends on the epoch."""

    def __init__(
        self,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        initial_lr: float | None = None,
    ) -> None:
        """Describes the schedule.

        Args:
            multiplier: the factor, or a function of the epoch that gives it.
            start_epoch: the first epoch in which it holds.
            end_epoch: the first epoch in which it no longer holds; None for ever.
            staircase: whether the factor changes at the beginning of epochs only. Otherwise it changes with each batch,
                and the function gets fractions of epochs.
            momentum_correction: whether the momentum of SGD and RMSprop, which contains the learning rate, is
                multiplied as well when the rate changes (Goyal et al. 2017, "Accurate, Large Minibatch SGD").
            steps_per_epoch: batches in an epoch; None takes what Keras knows.
            initial_lr: the rate that is multiplied; None takes that of the optimizer when training begins.
        """
        super().__init__()
        self._multiplier = multiplier if callable(multiplier) else _constant(float(multiplier))
        # A constant changes nothing within an epoch.
        self._staircase = staircase or not callable(multiplier)
        self._first, self._end = start_epoch, end_epoch
        self._steps = steps_per_epoch
        self._initial = initial_lr
        self._corrects = momentum_correction
        self._epoch = 0
        self._rate: LearningRate | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reads the learning rate.

        Raises:
            InvalidArgumentError: a schedule of Keras sets it, or the number of steps is unknown.
        """
        del logs
        self._rate = LearningRate(self.model.optimizer, self._corrects)
        if self._initial is None:
            self._initial = self._rate.value
        self._steps = self._steps or self.params.get("steps")
        if not self._staircase and not self._steps:
            raise InvalidArgumentError("the number of batches in an epoch is unknown; give steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the rate of an epoch."""
        del logs
        self._epoch = epoch
        if self._staircase:
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the rate of a batch."""
        del logs
        if not self._staircase:
            assert self._steps is not None
            self._set(self._epoch + batch / self._steps)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the rate to the metrics, as `lr`."""
        del epoch
        if logs is not None and self._rate is not None:
            logs["lr"] = self._rate.value

    def _set(self, epoch: float) -> None:
        if epoch < self._first or (self._end is not None and epoch >= self._end):
            return
        assert self._rate is not None and self._initial is not None
        self._rate.set(self._initial * self._multiplier(epoch))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate with each batch, from that of one worker to that of all of them.

    The optimizer has the rate of all workers, that of one worker times their number. Training begins with a rate
    divided by `size()`.
    """

    def __init__(
        self,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        initial_lr: float | None = None,
    ) -> None:
        """Describes the schedule.

        Args:
            warmup_epochs: how many epochs it takes.
            momentum_correction, steps_per_epoch, initial_lr: as for `LearningRateScheduleCallback`.
            verbose: whether rank 0 prints a line at the end.
        """
        self._verbose = verbose

        def multiplier(epoch: float) -> float:
            size = _session.first_size()
            # The last batch of an epoch has its number: at the end of the warm-up the factor is 1.
            epoch += 1.0 / (self._steps or 1)
            return 1.0 / size * (min(epoch, warmup_epochs) * (size - 1) / warmup_epochs + 1)

        super().__init__(multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch, initial_lr)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the rate to the metrics, as `lr`."""
        super().on_epoch_end(epoch, logs)
        if self._end is not None and epoch == self._end - 1 and self._verbose and _session.rank() == 0:
            assert self._rate is not None
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate.value:g}.")


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` that writes on rank 0 only, or on the lowest rank that is left.

    Put it after `MetricAverageCallback`. The other workers go on meanwhile, and wait for rank 0 in the next step, up to
    the setting `step_timeout`.
    """

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As Keras' own, on the lowest rank."""
        if _is_lowest():
            super().on_train_batch_end(batch, logs)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As Keras' own, on the lowest rank."""
        if _is_lowest():
            super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As Keras' own, on the lowest rank."""
        if _is_lowest():
            super().on_epoch_end(epoch, logs)


def _build_optimizer(model: Any) -> bool:
    """Builds the optimizer of a model that is built. Returns whether the model is."""
    if not all(layer.built for layer in model._flatten_layers()):
        return False
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return True


def _is_lowest() -> bool:
    """Whether no worker that is left has a lower rank."""
    return _session.rank() == _session.ranks()[0]


def _constant(factor: float) -> Callable[[float], float]:
    return lambda _: factor


def _once(variables: list[Any]) -> list[Any]:
    """Each variable once, in the order of the first occurrences."""
    return list({id(variable): variable for variable in variables}.values())
