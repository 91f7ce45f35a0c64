"""Compares lists that have to be equal on all workers, such as the parameters of a model. Knows no framework."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from itertools import zip_longest

from gradlane import _buffers
from gradlane._objects import allgather
from gradlane._operations import submit
from gradlane._sets import ProcessSet, members_of
from gradlane.errors import MismatchError

Row = tuple[str, str, Sequence[int]]
"""Of a tensor: its name, its element type, and its shape."""


def check_alike(kind: str, rows: Sequence[Row], name: str, process_set: ProcessSet | None = None) -> None:
    """Raises on every worker if the lists of the workers differ. All of them must call it.

    As a rule 64 bytes travel. Only if the lists differ, all workers send them.

    Args:
        kind: what the rows are, for errors, such as `parameter`.
        rows: a row for each tensor.
        name: of the operation, equal on all workers.
        process_set: the workers that take part, of which this one is a member; all by default.
    Raises:
        MismatchError: the lists differ; it names the first difference.
        StallError: some workers did not come (they are named).
    """
    described = [[row_name, dtype, list(shape)] for row_name, dtype, shape in rows]
    digest = array("q", hashlib.sha256(repr(described).encode()).digest())
    codes = array("q", [code >> 1 for code in digest])  # so that each has a negative
    marks = codes + array("q", [-code for code in codes])
    agreed = marks[:]
    place = _buffers.locate(agreed, writable=True)
    submit(f"{name}/alike", place, place, "max", result=None, process_set=process_set).wait()
    if agreed != marks:
        lists = allgather(described, f"{name}/lists", plain=True, process_set=process_set)
        raise _difference(kind, members_of(process_set), lists)


def _difference(kind: str, ranks: Sequence[int], lists: Sequence[Sequence[list[object]]]) -> MismatchError:
    """The error about the first row in which a worker differs from the first worker."""
    for position, rows in enumerate(zip_longest(*lists)):
        for rank, row in zip(ranks, rows, strict=True):
            if row != rows[0]:
                ours, theirs = _words(rows[0]), _words(row)
                counts = ", ".join(f"{len(of)} on rank {r}" for r, of in zip(ranks, lists, strict=True))
                many = f" ({kind}s: {counts})" if len({len(of) for of in lists}) > 1 else ""
                return MismatchError(
                    f"{kind} {position}: worker {ranks[0]} has {ours}, worker {rank} has {theirs}{many}; build the same "
                    "model on all workers",
                    tensor=str((rows[0] or row or ["?"])[0]),
                    field=_field(rows[0], row),
                    first=(ranks[0], ours),
                    second=(rank, theirs),
                )
    return MismatchError(f"the {kind}s of the workers differ; build the same model on all workers")


def _field(ours: list[object] | None, theirs: list[object] | None) -> str:
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return "name"
    return "dtype" if ours[1] != theirs[1] else "shape"


def _words(row: list[object] | None) -> str:
    return "no more" if row is None else f"{row[0]}, {row[1]} {row[2]}"
