"""Tables: rows of numbers by id, which servers keep. They hold embeddings that fit no worker.

    from gradlane import rules
    from gradlane.tables import Table

    table = Table("items", 16, rule=rules.Adagrad(lr=0.1), init="uniform", scale=0.05)
    rows = table.pull(ids)                    # float32, of the shape of the ids and 16
    table.push(ids, gradients)                # a gradient for each id

An id is any number of 64 bits. It has no row before it is used: a *pull* gives it one, whose first values follow from the
table's seed and the id alone, whatever servers there are. `look` reads rows without making any, for evaluation. A *push*
changes rows by the table's rule; gradients of one id are added up first. Each change is made exactly once, also if a connection
breaks, and the uses of one table by one worker come one after the other.

The mode of a table says who waits for whom:

| mode | a push | waits |
|---|---|---|
| `modes.Async()` | is done when it comes | nobody |
| `modes.SSP(bound)` | is done when it comes | a pull of a worker that has pushed more than `bound` times more often than the slowest |
| `modes.Sync()` | makes one step of each row with those of all workers: their mean, or with `merge="sum"` their sum | each push |

With the last two every worker pushes at each step, if only no ids; who does not, also because its program has ended, is
waited for until the step times out, with a `StallError` that names it. In rounds all workers push with the same `step`, and
a push that has failed on one of them leaves the table's servers at different ones: a further push is refused then, so go on
with a new table. Gradients for an id that only some workers have are divided by the number of all of them too. A worker that
is lost is waited for no more.

The rows are spread over all servers. All workers make the table with the same arguments; who gives others hears of both in
a `MismatchError`. Rules that follow the steps of the training, such as Adam, take the steps that `push` is told; without
them, a worker's own pushes count.

In a job of one worker without servers, the worker keeps the rows itself.

**Memory.** Servers keep the values of a row in the `dtype` of the table, what its rule keeps of the row, such as moments, in
float32, and at most 36 bytes more for each row. With `dtype="bfloat16"` or `"float16"` a value takes 2 bytes in place of 4; an
odd number of them takes 2 bytes more. Where values and moments of a row take 52 bytes or more, a table has at most 1.3 times the
memory of these and of 16 bytes a row. Rows of half precision of which the rule keeps nothing are so large from 26 elements on.

A step is computed in float32. Then values of half precision are rounded by chance to one of the two neighbours that can be kept,
so that they are right on average and small steps are not lost. The random bits follow from the seed of the table, the id, the
step that the push has said, and the score of the row. So rows are the same for any number of servers. Where both step and
score stay the same, as with `scores` of 0, so do the bits. First values, and those that are loaded, are rounded to the nearest.
Values beyond the largest finite number (65,504 of float16) become it, and are never infinite. Pulls, `changed` and snapshots
have the values exactly, as float32.

**Changes.** `changed` reads the rows that were changed since a version, and the ids that were removed: a reader who follows a
table gets each change, and nothing else. Each part of a table is read as it is at one moment, whatever is pushed meanwhile.

**Snapshots.** One worker saves a table to its own disk, and one loads it, with any number of servers:

    table.save("runs/a/items")                # all rows, with what the rule keeps of them
    table.save("runs/a/items", delta=True)    # what has changed since the snapshot before
    table.load("runs/a/items")

A snapshot is whole or not there. Tables are in no checkpoint: `checkpoint.save` takes the parameters of a job with tables if it is
told `tables_apart=True`. If a server is lost, a job with tables ends, or, with `on_server_loss=restore`, fails with a
`StateLostError` and forms again; its tables begin anew then, so `train` loads them:

    def train():
        table = Table("items", 16, rule=rules.Adagrad(lr=0.1))
        found = gl.checkpoint.resume("runs/a/net")
        if gl.rank() == 0 and found:
            table.load("runs/a/items", snapshot=found.extra["items"])
        gl.barrier("items are there")
        for step in range(found.extra["step"] + 1 if found else 0, 10_000):
            ...
            if step % 100 == 0:
                gl.barrier("all have pushed")               # so that table and parameters are of one step
                if gl.rank() == 0:
                    items = table.save("runs/a/items")
                    gl.checkpoint.save("runs/a/net", extra={"step": step, "items": items.number}, tables_apart=True)
                gl.barrier("all is saved")

    gl.checkpoint.run(train)
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from gradlane import _core, _session, modes, rules
from gradlane._arguments import check_name, check_priority, check_timeout
from gradlane._buffers import Buffer
from gradlane._table_changes import Changed, RowState, TableVersion, joined, pages
from gradlane._table_files import Snapshot, load, save
from gradlane._table_files import export as _export
from gradlane._table_groups import Group, Member
from gradlane.errors import InvalidArgumentError
from gradlane.parameters import located_argument

__all__ = ["Changed", "Counts", "Group", "Member", "Pending", "RowState", "Snapshot", "Table", "TableVersion", "export", "pull_all", "push_all"]

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Counts:
    """What servers count in a table; sums over all of them."""

    scanned: int
    """Rows that a shrink has looked at; 0 of `stats`."""
    evicted: int
    """Rows that this shrink has removed; of `stats`, all that were ever removed."""
    rows: int
    """Rows that are there."""
    waiting: int
    """Ids that were pulled, and have no row yet: see `after`."""
    bytes: int
    """Memory that the servers take for the table."""
    dropped: int
    """Ids whose gradients were dropped, because they had no row."""


class Pending(Generic[T]):
    """A use of a table under way; `wait()` returns its result."""

    def __init__(self, native: _core.Rows, finish: Callable[[], T]) -> None:
        """Wraps a use; `finish` makes the result once it has ended well."""
        self._native = native
        self._finish: Callable[[], T] | None = finish
        self._finishing = threading.Lock()
        self._result: T | None = None

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the end of the use.

        Args:
            timeout: seconds from 0 on; None waits until the use ends, which the job's step timeout bounds.
        Raises:
            InvalidArgumentError: `timeout` is negative or not a number.
            TimeoutError: not done within `timeout`; it goes on and may be waited for again.
            FailedPreconditionError: the table is full, or a server has no memory for more rows.
            MismatchError: another worker has made the table with other arguments; both sides are named.
            PeerLostError: a member of the job died.
        """
        check_timeout(timeout)
        self._native.wait(timeout)
        with self._finishing:
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None
        return self._result  # type: ignore[return-value]

    def done(self) -> bool:
        """Whether it has ended."""
        return self._native.poll()

    def then(self, change: Callable[[T], U]) -> Pending[U]:
        """The same use, whose result is what `change` makes of this one's."""
        return Pending(self._native, lambda: change(self.wait()))


