"""Agrees, in each step, that all workers have gradients of the same kind for the same variables. Knows no framework.

The gradients of TensorFlow, Keras and JAX come as lists whose structure may differ between workers: one worker's branch
of a model leaves out a variable, or has sparse gradients. Then some workers would wait for a sum to which others never
contribute. So each step carries one small tensor besides, a number for each variable that stands for the kind of its
gradient. It tells every worker of a difference, and all of them raise the same error.

After a difference the workers are out of step, because some submitted what others did not. No later sum of the job
can be trusted, and every later step raises the error again.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import NoReturn

from gradlane import _buffers, _session
from gradlane._handle import Handle
from gradlane._objects import gather_by_rank
from gradlane._operations import submit
from gradlane._reduction import Reduction
from gradlane.errors import Error, MismatchError, UnusedParametersError

_NAMES_SHOWN_MAX = 8

_failure: tuple[int, Error] | None = None
"""The generation of a session whose workers are out of step, and why."""


class Agreement:
    """What the gradients of a list of variables are on this worker."""

    reduction = Reduction("max", priority=1)
    """Of the marks of all workers."""

    def __init__(self, prefix: str, labels: Sequence[str], kinds: Sequence[str | None]) -> None:
        """Describes the gradients.

        Args:
            prefix: of all names, equal on all workers.
            labels: the names of the variables in messages.
            kinds: for each variable, its gradient in words such as `float32 [3, 4]`; None if it has no gradient.
        """
        self.name, self._labels, self._kinds = f"{prefix}/kinds of {len(kinds)}", list(labels), list(kinds)
        self._prefix = f"{prefix}/{zlib.crc32(repr(self._kinds).encode()):08x}"
        codes = [0 if kind is None else zlib.crc32(kind.encode()) >> 1 or 1 for kind in kinds]
        self.marks = array("i", [*codes, *(-code for code in codes)])
        """What this worker contributes to a maximum: it comes back unchanged if all contribute the same."""

    def names(self, positions: Iterable[int]) -> list[str]:
        """The names for the gradients of the variables at these positions.

        They stand for all kinds. Small gradients share messages with others of their list, and so must not have the
        name of one of another list.
        """
        return [f"{self._prefix}/{position}" for position in positions]

    def begin(self) -> Handle[array[int]]:
        """Starts the exchange; the handle yields what `check` takes."""
        copy = self.marks[:]
        place = _buffers.locate(copy, writable=True)
        return submit(self.name, place, place, self.reduction, result=copy)

    def check(self, agreed: array[int]) -> None:
        """Raises on every worker if any worker's gradients differ."""
        if agreed != self.marks:
            self.explain()

    def explain(self) -> NoReturn:
        """Gathers what each worker has, and raises the error about it. All workers must call it.

        Raises:
            UnusedParametersError: some workers have no gradient for a variable.
            MismatchError: the gradients of a variable differ in dtype or shape, or only some are sparse.
        """
        kinds: dict[int, list[str | None]] = gather_by_rank(self._kinds, f"{self.name}/kinds", plain=True)
        error = self._missing(kinds) or self._different(kinds)
        record_failure(error)
        raise error

    def _missing(self, kinds: dict[int, list[str | None]]) -> Error | None:
        ranks = {
            label: [rank for rank, of in kinds.items() if of[position] is None]
            for position, label in enumerate(self._labels)
        }
        without = {label: missing for label, missing in ranks.items() if 0 < len(missing) < len(kinds)}
        if not without:
            return None
        shown = [f"{name} on rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))}" for name, r in without.items()]
        more = f" and {len(shown) - _NAMES_SHOWN_MAX} more" if len(shown) > _NAMES_SHOWN_MAX else ""
        return UnusedParametersError(
            f"no gradient for {'; '.join(shown[:_NAMES_SHOWN_MAX])}{more}, though other workers have one. Make the "
            "loss depend on the same variables on all workers, for example by adding 0 times what a branch leaves out",
            parameters=without,
        )

    def _different(self, kinds: dict[int, list[str | None]]) -> Error:
        lowest = next(iter(kinds))
        for position, label in enumerate(self._labels):
            first = kinds[lowest][position]
            for rank, of in kinds.items():
                if of[position] != first:
                    return MismatchError(
                        f"gradient of {label}: worker {lowest} has {first}, worker {rank} has {of[position]}; build the same "
                        "model on all workers",
                        tensor=label,
                        field="shape",
                        first=(lowest, first),
                        second=(rank, of[position]),
                    )
        return MismatchError(f"the workers disagreed about {self.name} in one step and agree now; build the same model")


def record_failure(error: Error) -> None:
    """Records that the workers of the present session are out of step."""
    global _failure
    _failure = (_session.generation(), error)


def check_in_step() -> None:
    """Raises the error after which the workers of the present session are out of step, if there was one.

    Raises:
        NotInitializedError: this process takes part in no job.
    """
    _session.session()
    if _failure is not None and _failure[0] == _session.generation():
        raise _failure[1]
