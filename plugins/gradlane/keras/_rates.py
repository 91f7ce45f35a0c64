"""The learning rate of a Keras optimizer, and the momentum that goes with it."""

from __future__ import annotations

from typing import Any

import keras

from gradlane.errors import InvalidArgumentError


class LearningRate:
    """Reads and changes the learning rate of an optimizer while it trains."""

    def __init__(self, optimizer: Any, corrects_momentum: bool) -> None:
        """Checks the optimizer.

        Args:
            corrects_momentum: whether `set` scales momenta that contain the learning rate.
        Raises:
            InvalidArgumentError: a schedule of Keras sets its rate.
        """
        self._optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(self._optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise InvalidArgumentError(
                "a schedule of Keras sets the learning rate of the optimizer; give the optimizer a number, or leave "
                "this callback out"
            )
        self._corrects_momentum = corrects_momentum

    @property
    def value(self) -> float:
        """The present rate."""
        return float(keras.ops.convert_to_numpy(self._optimizer.learning_rate))

    def set(self, rate: float) -> None:
        """Changes the rate from the next batch on."""
        before = self.value
        self._optimizer.learning_rate = rate
        if self._corrects_momentum and before > 0 and rate != before:
            for momentum in self._momenta():
                momentum.assign(momentum.value * (rate / before))

    def _momenta(self) -> list[Any]:
        """What SGD and RMSprop have added up of earlier steps, each times its rate. Adam and alike store gradients."""
        if isinstance(self._optimizer, keras.optimizers.SGD):
            momenta = getattr(self._optimizer, "momentums", [])
        elif isinstance(self._optimizer, keras.optimizers.RMSprop) and self._optimizer.momentum > 0:
            momenta = getattr(self._optimizer, "_momentums", [])
        else:
            momenta = []
        return [momentum for momentum in momenta if momentum is not None]