class Table:
    """A table of rows by id, on the servers of the job."""

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        rule: rules.Rule | str,
        init: Literal["zero", "uniform", "normal"] = "zero",
        scale: float = 0.0,
        seed: int = 0,
        after: int = 1,
        score: float = 0.0,
        share: float = 1.0,
        rows: int = 0,
        full: Literal["refuse", "evict"] = "refuse",
        ttl: int = 0,
        bound: float = 0.0,
        mode: modes.Mode = modes.Async(),
        compression: Literal["none", "bf16", "fp16", "int8"] = "none",
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        members: int = 0,
    ) -> None:
        """Describes a table. Servers hear of it with its first use.

        Args:
            name: equal on all workers, as all that follows.
            dim: elements of a row, from 1 to 16,384.
            rule: how gradients change a row: an optimizer that changes each element by itself.
            init: what rows begin with: zeros, numbers spread evenly from `-scale` to `scale`, or a normal distribution with
                this standard deviation.
            scale: for `init`; 0 for zeros.
            seed: of the first values, from 0 on.
            after: an id gets its row when it is pulled for the `after`-th time. Until then its row reads as zeros, and
                gradients for it are dropped.
            score: an id gets its row when its pushes have brought this score together, 1 each unless `push` says otherwise. Until
                then its row reads as zeros, and gradients for it are dropped; 0 if that is no condition. Not together with `after`.
            share: the share of ids that get a row at all, above 0 and up to 1. A hash of seed and id chooses them.
            rows: the most rows over all servers, of which each has its share; 0 for as many as their memory holds.
            full: what a full table does: "refuse" fails a use that needs more rows, of which that server does nothing then;
                others may have done their part. "evict" lets a row go that was not used for long.
            ttl: a row goes that no worker has pulled or pushed to for more steps than this; 0 for never. Steps are those of
                `push`. It reads as gone at once; `stats`, `changed` and `save` have it until a server comes by, which looks at
                as many rows in each use as that has ids.
            bound: values are clamped to plus or minus this after each step, or to the largest number within that `dtype` has; 0 for
                no bound.
            mode: who waits for whom; see above. `modes.Async()`, `modes.SSP(bound)` or `modes.Sync()`.
            compression: how rows and gradients travel, each rounded to the nearest number of its kind: "int8" has one scale for
                a row. What the rounding leaves out is not made up for. What servers keep is what `dtype` says.
            dtype: how servers keep the values of rows; see above. What comes and goes is float32.
            members: a number that stands for what the ranges of its ids mean, such as those of a `Group`; 0 if nothing.
        Raises:
            InvalidArgumentError: an argument is not what it should be; it is named.
        """
        check_name(name)
        self.name, self._dim = name, dim
        settings: dict[str, Any] = {"dim": dim, "init": init, "scale": scale, "seed": seed, "after": after, "share": share}
        settings |= {"score": score}
        settings |= {"rows": rows, "full": full, "ttl": ttl, "bound": bound, "codec": compression}
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise InvalidArgumentError(f"dtype={dtype!r}; give one of {', '.join(_DTYPES)}: it says how servers keep rows")
        settings |= {"dtype": _DTYPES[dtype], "members": members, **_turns(mode)}
        said = ",".join(f"{setting}={value}" for setting, value in settings.items())
        text = rules.text_of(rule)
        if text is None:
            raise InvalidArgumentError("rule=None; a table needs a rule, such as rules.SGD(lr=0.1)")
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise InvalidArgumentError(f"dim={dim!r}; give a whole number of elements")
        if compression not in ("none", "bf16", "fp16", "int8"):
            raise InvalidArgumentError(f"compression={compression!r}; give one of none, bf16, fp16, int8")
        self._text, self._row_len = _core.table_text(f"{text};{said}")
        self.waits = not isinstance(mode, modes.Async)
        """Whether workers wait for each other, so that each pushes at each step, if only no ids."""
        self._pushes = 0
        self._counting = threading.Lock()

    @property
    def dim(self) -> int:
        """The elements of a row."""
        return self._dim

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, which uses the same rows."""
        return {name: value for name, value in self.__dict__.items() if name != "_counting"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a copy."""
        self.__dict__ |= state
        self._counting = threading.Lock()

    def __repr__(self) -> str:
        """Its name, and the text that workers compare."""
        return f"Table({self.name!r}, {self._text!r})"

    def pull(self, ids: Any, out: Any = None, *, priority: int = 0, timeout: float | None = None) -> Any:
        """Read rows for training: an id without a row gets one, if the table admits it.

        Args:
            ids: int64 of any shape, contiguous on the CPU, or a list of int; ids may come several times. Unsigned ones
                count by their bits.
            out: float32 of the shape of the ids and `dim`, contiguous on the CPU; None makes it, a tensor of PyTorch if the
                ids are one, otherwise an array of NumPy.
            priority: higher goes first; only the order matters.
            timeout: seconds for the whole use; None takes the job's step timeout, which is also the upper bound.
        Returns:
            `out`.
        Raises:
            FailedPreconditionError: the table is full, or a server has no memory for more rows.
            MismatchError: another worker has made the table with other arguments; both sides are named.
            InvalidArgumentError: an argument is not what it should be, or there are more than 1,048,576 ids.
        """
        return self._read("pull", ids, out, priority, timeout).wait()

    def pull_async(self, ids: Any, out: Any = None, *, priority: int = 0, timeout: float | None = None) -> Pending[Any]:
        """Like `pull`, but returns at once: to fetch the rows of the next batch while this one is computed.

        It reads what this worker has pushed before the call, and perhaps more of others.
        """
        return self._read("pull", ids, out, priority, timeout)

    def look(self, ids: Any, out: Any = None, *, priority: int = 0, timeout: float | None = None) -> Any:
        """Read rows for evaluation, as `pull`. It makes no row and changes nothing: ids without a row read as what it would begin with."""
        return self.look_async(ids, out, priority=priority, timeout=timeout).wait()

    def look_async(self, ids: Any, out: Any = None, *, priority: int = 0, timeout: float | None = None) -> Pending[Any]:
        """Like `look`, but returns at once."""
        return self._read("look", ids, out, priority, timeout)

    def push(
        self,
        ids: Any,
        gradients: Any,
        *,
        scores: Any = None,
        step: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Change rows by gradients, as the rule says.

        Args:
            ids: as for `pull`. Gradients of an id that comes several times are added up first.
            gradients: float32 of the shape of the ids and `dim`, contiguous on the CPU. It is only read, during the call.
            scores: how much each push is worth to its row: a number from 0 on for each id, as a list or float32 of the shape of the
                ids. Those of one id are added up. None counts 1 for each distinct id.
            step: the steps of the training before this one, from 0; servers take the highest that any worker has said. None
                counts the pushes of this object.
            priority: as for `pull`.
            timeout: as for `pull`.
        Raises:
            NotFiniteError: a gradient is infinite or not a number; nothing was sent.
            FailedPreconditionError: as `pull`.
            MismatchError: as `pull`.
            InvalidArgumentError: as `pull`, or a gradient of another shape or dtype.
        """
        self.push_async(ids, gradients, scores=scores, step=step, priority=priority, timeout=timeout).wait()

    def push_async(
        self,
        ids: Any,
        gradients: Any,
        *,
        scores: Any = None,
        step: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pending[None]:
        """Like `push`, but returns once the gradients were read."""
        place, shape = _ids_of(ids)
        shape = (*shape, self.dim)
        given = _floats("gradients", gradients, shape, writable=False)
        action, marks = "push", array("Q")
        if scores is not None:
            action, marks = "push with scores", _bits_of(scores, 0 if place is None else place.len)
        # The lock also keeps the order of the steps.
        with self._counting:
            step = self._pushes if step is None else step
            native = self._begin(action, place, given, step, priority, timeout, marks=marks.buffer_info())
            self._pushes = min(max(self._pushes, step) + 1, _STEP_MAX)
        return Pending(native, lambda: None)

    def shrink(
        self,
        *,
        decay: float = 1.0,
        min_score: float = 0.0,
        max_idle: int | None = None,
        floor: int = 0,
        timeout: float | None = None,
    ) -> Counts:
        """Remove rows that are not worth their place, on all servers.

        A row's score is that of its pushes, and decays here. A row is idle for the steps since its last push or pull.

        Args:
            decay: the scores of all rows are multiplied by this first, from 0 to 1, and so is what ids without a row wait for;
                ids for which nothing is left of that are forgotten.
            min_score: rows with a lower score go.
            max_idle: rows that are idle for more steps go; None for none of them.
            floor: so many rows stay in any case, over all servers, of which each has its share: those of the highest scores.
            timeout: as for `pull`.
        Returns:
            What was scanned, evicted and is left.
        """
        most = (1 << 64) - 1
        for name, number in (("max_idle", most if max_idle is None else max_idle), ("floor", floor)):
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
                raise InvalidArgumentError(f"{name}={number!r}; give a whole number, 0 or above")
        for name, value in (("decay", decay), ("min_score", min_score)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidArgumentError(f"{name}={value!r}; give a number")
        bounds = (float(decay), float(min_score), most if max_idle is None else max_idle, floor)
        return self._count("shrink", bounds, timeout)

    def stats(self, *, timeout: float | None = None) -> Counts:
        """Count what is there, on all servers."""
        return self._count("stats", _KEEP, timeout)

    def clear(self, *, timeout: float | None = None) -> None:
        """Remove all rows."""
        self._begin("clear", None, None, self._pushes, 0, timeout).wait(timeout)

    def changed(self, since: TableVersion | None = None, *, state: bool = False, timeout: float | None = None) -> Changed:
        """Read the rows that were changed since a version, and the ids that were removed since then.

        A pull that makes a row changes it, and so do pushes and `load`. Each change is delivered, and what is read of a part of the
        table is one moment, whatever others push meanwhile. Meanwhile servers may need as much memory again as the table takes.
        One worker reads a table once at a time.

        Args:
            since: the `version` of an earlier call, of a save, or of a load; None for all rows.
            state: whether what is kept of the rows beside their values is read too.
            timeout: seconds for all of it; the job's step timeout bounds each page.
        Raises:
            FullResyncNeededError: what has changed since then is not known any more: more than 65,536 ids and a quarter of the
                rows were removed since, the table was cleared or loaded, or other servers keep it. Read everything.
            InvalidArgumentError: `since` is none, or is of the future.
            ResourceExhaustedError: a server has no memory to keep the rows as they are meanwhile.
            UnsupportedError: NumPy is not installed.
            MismatchError: as `pull`.
        """
        return joined(list(self.changed_pages(since, state=state, timeout=timeout)))

    def changed_pages(
        self, since: TableVersion | None = None, *, state: bool = False, timeout: float | None = None
    ) -> Iterator[Changed]:
        """Like `changed`, page by page: of each server some of its rows at a time, up to 64 MiB from all together.

        All pages have the same version and are of the same moment. The first comes also if nothing has changed. Whoever stops
        earlier closes the iterator, so that servers need not keep the rows.
        """
        check_timeout(timeout)

        def begin(action: str, scan: tuple[int, bool, list[tuple[int, int, int, int]]], left: float | None) -> _core.Rows:
            return self._begin(action, None, None, 0, 0, left, scan=scan)

        return pages(begin, since, (self.dim, self._row_len), state, timeout)

    def save(
        self, path: str | os.PathLike[str], *, delta: bool = False, keep: int | None = None, timeout: float | None = None
    ) -> Snapshot:
        """Save the table to files on the disk of this worker. One worker calls it, for all.

        All rows are saved with all that is kept of them, and each part of the table is of one moment. Pushes go on meanwhile. The
        scores and last uses in a delta are those of the rows that it has: of other rows they may have changed since by a shrink
        or a pull.

        Args:
            path: the directory of the snapshots of this table alone. It is made if it is not there.
            delta: whether to save only what has changed since the latest snapshot there, which is its base.
            keep: how many snapshots stay there, beside those on which they are based; the oldest ones go. None keeps all.
            timeout: seconds for reading the table.
        Raises:
            FullResyncNeededError: of a delta: what has changed since its base is not known any more, because the table was
                loaded or cleared, or the servers are others. A full snapshot is due.
            FailedPreconditionError: of a delta: there is no snapshot of this table. Or another table is saved there.
            UnavailableError: the disk is full, or a file cannot be written. What was saved before stays.
            ResourceExhaustedError: as `changed`.
            UnsupportedError: NumPy is not installed.
        """
        return save(self, path, delta, keep, timeout)

    def load(self, path: str | os.PathLike[str], *, snapshot: int | None = None, timeout: float | None = None) -> Snapshot:
        """Load a snapshot, with the one on which it is based. One worker calls it, while no other uses the table.

        All files are read and checked first; if anything is wrong, nothing is changed. Then all rows that are there are removed,
        and those of the snapshot put back, whether the table would admit them or not. A table that is full refuses, or lets rows
        go. It works with any number of servers. The next save is a full one.

        Args:
            path: the directory to which the snapshots were saved.
            snapshot: the number of one of them; None for the latest.
            timeout: seconds for each use that it makes.
        Raises:
            NotFoundError: no snapshot is there, or one on which it is based is missing; it is named.
            CorruptCheckpointError: a file is not what it was, or a base is another one; it is named.
            IncompatibleError: the files have the form of another version.
            FailedPreconditionError: it is a snapshot of another table, or of one with another `dim`, `dtype` or kind of rule; or the table
                is full.
            UnsupportedError: NumPy is not installed.
        """
        return load(self, path, snapshot, timeout)

    def _restore(self, ids: Any, marks: Any, numbers: Any, *, timeout: float | None) -> None:
        """Puts rows back: int64 [n], 8 bytes each, and float32 [n, row_len]; contiguous arrays of NumPy."""
        place, _ = _ids_of(ids)
        if place is None:
            return
        of_numbers = _floats("numbers", numbers, (len(ids), self._row_len), writable=False)
        of_marks = (int(marks.ctypes.data), len(ids))
        self._begin("restore", place, of_numbers, 0, 0, timeout, marks=of_marks).wait(timeout)

    def _go_on_from(self, step: int) -> None:
        """The table was used in this step of a training before."""
        with self._counting:
            self._pushes = min(max(self._pushes, step + 1), _STEP_MAX)

    def _read(self, action: str, ids: Any, out: Any, priority: int, timeout: float | None) -> Pending[Any]:
        place, shape = _ids_of(ids)
        shape = (*shape, self.dim)
        if out is None:
            out = _empty(ids, shape)
        into = _floats("out", out, shape, writable=True)
        native = self._begin(action, place, None, self._pushes, priority, timeout)

        def finish() -> Any:
            if into is not None:
                native.read_rows(into.address)
            return out

        return Pending(native, finish)

    def _count(self, action: str, bounds: tuple[float, float, int, int], timeout: float | None) -> Counts:
        native = self._begin(action, None, None, self._pushes, 0, timeout, bounds)
        native.wait(timeout)
        return Counts(*native.counts())

    def _begin(
        self,
        action: str,
        ids: Buffer | None,
        gradients: Buffer | None,
        step: int,
        priority: int,
        timeout: float | None,
        bounds: tuple[float, float, int, int] | None = None,
        marks: tuple[int, int] = (0, 0),
        scan: tuple[int, bool, list[tuple[int, int, int, int]]] = (0, False, []),
    ) -> _core.Rows:
        check_timeout(timeout)
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= _STEP_MAX:
            raise InvalidArgumentError(f"step={step!r}; give the steps before this one, from 0 to {_STEP_MAX}")
        asked = (self.name, self._text, action, step, bounds or _KEEP, check_priority(priority), timeout)
        ids_at, gradients_at = ((0, 0) if place is None else (place.address, place.len) for place in (ids, gradients))
        return _core.use_rows(_session.session(), asked, ids_at, gradients_at, marks, scan)


def pull_all(uses: Iterable[tuple[Table, Any]], *, timeout: float | None = None) -> list[Any]:
    """Read rows of several tables for training, all at once: the time is that of the slowest, and not their sum.

    Tables of one kind are faster as a `Group`, which servers keep as one.

    Args:
        uses: tables with their ids, as for `Table.pull`.
        timeout: as for `Table.pull`.
    Returns:
        The rows of each, in order.
    Raises:
        The errors of `Table.pull`, after all have ended.
    """
    return _all_of([table.pull_async(ids, timeout=timeout) for table, ids in uses])


def push_all(uses: Iterable[tuple[Table, Any, Any]], *, step: int | None = None, timeout: float | None = None) -> None:
    """Change rows of several tables, all at once.

    Args:
        uses: tables with ids and gradients, as for `Table.push`.
        step: as for `Table.push`.
        timeout: as for `Table.push`.
    Raises:
        The errors of `Table.push`, after all have ended.
    """
    _all_of([table.push_async(ids, gradients, step=step, timeout=timeout) for table, ids, gradients in uses])


def _all_of(begun: list[Pending[T]]) -> list[T]:
    """Waits for all of them, also if one fails."""
    with contextlib.ExitStack() as waited:
        for one in begun:
            waited.callback(one.wait)
    return [one.wait() for one in begun]


def export(path: str | os.PathLike[str], file: str | os.PathLike[str], *, snapshot: int | None = None) -> None:
    """Writes the values of a snapshot to one file, which needs no job: a full one, or a delta with all that it is based on.

    The rows are in the order of their ids. All of the table is in memory meanwhile.

    Args:
        path: the directory to which the snapshots were saved.
        file: what to write; its end says the form: `.safetensors` (arrays `ids` and `rows`), `.parquet` or `.arrow` (columns `id`
            and `row`, a list of float32). It is replaced when all of it is on the disk.
        snapshot: the number of one of them; None for the latest.
    Raises:
        NotFoundError, CorruptCheckpointError, IncompatibleError: as `Table.load`.
        InvalidArgumentError: the name ends otherwise.
        UnsupportedError: NumPy is not installed, or pyarrow, which the forms `.parquet` and `.arrow` need.
        UnavailableError: the file cannot be written.
    """
    _export(path, file, snapshot)


_STEP_MAX = (1 << 32) - 2
"""The last step of a training that uses tables."""


_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "fp16"}
"""How servers keep rows, and how the text of a table says it."""


def _turns(mode: object) -> dict[str, Any]:
    """The settings of a mode."""
    match mode:
        case modes.Async(max_staleness=None, compensate=None):
            return {}
        case modes.SSP(max_staleness=None, compensate=None):
            return {"mode": "ssp", "ahead": mode.bound}
        case modes.Sync():
            return {"mode": "sync", "merge": mode.merge}
    raise InvalidArgumentError(
        f"mode={mode!r}; a table has modes.Async(), modes.SSP(bound) and modes.Sync(), without a staleness and without compensation"
    )


_KEEP = (1.0, 0.0, (1 << 64) - 1, 0)
"""The bounds of a shrink that removes nothing."""


def _ids_of(ids: Any) -> tuple[Buffer | None, tuple[int, ...]]:
    """The memory of ids, None if there are none, and their shape."""
    if isinstance(ids, list | tuple | range):
        try:
            ids = array("q", ids)
        except (TypeError, OverflowError):
            raise InvalidArgumentError(f"ids={ids!r:.100}; give a list of int of 64 bits, or an array of int64") from None
    kind = getattr(ids, "dtype", None)
    if str(kind) == "uint64":
        ids = ids.view("int64")
    if _count_of(ids) == 0:
        return None, tuple(getattr(ids, "shape", (0,)))
    place = located_argument("ids", ids, writable=False)
    if place.dtype != "int64" or place.device is not None:
        where = "the CPU" if place.device is None else f"device {place.device}"
        raise InvalidArgumentError(f"ids: {place.dtype} on {where}; give int64 on the CPU")
    return place, tuple(place.shape)


def _bits_of(scores: Any, count: int) -> array[int]:
    """The bits of a score for each id."""
    try:
        given = array("f", scores if isinstance(scores, list | tuple) else memoryview(scores).cast("B").cast("f"))
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"scores={scores!r:.100}; give a list of numbers, or float32 that is contiguous on the CPU") from None
    if len(given) != count:
        raise InvalidArgumentError(f"scores: {len(given)} of {count} ids; give one for each")
    return array("Q", memoryview(given).cast("B").cast("I"))


def _count_of(value: Any) -> int | None:
    """How many elements something with a shape has; None if it does not say."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return len(value) if hasattr(value, "__len__") else None
    count = 1
    for size in shape:
        count *= size
    return count


def _floats(argument: str, value: Any, shape: tuple[int, ...], *, writable: bool) -> Buffer | None:
    """The memory of float32 of this shape; None if it has no elements."""
    if 0 in shape and _count_of(value) == 0:
        return None
    place = located_argument(argument, value, writable=writable)
    if place.dtype != "float32" or place.device is not None or tuple(place.shape) != shape:
        where = "the CPU" if place.device is None else f"device {place.device}"
        raise InvalidArgumentError(
            f"{argument}: {place.dtype} of shape {list(place.shape)} on {where}; give float32 of shape {list(shape)} on the CPU"
        )
    return place


def _empty(ids: Any, shape: tuple[int, ...]) -> Any:
    """Memory for rows, of the kind of the ids."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(ids, torch.Tensor):
        return torch.empty(shape, dtype=torch.float32)
    try:
        import numpy
    except ImportError:
        raise InvalidArgumentError("out=None, and NumPy is not installed; give memory for the rows") from None
    return numpy.empty(shape, dtype=numpy.float32)
