"""Training of weights that live on servers, for frameworks whose arrays are copied to host memory for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from gradlane import _buffers
from gradlane._accumulation import Accumulation, Merge
from gradlane._alike import check_alike, telling
from gradlane._operations import submit
from gradlane._reduction import broadcast_of
from gradlane._server_training import Average, ServerTraining, StepOutcome, ended
from gradlane.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]

_FLOATS = ("float16", "bfloat16", "float32", "float64")


class HostTraining:
    """A list of weights on the servers. Arrays that calls return belong to the caller."""

    def __init__(
        self, training: ServerTraining[Array], kind: str, values: Sequence[Any], *, names: Sequence[str], labels: Sequence[str]
    ) -> None:
        """Gives the values of worker 0 to the servers and to all workers.

        Args:
            training: one that was just made.
            kind: what the weights are called, such as `variable`.
            values: this worker's values of the weights; what NumPy makes an array of.
            names: of the weights, equal on all workers.
            labels: the names of the weights in messages of this worker.
        Raises:
            InvalidArgumentError: a weight is not of floats or has no elements, or there is none.
            MismatchError: another worker has other weights, or another rule or mode.
        """
        self.training, self._labels, listed = training, list(labels), f"{training.prefix}/list"
        with telling(kind, listed):
            self._arrays = [_weight(kind, *pair) for pair in zip(labels, values, strict=True)]
            if not self._arrays:
                raise InvalidArgumentError(f"there is no {kind}, so there is nothing to train")
        rows = [(row, array.dtype.name, array.shape) for row, array in zip(names, self._arrays, strict=True)]
        check_alike(kind, rows, listed)
        training.compare()
        places = [_buffers.locate(array, writable=True) for array in self._arrays]
        ended(
            [
                submit(f"{training.prefix}/first {position}", place, place, broadcast_of(0), result=None)
                for position, place in enumerate(places)
            ]
        )
        training.begin(_by_position(self._arrays))

    def values(self) -> list[Array]:
        """The weights that this worker has taken over last."""
        return [array.copy() for array in self._arrays]

    def step(self, gradients: Sequence[Any], samples: float) -> list[Array]:
        """Takes a step, or accumulates the gradients of a micro-batch for one.

        Args:
            gradients: for each weight, what NumPy makes an array of; None if it has no gradient.
            samples: what this micro-batch counts in the mean.
        Returns:
            The weights that this makes.
        Raises:
            InvalidArgumentError: a gradient has not the element type and shape of its weight, or `samples` is no number above zero.
            FailedPreconditionError: another thread makes a step.
        """
        sent = {
            str(position): self._gradient(position, gradient)
            for position, gradient in enumerate(gradients)
            if gradient is not None
        }
        with self.training.alone("a step"):
            self.training.accumulate(sent, samples)
            self.training.step(sent, _by_position(self._arrays))
        return self.values()

    def flush(self) -> list[Array]:
        """A step with the micro-batches that were accumulated, if there are any."""
        with self.training.alone("flush()"):
            self.training.flush(_by_position(self._arrays))
        return self.values()

    def pull(self) -> list[Array]:
        """The present weights, with the steps of all workers that were made."""
        self.training.pull(_by_position(self._arrays))
        return self.values()

    def averages(self, kind: Average) -> list[Array]:
        """An average of the weights that the rule keeps."""
        averages = [np.empty_like(array) for array in self._arrays]
        self.training.read_averages(kind, _by_position(averages))
        return averages

    def _gradient(self, position: int, gradient: Any) -> Array:
        array, weight = np.asarray(gradient, order="C"), self._arrays[position]
        if (array.dtype, array.shape) != (weight.dtype, weight.shape):
            raise InvalidArgumentError(
                f"the gradient of {self._labels[position]} is {_words(array)}, and its value {_words(weight)}; "
                "give a gradient of the same element type and shape"
            )
        return array


def accumulating(batches: int, merge: Merge, dtypes: Sequence[Any]) -> Accumulation[Array] | None:
    """What adds up micro-batches for a `ServerTraining`; None if each is sent alone.

    Args:
        batches: how many are sent together.
        merge: what is sent of them, "mean" or "sum".
        dtypes: the element types of the weights.
    Raises:
        InvalidArgumentError: `batches` is no number of at least 1, or `merge` has no meaning.
    """

    def widened(gradient: Array) -> Array:
        return gradient.astype(np.promote_types(gradient.dtype, np.float32))

    def narrowed(label: str, total: Array) -> Array:
        return np.asarray(total, dtypes[int(label)])

    accumulation = Accumulation(batches, merge, widened=widened, narrowed=narrowed)
    return accumulation if accumulation.due > 1 else None


class HostOptimizer:
    """What optimizers of such frameworks have in common."""

    _training: HostTraining

    def flush(self) -> Any:
        """Sends the micro-batches that were accumulated."""
        raise NotImplementedError

    @property
    def outcome(self) -> StepOutcome | None:
        """What the last step has come to; None before the first one."""
        return self._training.training.outcome

    def leave(self) -> None:
        """Tell that this worker does no more steps, so that others wait for it no more. A mode without a clock waits for nobody.

        Call it behind the last step, where workers may have different numbers of batches. It flushes what was accumulated.
        """
        self.flush()
        self._training.training.leave()

    def __getstate__(self) -> NoReturn:
        """Refused: a copy would train the same weights on the servers."""
        self._training.training.__getstate__()


def _weight(kind: str, label: str, value: Any) -> Array:
    array = np.array(value, order="C")
    if array.dtype.name not in _FLOATS:
        raise InvalidArgumentError(
            f"{label} is {array.dtype.name}, which no rule trains; leave it out, or make it one of {', '.join(_FLOATS)}"
        )
    if not array.size:
        raise InvalidArgumentError(f"{label} has the shape {list(array.shape)}, without elements; leave out such a {kind}")
    return array


def _words(array: Array) -> str:
    return f"{array.dtype.name} {list(array.shape)}"


def _by_position(arrays: Sequence[Array]) -> dict[str, Array]:
    return {str(position): array for position, array in enumerate(arrays)}
