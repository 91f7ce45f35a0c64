"""Compares lists that have to be equal on all workers, such as the parameters of a model. Knows no framework."""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from gradlane import _buffers, _session
from gradlane._handle import Handle
from gradlane._objects import gather_by_rank
from gradlane._operations import submit
from gradlane._reduction import Reduction
from gradlane._sets import ProcessSet, name_in_job, places_of
from gradlane.errors import InvalidArgumentError, MismatchError

Row = tuple[str, str, Sequence[int]]
"""Of a tensor: its name, its element type, and its shape."""


class Comparison:
    """A comparison of the lists of all workers, which has begun and waits for none of them yet."""

    def __init__(
        self,
        kind: str,
        rows: Sequence[Row] | Exception,
        name: str,
        process_set: ProcessSet | None = None,
        *,
        by_name: bool = False,
    ) -> None:
        """Begins it. All workers must do so, and `check` it later.

        As a rule 64 bytes travel. Only if the lists differ, all workers send them.

        Args:
            kind: what the rows are, for errors, such as `parameter`.
            rows: a row for each tensor, or why this worker has none. Then the others need not wait for it in vain.
            name: of the operation, equal on all workers.
            process_set: the workers that take part, of which this one is a member; all by default.
            by_name: whether the rows may have another order on each worker; their names differ then.
        """
        self._by_name = by_name
        for handle in _left_behind.pop(_key(name, process_set), ()):
            handle.wait()
        self._kind, self._name, self._set = kind, name, process_set
        self._failure = rows if isinstance(rows, Exception) else None
        self._described = [] if isinstance(rows, Exception) else [[row, dtype, list(shape)] for row, dtype, shape in rows]
        compared = sorted(self._described) if by_name else self._described
        told = repr(compared if self._failure is None else str(self._failure))
        digest = array("q", hashlib.sha256(told.encode(errors="replace")).digest())
        codes = array("q", [code >> 1 for code in digest])  # so that each has a negative
        self._marks = codes + array("q", [-code for code in codes])
        self._agreed = self._marks[:]
        place = _buffers.locate(self._agreed, writable=True)
        self._handle = submit(f"{name}/alike", place, place, Reduction("max", process_set=process_set), result=None)

    def check(self) -> None:
        """Waits for all workers, and raises on every one of them if their lists differ.

        Raises:
            MismatchError: the lists differ; it names the first difference.
            StallError: some workers did not come (they are named).
            Exception: on a worker that gave a failure, that failure, at once.
            InvalidArgumentError: another worker gave a failure; the message has its text.
        """
        if self._failure is not None:
            _left_behind[_key(self._name, self._set)] = [self._handle, self._exchange_failures()]
            raise self._failure
        self._handle.wait()
        if self._agreed == self._marks:
            return
        texts = self._exchange_failures().wait()
        for place, rank in enumerate(places_of(self._set)):
            text = texts[place * _TEXT_BYTES : (place + 1) * _TEXT_BYTES].rstrip(b"\0").decode(errors="replace")
            if text:
                raise InvalidArgumentError(f"worker {rank} could not take part: {text}")
        lists_of = gather_by_rank(self._described, f"{self._name}/lists", plain=True, process_set=self._set)
        members, lists = tuple(lists_of), list(lists_of.values())
        if self._by_name:
            places = {row[0]: place for place, row in enumerate(lists[0])}
            lists = [sorted(rows, key=lambda row: places.get(row[0], len(places))) for rows in lists]
        raise _difference(self._kind, members, lists)

    def _exchange_failures(self) -> Handle[bytearray]:
        """Begins to tell all workers the failures of all: a text of a fixed length for each worker, of which one knows its own."""
        places = places_of(self._set)
        texts, own = bytearray(len(places) * _TEXT_BYTES), places.index(_session.rank()) * _TEXT_BYTES
        if self._failure is not None:
            text = f"{type(self._failure).__name__}: {self._failure}".encode(errors="replace")[:_TEXT_BYTES]
            texts[own : own + len(text)] = text
        place = _buffers.locate(texts, writable=True)
        return submit(f"{self._name}/failures", place, place, Reduction("max", process_set=self._set), result=texts)


_TEXT_BYTES = 400
"""The longest text of a failure that other workers are told."""

_left_behind: dict[tuple[int, str], list[Handle[Any]]] = {}
"""By generation of the session and name: exchanges that a worker with a failure began and did not wait for."""


def _key(name: str, process_set: ProcessSet | None) -> tuple[int, str]:
    return _session.generation(), name_in_job(name, process_set)


def check_alike(
    kind: str,
    rows: Sequence[Row] | Exception,
    name: str,
    process_set: ProcessSet | None = None,
    *,
    by_name: bool = False,
) -> None:
    """Raises on every worker if the lists of the workers differ; all of them must call it. See `Comparison`.

    A newcomer has nobody to compare with; its failure is raised all the same.
    """
    if _session.is_newcomer():
        if isinstance(rows, Exception):
            raise rows
        return
    Comparison(kind, rows, name, process_set, by_name=by_name).check()


@contextlib.contextmanager
def telling(kind: str, name: str, process_set: ProcessSet | None = None) -> Iterator[None]:
    """Inside, this worker prepares for `check_alike` with these arguments. If it fails, the other workers hear why at once."""
    try:
        yield
    except Exception as error:
        if _session.is_initialized():
            check_alike(kind, error, name, process_set)
        raise


def _difference(kind: str, ranks: Sequence[int], lists: Sequence[Sequence[list[object]]]) -> MismatchError:
    """The error about the first row in which a worker differs from the first worker."""
    for position, rows in enumerate(zip_longest(*lists)):
        for rank, row in zip(ranks, rows, strict=True):
            if row != rows[0]:
                ours, theirs = _words(rows[0]), _words(row)
                counts = ", ".join(f"{len(of)} on rank {r}" for r, of in zip(ranks, lists, strict=True))
                many = f" ({kind}s: {counts})" if len({len(of) for of in lists}) > 1 else ""
                return MismatchError(
                    f"{kind} {position}: worker {ranks[0]} has {ours}, worker {rank} has {theirs}{many}; "
                    f"{_advice(kind)}",
                    tensor=str((rows[0] or row or ["?"])[0]),
                    field=_field(rows[0], row),
                    first=(ranks[0], ours),
                    second=(rank, theirs),
                )
    return MismatchError(f"the {kind}s of the workers differ; {_advice(kind)}")


def _advice(kind: str) -> str:
    """What to do about differences."""
    if kind == "parameter":
        return "build the same model on all workers"
    return f"give {kind}s of the same names, element types and shapes on all workers, such as those of the same model"


def _field(ours: list[object] | None, theirs: list[object] | None) -> str:
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return "name"
    return "dtype" if ours[1] != theirs[1] else "shape"


def _words(row: list[object] | None) -> str:
    return "no more" if row is None else f"{row[0]}, {row[1]} {row[2]}"
