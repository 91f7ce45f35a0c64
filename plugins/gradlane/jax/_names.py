"""Names for the leaves of a tree, from their paths. So they do not depend on the order in which leaves come."""

from __future__ import annotations

import hashlib
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.extend.core

from gradlane import _session
from gradlane._names import namespace
from gradlane._operations import check_name
from gradlane.errors import InvalidArgumentError

if hasattr(jax.extend.core, "take_current_trace"):
    _current_trace: Callable[[], AbstractContextManager[Any]] = jax.extend.core.take_current_trace
else:  # JAX 0.8

    def _current_trace() -> AbstractContextManager[Any]:
        return nullcontext(jax.core.trace_ctx.trace)


with jax.ensure_compile_time_eval(), _current_trace() as _outermost:
    _EVALUATION: type = type(_outermost)
    """The class of the trace that traces nothing."""

_BYTES_MAX = 240
"""The longest name, below the engine's limit of 256, so that `.backward` fits behind it."""

STRUCTURE = ": the paths of its tree (other lengths here mean other paths)"
"""Ends the name of the array that stands for the paths of a tree."""

_STRUCTURES = 1021
"""How many structures of trees are told apart, and the most bytes that stand for one."""


class FirstUse:
    """The prefix of the names of a call whose user gave none: a number, by the order in which such calls are first used.

    The order in which they are made would not do: it may differ between workers, and functions that JAX traces again
    make what they contain again.
    """

    def __init__(self, kind: str, name: str | None) -> None:
        """Remembers where this was made. With a `name` the prefix is that name."""
        self._kind, self._name = kind, name
        self._made_in = _present_trace()
        self._prefixes: dict[Hashable, str] = {}

    def of(self, tree: Any) -> str:
        """The prefix for this tree, the same each time. Trees with other paths, shapes or types have others.

        Raises:
            NotInitializedError: this process takes part in no job.
            InvalidArgumentError: this was made inside the function that is being traced.
        """
        _session.session()
        if self._name is not None:
            return self._name
        if self._is_made_again():
            raise InvalidArgumentError(
                "push_pull_gradients() was made inside the function that JAX traces, and would have another name after each "
                "trace; make it outside of the function, or give it name="
            )
        leaves, structure = jax.tree_util.tree_flatten(tree)
        key = structure, tuple((getattr(leaf, "shape", ()), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
        if key not in self._prefixes:
            self._prefixes[key] = namespace(self._kind, None)
        return self._prefixes[key]

    def _is_made_again(self) -> bool:
        """Whether the trace in which this was made still runs."""
        made_in = None if self._made_in is None else self._made_in()
        trace = None if made_in is None else _present_trace()
        while trace is not None and (running := trace()) is not None:
            if running is made_in:
                return True
            parent = getattr(running, "parent_trace", None)
            trace = None if parent is None or isinstance(parent, _EVALUATION) else weakref.ref(parent)
        return False


def is_evaluated() -> bool:
    """Whether nothing is traced now: arrays are computed at once."""
    return _present_trace() is None


def present_traces() -> Iterator[Any]:
    """The trace of the function that runs now, and those around it."""
    with _current_trace() as trace:
        pass
    while trace is not None and not isinstance(trace, _EVALUATION):
        yield trace
        trace = getattr(trace, "parent_trace", None)


def _present_trace() -> weakref.ref[Any] | None:
    """The trace of a function that runs now; None outside of all."""
    with _current_trace() as trace:
        return None if isinstance(trace, _EVALUATION) else weakref.ref(trace)


def names_of(name: str, paths: Sequence[Any]) -> tuple[str, ...]:
    """A name for each leaf: `name`, and the path to it as JAX writes it, such as `gradients['dense']['kernel']`.

    Raises:
        InvalidArgumentError: `name` cannot name arrays.
    """
    if "\n" in check_name(name):
        raise InvalidArgumentError(f"name={name!r} has several lines; give one that has none")
    return tuple(_shortened(name + jax.tree_util.keystr(path)) for path in paths)


def structure_of(name: str, names: Sequence[str]) -> tuple[str, int]:
    """A name, and a number of bytes that stands for the paths of a tree.

    An array of so many bytes is reduced beside the leaves. If the tree of another worker has other leaves, the arrays
    have different lengths, which is an error on every worker at once. Otherwise a worker would wait until the step
    timeout for a leaf that the others do not have.
    """
    length = 1 + zlib.crc32("\n".join(names).encode()) % _STRUCTURES
    return f"{_shortened(name, _BYTES_MAX - len(STRUCTURE))}{STRUCTURE}", length


def _shortened(name: str, bytes_max: int = _BYTES_MAX) -> str:
    name = name.replace("\n", " ").replace("\0", " ")
    encoded = name.encode()
    if len(encoded) <= bytes_max:
        return name
    return f"{encoded[:150].decode(errors='ignore')}~{hashlib.sha256(encoded).hexdigest()[:32]}"
