"""The rows of a table that a training reads, and the gradients that it leaves for them, as arrays of NumPy.

For layers of frameworks. A forward pass reads rows, a backward pass leaves their gradients here, and the step of an optimizer sends
them: one push for each table, whatever number of layers and passes have left them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from gradlane.errors import FailedPreconditionError, InvalidArgumentError
from gradlane.tables import Table

Array = np.ndarray[Any, Any]

IDS_MAX = 1 << 20
"""The most ids that the engine takes in one use."""

PASSES_MAX = 64
"""Passes whose gradients may be left at a time, if others than the step of an optimizer add them up."""

_EXACT_BELOW = {4: 1 << 24, 8: 1 << 53}
"""Whole numbers from here on may have been rounded, by the bytes of a float."""


class TableRows:
    """A table as one layer trains it. Several threads may use it."""

    def __init__(self, table: Table, ids_below: int | None, hint: str) -> None:
        """Of `table`; ids are from 0 and below `ids_below`, or any if that is None. `hint` says how gradients are sent."""
        self.table = table
        self._below, self._hint = ids_below, hint
        self._lock = threading.Lock()
        self._left: list[tuple[Array, Array]] = []
        self._passes = 0
        self._is_within_pass = False
        self._was_sent = False

    def pull(self, ids: Array) -> Array:
        """The rows of ids, for a pass whose gradients will be left.

        Raises:
            InvalidArgumentError: an id is none of this table; it is named.
            FailedPreconditionError: the gradients of too many passes were left and not sent. As `Table.pull`.
        """
        checked = whole_ids(self.table, ids, self._below)
        with self._lock:
            self._is_within_pass = False
            if self._passes > PASSES_MAX:
                raise self._unsent()
        return read(self.table, checked, is_training=True)

    def look(self, ids: Array) -> Array:
        """The rows of ids, for an evaluation.

        Raises:
            FailedPreconditionError: gradients were left, and none of this layer was ever sent. As `Table.look`.
        """
        checked = whole_ids(self.table, ids, self._below)
        with self._lock:
            if self._left and not self._was_sent:
                raise self._unsent()
        return read(self.table, checked, is_training=False)

    def leave(self, ids: Array, gradients: Array) -> None:
        """Leaves a gradient for each id that `pull` has read. They are copied."""
        given = whole_ids(self.table, ids, self._below).reshape(-1), gradients.reshape(-1, self.table.dim)
        with self._lock:
            self._left.append((given[0].copy(), given[1].copy()))
            self._passes += not self._is_within_pass
            self._is_within_pass = True

    def take(self) -> tuple[Array, Array] | None:
        """Takes what was left, one after the other; None if that is nothing."""
        with self._lock:
            left, self._left, self._passes, self._was_sent = self._left, [], 0, True
        if not left:
            return None
        ids, gradients = (np.concatenate(of) for of in zip(*left, strict=True))
        return ids, gradients

    def _unsent(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"table {self.table.name}: the gradients of {self._passes} passes were left, and nothing has sent them; {self._hint}"
        )


def send(layers: Iterable[TableRows], factor: float = 1.0) -> None:
    """Sends what backward passes have left, times `factor`, and waits until the rows are changed.

    Layers whose tables have one name make one step. What was taken is not sent again after an error.

    Raises:
        NotFiniteError: a gradient is infinite or not a number; other tables may have changed.
        As `Table.push`.
    """
    tables: dict[str, tuple[Table, list[tuple[Array, Array]]]] = {}
    for layer in layers:
        if (taken := layer.take()) is not None:
            tables.setdefault(layer.table.name, (layer.table, []))[1].append(taken)
    with contextlib.ExitStack() as begun:
        for table, of_layers in tables.values():
            ids, gradients = (np.concatenate(of) for of in zip(*of_layers, strict=True))
            if factor != 1.0:
                gradients *= np.float32(factor)
            begun.callback(table.push_async(*added_up(ids, gradients)).wait)


def read(table: Table, ids: Array, *, is_training: bool, timeout: float | None = None) -> Array:
    """Rows of ids in int64, of any number and shape. Ids that come several times count once in the limit of the engine."""
    of = table.pull if is_training else table.look
    if ids.size <= IDS_MAX:
        return of(ids, timeout=timeout)  # type: ignore[no-any-return]
    distinct, places = np.unique(ids, return_inverse=True)
    rows: Array = of(distinct, timeout=timeout)[places.reshape(ids.shape)]
    return rows


def added_up(ids: Array, gradients: Array) -> tuple[Array, Array]:
    """Ids with their gradients as one push takes them: if there are many, those of one id are added up here."""
    if ids.size <= IDS_MAX:
        return ids, gradients
    distinct, places = np.unique(ids, return_inverse=True)
    sums = np.zeros((distinct.size, gradients.shape[-1]), np.float32)
    np.add.at(sums, places.reshape(-1), gradients.reshape(-1, gradients.shape[-1]))
    return distinct, sums


def whole_ids(table: Table, ids: Array, below: int | None = None) -> Array:
    """Ids as int64, contiguous, and of the same shape.

    Args:
        ids: integers of any type, of which unsigned ones of 64 bits count by their bits, or floats that are whole numbers and small
            enough that they were not rounded.
        below: all are from 0 and below it; None for any.
    Raises:
        InvalidArgumentError: one is something else; it is named.
    """
    kind = ids.dtype
    if kind.kind == "f" and kind.itemsize in _EXACT_BELOW:
        # This is also true of a NaN.
        wrong = ~((np.abs(ids) < _EXACT_BELOW[kind.itemsize]) & (ids == np.trunc(ids)))
        if wrong.any():
            raise InvalidArgumentError(
                f"table {table.name}: {ids[wrong].flat[0]!s} of {kind} is no id, or may have been rounded; give int64, in Keras "
                "with keras.Input(..., dtype='int64')"
            )
    elif kind.kind not in "iu":
        raise InvalidArgumentError(f"table {table.name}: ids of {kind}; give int64 or int32, in Keras with keras.Input(..., dtype='int64')")
    if below is not None and ids.size > 0:
        for end in (int(ids.min()), int(ids.max())):
            if not 0 <= end < below:
                raise InvalidArgumentError(f"table {table.name}: there is no id {end}; give ids from 0 to {below - 1}")
    if kind == np.uint64:
        ids = ids.view(np.int64)
    # `ascontiguousarray` makes vectors of scalars.
    return np.ascontiguousarray(ids, np.int64).reshape(ids.shape)
