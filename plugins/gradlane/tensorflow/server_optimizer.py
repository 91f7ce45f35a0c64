"""An optimizer whose rule runs on the servers, and which waits for other workers as much as its mode says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from gradlane._accumulation import Merge
from gradlane._averaging import label
from gradlane._host_training import HostOptimizer, HostTraining, accumulating
from gradlane._server_training import Average, ServerTraining, StepOutcome
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.modes import Mode
from gradlane.rules import Rule
from gradlane.tensorflow._autograph import unconverted
from gradlane.tensorflow.variables import variable_of


class ServerOptimizer(HostOptimizer):
    """Trains variables that live on the servers, in eager loops, of Keras models too.

        variables = model.trainable_variables
        optimizer = gl.ServerOptimizer(variables, rule=gl.rules.AdamW(lr=1e-3), mode=gl.modes.SSP(4))
        for batch in batches:
            gradients = gradients_of(batch)    # may be a tf.function
            optimizer.apply_gradients(zip(gradients, variables))

    `apply_gradients()` sends the gradients to the servers, which apply the rule to them, and assigns the values that this makes,
    with the steps of other workers in them. Variables without a gradient take over the present values, too. When gradients are
    applied, and for whom a worker waits, is said by `gradlane.modes`. Values are copied to host memory and back in each step.

    With `accumulate=n`, the gradients of n calls are sent together, in the n-th one; the others return None. `flush()` sends those
    of the last calls, if they were fewer. What is sent is their mean, in which each counts by the `samples` of its call. In a
    mode with rounds the means of all workers count alike.

    All workers make it, and begin with the variables of worker 0. The job needs a server, unless this worker is alone. It is
    no optimizer of Keras, so `model.fit` does not take it.
    """

    @unconverted
    def __init__(
        self,
        variables: Iterable[Any],
        rule: Rule,
        *,
        mode: Mode | None = None,
        accumulate: int = 1,
        merge: Merge = "mean",
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Gives the variables of worker 0 to the servers and to all workers.

        Args:
            variables: `tf.Variable` or `keras.Variable` of floats, such as `model.trainable_variables`; the same list on all
                workers.
            rule: one of `gradlane.rules`, equal on all workers.
            mode: one of `gradlane.modes`, equal on all workers; None for `Async()`.
            accumulate: how many micro-batches are sent together. Workers may have different numbers.
            merge: what is sent of them: "mean", or "sum" for the sum of their gradients.
            name: a prefix of the parameters' names; needed only if workers make optimizers in different orders.
            timeout: seconds for each use of the servers; None takes the job's step timeout.
        Raises:
            InvalidArgumentError: a variable is not of floats, not built or comes twice, there is none, `rule` is no rule,
                or another argument is not what it should be.
            MismatchError: another worker's variable has another dtype or shape, or it has another rule or mode.
            StallError: another worker did not make it in time.
            FailedPreconditionError: the job has no server.
            UnsupportedError: inside of a `tf.function`.
        """
        _check_eager()
        given = list(variables)
        self._variables = [variable_of(variable) for variable in given]
        self._labels = [label(*pair) for pair in enumerate(given)]
        self._positions = {id(variable): position for position, variable in enumerate(self._variables)}
        if len(self._positions) < len(given):
            raise InvalidArgumentError("a variable comes twice in variables; give each of them once")
        values = [variable.numpy() for variable in self._variables]
        names = [label(position, None) for position in range(len(given))]
        accumulation = accumulating(accumulate, merge, [value.dtype for value in values])
        training = ServerTraining(rule, mode, name, timeout, accumulation)
        self._training = HostTraining(training, "variable", values, names=names, labels=self._labels)
        self._assign(self._training.values())

    @unconverted
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *, samples: float = 1.0) -> StepOutcome | None:
        """Sends the gradients, waits as the mode says, and assigns the values to all variables.

        Where it has failed because others did not come in time, a call sends nothing again and goes on waiting.

        Args:
            grads_and_vars: pairs of a gradient and its variable. A gradient is a tensor, `tf.IndexedSlices`, which become dense,
                or None if there is none.
            samples: what this micro-batch counts in the mean, with `accumulate`.
        Returns:
            What became of the gradients; None if none were due.
        Raises:
            InvalidArgumentError: a variable is not of this optimizer or comes twice, a gradient has another dtype or shape, there
                is none at all, something is no pair, or `samples` is no number above zero.
            FailedPreconditionError: another thread makes a step.
            TimeoutError: others are too far behind; they are named.
            UnsupportedError: inside of a `tf.function`.
        """
        _check_eager()
        gradients: list[Any] = [None] * len(self._variables)
        for given, pair in enumerate(grads_and_vars):
            if not (isinstance(pair, tuple | list) and len(pair) == 2):
                raise InvalidArgumentError("grads_and_vars has no pairs; give zip(gradients, variables)")
            gradient, variable = pair
            position = self._positions.get(id(variable_of(variable)))
            if position is None:
                raise InvalidArgumentError(
                    f"{label(given, variable)} of grads_and_vars is not of this optimizer; give those that it was made with"
                )
            if gradients[position] is not None:
                raise InvalidArgumentError(f"{self._labels[position]} has two gradients; give one, such as their sum")
            gradients[position] = None if gradient is None else tf.convert_to_tensor(gradient).numpy()
        if all(gradient is None for gradient in gradients):
            raise InvalidArgumentError("no variable has a gradient; compute the loss from the variables inside of the tape")
        before = self.outcome
        self._assign(self._training.step(gradients, samples))
        return None if self.outcome is before else self.outcome

    @unconverted
    def flush(self) -> None:
        """Sends the micro-batches that `accumulate` has kept, if they are fewer than it says, and assigns the values."""
        _check_eager()
        self._assign(self._training.flush())

    @unconverted
    def pull(self) -> None:
        """Takes over the present values, with the steps of all workers that were made."""
        _check_eager()
        self._assign(self._training.pull())

    def averages(self, kind: Average = "ema") -> list[Any]:
        """An average that the rule keeps of each variable, for an evaluation; in the order of the variables.

        Raises:
            InvalidArgumentError: the rule does not keep this average.
        """
        return [tf.constant(average) for average in self._training.averages(kind)]

    def _assign(self, values: Iterable[Any]) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)


def _check_eager() -> None:
    if not tf.executing_eagerly():
        raise UnsupportedError(
            "a ServerOptimizer was used inside of a tf.function; let the function return the gradients, and call "
            "apply_gradients() with them outside of it"
        )
