"""An optimizer whose rule runs on the servers, and which waits for other workers as much as its mode says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from gradlane._accumulation import Merge
from gradlane._host_training import HostOptimizer, HostTraining, accumulating
from gradlane._server_training import Average, ServerTraining
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.jax.ops import array_of
from gradlane.modes import Mode
from gradlane.rules import Rule


class ServerOptimizer(HostOptimizer):
    """Trains parameters that live on the servers. Experimental.

        optimizer = gl.ServerOptimizer(params, rule=gl.rules.AdamW(lr=1e-3), mode=gl.modes.SSP(4))
        params = optimizer.params
        for batch in batches:
            gradients = jax.jit(jax.grad(loss))(params, batch)
            params = optimizer.step(gradients)

    `step()` sends the gradients to the servers, which apply the rule to them, and returns the parameters that this makes, with
    the steps of other workers in them. When gradients are applied, and for whom a worker waits, is said by `gradlane.modes`.
    `outcome` has what became of the last gradients. Arrays are copied to host memory and back in each step.

    With `accumulate=n`, the gradients of n calls of `step()` are sent together, in the n-th one, and the others return the
    parameters as they are; `flush()` sends those of the last calls, if they were fewer. What is sent is their mean, in which
    each counts by the `samples` of its call. In a mode with rounds the means of all workers count alike.

    All workers make it, and begin with the parameters of worker 0. The job needs a server, unless this worker is alone.
    """

    def __init__(
        self,
        params: Any,
        rule: Rule,
        *,
        mode: Mode | None = None,
        accumulate: int = 1,
        merge: Merge = "mean",
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Gives the parameters of worker 0 to the servers and to all workers.

        Args:
            params: a pytree of arrays of floats, the same on all workers but for the values.
            rule: one of `gradlane.rules`, equal on all workers.
            mode: one of `gradlane.modes`, equal on all workers; None for `Async()`.
            accumulate: how many micro-batches are sent together. Workers may have different numbers.
            merge: what is sent of them: "mean", or "sum" for the sum of their gradients.
            name: a prefix of the parameters' names; needed only if workers make optimizers in different orders.
            timeout: seconds for each use of the servers; None takes the job's step timeout.
        Raises:
            InvalidArgumentError: an array is not of floats or has no elements, the tree has none, `rule` is no rule, or another
                argument is not what it should be.
            MismatchError: another worker's tree has another array, or it has another rule or mode.
            StallError: another worker did not make it in time.
            FailedPreconditionError: the job has no server.
            UnsupportedError: inside of a function that JAX traces.
        """
        with_paths, self._structure = jax.tree_util.tree_flatten_with_path(params)
        self._paths = [jax.tree_util.keystr(path) for path, _ in with_paths]
        arrays = self._arrays(params, "params")
        self._shardings = [array.sharding for array in arrays]
        accumulation = accumulating(accumulate, merge, [array.dtype for array in arrays])
        training = ServerTraining(rule, mode, name, timeout, accumulation)
        labels = [f"params{path}" for path in self._paths]
        self._training = HostTraining(training, "array", arrays, names=self._paths, labels=labels)
        self.params = self._tree(self._training.values())
        """The parameters that this worker has taken over last."""

    def step(self, gradients: Any, *, samples: float = 1.0) -> Any:
        """Sends the gradients, waits as the mode says, and returns the parameters.

        Where it has failed because others did not come in time, a call sends nothing again and goes on waiting.

        Args:
            gradients: a tree with the paths, element types and shapes of the parameters.
            samples: what this micro-batch counts in the mean, with `accumulate`.
        Raises:
            InvalidArgumentError: it is another tree, and the first difference is named; or `samples` is no number above zero.
            FailedPreconditionError: another thread makes a step.
            TimeoutError: others are too far behind; they are named.
            UnsupportedError: inside of a function that JAX traces.
        """
        self.params = self._tree(self._training.step(self._arrays(gradients, "gradients"), samples))
        return self.params

    def flush(self) -> Any:
        """Sends the micro-batches that `accumulate` has kept, if they are fewer than it says, and returns the parameters."""
        self.params = self._tree(self._training.flush())
        return self.params

    def pull(self) -> Any:
        """Returns the present parameters, with the steps of all workers that were made."""
        self.params = self._tree(self._training.pull())
        return self.params

    def averages(self, kind: Average = "ema") -> Any:
        """An average of the parameters that the rule keeps, for an evaluation.

        Raises:
            InvalidArgumentError: the rule does not keep this average.
        """
        return self._tree(self._training.averages(kind))

    def _arrays(self, tree: Any, what: str) -> list[jax.Array]:
        """The arrays of a tree that has the paths of the parameters."""
        with_paths, _ = jax.tree_util.tree_flatten_with_path(tree)
        paths = [jax.tree_util.keystr(path) for path, _ in with_paths]
        if paths != self._paths:
            raise _other_tree(paths, self._paths)
        arrays = [array_of(f"{what}{path}", leaf) for path, (_, leaf) in zip(paths, with_paths, strict=True)]
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            raise UnsupportedError(
                "a ServerOptimizer was used inside of a function that JAX traces; let the function return the gradients, "
                "and call step() with them outside of it"
            )
        return arrays

    def _tree(self, arrays: Sequence[Any]) -> Any:
        placed = [jax.device_put(*pair) for pair in zip(arrays, self._shardings, strict=True)]
        return jax.tree_util.tree_unflatten(self._structure, placed)


def _other_tree(paths: Sequence[str], expected: Sequence[str]) -> InvalidArgumentError:
    """The error about gradients that are not those of the parameters."""
    missing, unknown = sorted({*expected} - {*paths}), sorted({*paths} - {*expected})
    if missing:
        difference = f"there is no gradient of params{missing[0]}"
    else:
        difference = f"gradients{unknown[0]} is of no parameter" if unknown else "the gradients are in another order"
    return InvalidArgumentError(f"{difference}; give the tree that jax.grad returns for the parameters")
