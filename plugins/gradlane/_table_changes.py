"""What has changed in a table: versions, and scans page by page."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradlane import _core
from gradlane.errors import Error, InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    import numpy

Points = list[tuple[int, int, int, int]]
"""Where a scan stands, of each part: the first shard, the life, the version, and the cursor of the next page, 0 if there is none."""
Begin = Callable[[str, tuple[int, bool, Points], float | None], _core.Rows]
"""Begins a scan ("changed") or its next page ("page"), with the seconds that are left for it."""


@dataclass(frozen=True)
class TableVersion:
    """How far the changes of a table have come, on all servers. `str()` gives a text that `parse` reads again.

    Versions of one table compare by `<=` and so on, as long as the same servers keep it: one is above another if no part of it is
    behind. It says nothing about another table, nor after the servers were started again.
    """

    parts: tuple[tuple[int, int, int], ...]
    """Of each part: its first shard, its life, and its version."""

    def __str__(self) -> str:
        return "1:" + ",".join(f"{first}-{life:016x}-{version}" for first, life, version in self.parts)

    @classmethod
    def parse(cls, text: str) -> TableVersion:
        """Reads the text of a version.

        Raises:
            InvalidArgumentError: it is none.
        """
        try:
            form, _, said = text.partition(":")
            words = [word.split("-") for word in said.split(",")]
            parts = tuple((int(first), int(life, 16), int(version)) for first, life, version in words)
        except (AttributeError, ValueError):
            form, parts = "", ()
        is_fine = all(0 <= first < 1024 and 0 < life < 1 << 64 and 0 <= version < 1 << 64 for first, life, version in parts)
        if form != "1" or not is_fine:
            raise InvalidArgumentError(f"{text!r:.100} is no version of a table; give the text of one that was saved")
        return cls(parts)

    def __le__(self, other: TableVersion) -> bool:
        pairs = list(zip(self.parts, other.parts, strict=False))
        alike = len(self.parts) == len(other.parts) and all(ours[:2] == theirs[:2] for ours, theirs in pairs)
        return alike and all(ours[2] <= theirs[2] for ours, theirs in pairs)

    def __lt__(self, other: TableVersion) -> bool:
        return self <= other and self != other

    def __ge__(self, other: TableVersion) -> bool:
        return other <= self

    def __gt__(self, other: TableVersion) -> bool:
        return other < self


@dataclass(frozen=True)
class RowState:
    """What is kept of rows beside their values."""

    touched: numpy.ndarray
    """The step of the last use of each row; uint32."""
    score: numpy.ndarray
    """How much each row is worth: see `shrink`; float32."""
    numbers: numpy.ndarray
    """What the rule keeps of each row, moment after moment; float32 of as many rows, and of `dim` times the number of moments."""


@dataclass(frozen=True)
class Changed:
    """Rows of a table that have changed."""

    ids: numpy.ndarray
    """The ids of the rows; int64, each once."""
    rows: numpy.ndarray
    """Their values; float32 of as many rows, and of `dim`."""
    gone: numpy.ndarray
    """Ids whose rows were removed, and which have no row; int64."""
    version: TableVersion
    """The version for the next call."""
    state: RowState | None
    """What is kept of the rows beside their values, if it was asked for."""


def arrays() -> Any:
    """NumPy, which functions need that give arrays.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        import numpy
    except ImportError:
        raise UnsupportedError("changes, snapshots and groups of tables need NumPy, which is not installed; install numpy") from None
    return numpy


def checked(since: TableVersion | None) -> Points:
    """Where a scan begins."""
    if since is not None and not isinstance(since, TableVersion):
        raise InvalidArgumentError(f"since={since!r:.100}; give the version of an earlier call, or None for everything")
    return [] if since is None else [(*part, 0) for part in since.parts]


def pages(
    begin: Begin, since: TableVersion | None, shape: tuple[int, int], state: bool, timeout: float | None
) -> Iterator[Changed]:
    """The pages of a scan. `shape`: the values of a row, and all of its numbers."""
    arrays()
    points = checked(since)
    ends_at = None if timeout is None else time.monotonic() + timeout
    # A life is never 0.
    life = secrets.randbits(63) + 1
    return _pages(begin, points, (life, state), shape, ends_at)


def _pages(
    begin: Begin, points: Points, how: tuple[int, bool], shape: tuple[int, int], ends_at: float | None
) -> Iterator[Changed]:
    def left() -> float | None:
        return None if ends_at is None else max(0.0, ends_at - time.monotonic())

    action, is_open, is_over = "changed", True, False
    try:
        while not is_over:
            native = begin(action, (*how, points), left())
            native.wait(left())
            points, *found = native.pages()
            is_over = not any(cursor for *_, cursor in points)
            # Servers freeze nothing for a scan that has one page.
            is_open = action == "page" or not is_over
            yield _page(points, found, shape, how[1])
            action = "page"
    finally:
        if is_open:
            _end(begin, how, waits=is_over)


def _end(begin: Begin, how: tuple[int, bool], *, waits: bool) -> None:
    """Ends a scan, so that servers need not keep what it reads."""
    # Else the next scan of this worker ends it, or its end does.
    with contextlib.suppress(Error):
        ended = begin("page", (*how, []), None)
        if waits:
            ended.wait(None)


def _page(points: Points, found: list[bytes], shape: tuple[int, int], state: bool) -> Changed:
    numpy = arrays()
    ids, marks, numbers, gone = found
    dim, row_len = shape
    of_rows = numpy.frombuffer(numbers, "<f4").reshape(-1, row_len if state else dim)
    kept = None
    if state:
        of_marks = numpy.frombuffer(marks, [("touched", "<u4"), ("score", "<f4")])
        kept = RowState(of_marks["touched"].copy(), of_marks["score"].copy(), of_rows[:, dim:].copy())
    version = TableVersion(tuple((first, life, version) for first, life, version, _ in points))
    found_ids, found_gone = (numpy.frombuffer(bytes_of, "<i8").copy() for bytes_of in (ids, gone))
    return Changed(found_ids, of_rows[:, :dim].copy(), found_gone, version, kept)


def joined(all_pages: list[Changed]) -> Changed:
    """The pages of a scan as one."""
    numpy = arrays()

    def of(part: Callable[[Changed], Any]) -> Any:
        return numpy.concatenate([part(page) for page in all_pages])

    def of_state(part: Callable[[RowState], Any]) -> Any:
        return numpy.concatenate([part(page.state) for page in all_pages if page.state is not None])

    state = None
    if all_pages[0].state is not None:
        parts = (lambda of: of.touched, lambda of: of.score, lambda of: of.numbers)
        state = RowState(*(of_state(part) for part in parts))
    return Changed(of(lambda page: page.ids), of(lambda page: page.rows), of(lambda page: page.gone), all_pages[0].version, state)
