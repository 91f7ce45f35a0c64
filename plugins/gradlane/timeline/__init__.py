"""The timeline: what the engine did with every tensor, and what the script did at the same time.

    gradlane.start_timeline("trace.json")
    with gradlane.timeline.span("backward"):
        loss.backward()
    gradlane.stop_timeline()

The setting `timeline` records from `init()` on. The files are in Chrome's trace format and open in Perfetto
(ui.perfetto.dev) and `chrome://tracing`. Their times are of a monotonic clock, and they say what the wall clock showed,
so that `merge` puts several workers, or PyTorch's profiler, into one picture. A process that was killed leaves a file
that can still be read.

`python -m gradlane.timeline merge --out all.json FILES` merges on the command line.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from gradlane import _core, _session

__all__ = [
    "ClockOffset",
    "Merged",
    "Pair",
    "Violation",
    "clock",
    "data",
    "merge",
    "span",
    "start_timeline",
    "stop_timeline",
]


def start_timeline(path: str | os.PathLike[str]) -> Path:
    """Records from now on what this worker does.

    Args:
        path: a file name that ends in `.json`, to which the rank is added; or a folder, in which the file is
            `RANK/comm.json`. An older file of that name is kept as `comm-1.json`, and so on up to `comm-9.json`.
    Returns:
        The path of the file. It grows at most to `timeline_bytes_max`, and then says how much is missing.
    Raises:
        FailedPreconditionError: a timeline is being recorded already.
        UnavailableError: the file cannot be written.
    """
    return _session.session().start_timeline(os.fspath(path))


def stop_timeline() -> None:
    """Completes the timeline's file; `shutdown()` does so too. Does nothing if no timeline is being recorded."""
    _session.session().stop_timeline()


def span(name: str) -> contextlib.AbstractContextManager[None]:
    """Shows the work inside the `with` block on the row of this thread. Without a timeline it costs about 1 µs."""
    return _Span(name)


class _Span(contextlib.AbstractContextManager[None]):
    # Not a generator, which would cost several times as much: CrossBarrier opens spans for each layer.
    __slots__ = ("_name", "_start")

    def __init__(self, name: str) -> None:
        self._name, self._start = name, 0

    def __enter__(self) -> None:
        self._start = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        record(self._name, self._start, time.monotonic_ns())


def record(name: str, start_ns: int, end_ns: int) -> None:
    """Shows past work of this thread; times are those of `time.monotonic_ns()`."""
    if _session.is_initialized():
        thread = threading.current_thread()
        _session.session().record_span(thread.native_id or 0, thread.name, name, start_ns, end_ns)


_Batch = TypeVar("_Batch")


def data(batches: Iterable[_Batch]) -> Iterable[_Batch]:
    """Tells how long the training waits for its data, so that `gradlane top` can tell a slow data loader from other causes.

        for images, labels in gradlane.timeline.data(loader):
            ...

    The waits count in the metric `data_wait_nanoseconds`, and show as `data` on the row of this thread in a timeline. It
    costs about 1 µs a batch.

    Args:
        batches: what gives the batches, such as PyTorch's `DataLoader`. The result can be iterated as often as it, and has
            its length.
    """
    return _Data(batches)


class _Data(Generic[_Batch]):
    def __init__(self, batches: Iterable[_Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[_Batch]:
        start = time.monotonic_ns()
        for batch in self._batches:
            end = time.monotonic_ns()
            record("data", start, end)
            if _session.is_initialized():
                _core.count_data_wait(_session.session(), end - start)
            yield batch
            start = time.monotonic_ns()

    def __len__(self) -> int:
        if not isinstance(self._batches, Sized):
            raise TypeError(f"{type(self._batches).__name__} has no length")
        return len(self._batches)


class ClockOffset(NamedTuple):
    """How far the coordinator's clock is ahead of the wall clock of this host."""

    offset: float
    """What to add to `time.time()` here to get the time of the coordinator's clock, in seconds."""
    error: float
    """The offset is wrong by at most so much, in seconds, if neither clock runs wrong by more than 1200 ppm."""


def clock() -> ClockOffset | None:
    """How far the coordinator's clock is ahead of the wall clock of this host.

    The answers to heartbeats tell it, and the longer a job runs, the better it is known. The coordinator's clock began as
    its wall clock at its start, and nobody sets it later. It is the clock of all members of the job.

    Returns:
        None before the coordinator has answered the first heartbeat, and in a job of one worker, which has none.
    """
    known = _session.session().clock_offset()
    return None if known is None else ClockOffset(*known)


@dataclass(frozen=True)
class Violation:
    """Two events in an order in which they cannot have been."""

    what: str
    seconds: float
    """By how much one of their times is wrong at least."""


@dataclass(frozen=True)
class Pair:
    """How the clocks of two machines agree with each other, by the sums of a worker on one and a server on the other."""

    worker: str
    """The machine of the worker, by the name of its host."""
    server: str
    orders: int
    """How many orders of two events were looked at."""
    violations: int
    """How many of them cannot have been."""
    worst: float
    """By how much the worst of them is wrong at least, in seconds; 0 if there is none."""
    error: float | None
    """How far the two clocks may be apart at most, in seconds, as both files say: half of a heartbeat's delay for each, and
    the drift since. 0 on one machine. None if a wall clock was all that was known, so that every wrong order counts."""


@dataclass(frozen=True)
class Merged:
    """What came of merging timelines."""

    error: float | None
    """How far a time may be off the coordinator's clock at most, in seconds. None if some files could only be placed by
    the wall clocks of their hosts, which may differ by anything."""
    by_wall_clock: tuple[Path, ...]
    """Those files."""
    violations: tuple[Violation, ...] = ()
    """What cannot have been, the worst first, at most 100: a server had something before a worker sent it, or a worker
    before the server, and the errors of both clocks do not explain it."""
    pairs: tuple[Pair, ...] = ()
    """The same, counted for each two machines."""


def merge(
    *paths: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    perfetto: str | os.PathLike[str] | None = None,
) -> Merged:
    """Merges several timelines, such as those of all workers and of PyTorch's profiler.

    All times become those of the coordinator's clock, whose offset the files of gradlane know; see `clock`. The first event
    of the merged file says when it began. A file of PyTorch's profiler is placed by the timeline of the same process, or
    else of the same host, if one is given: it knows what the wall clock showed there, and when somebody set it. Processes
    of other programs' files get other numbers where theirs are in use, because PyTorch's profiler gives small numbers to
    GPUs.

    Rows of servers get the names of tensors from the files of workers. Arrows lead from each PUSH to the SUM of its server
    and from there to each PULL.

    Args:
        out: one file for Perfetto or `chrome://tracing`; without it, none is written.
        perfetto: a tar for Perfetto of version 58 or later, which shows the rows of each machine under its name. It has the
            events of each file in a file of its own, and no arrows.
    Returns:
        How far times may be wrong, which files could only be placed by the wall clocks of their hosts, and which events lie
        in an order in which they cannot have been. The first event of the merged file says so too.
    Raises:
        InvalidArgumentError: a file is no timeline, or one of another version of gradlane.
        OSError: a file cannot be read or written.
    """
    # Here, because importing gradlane has to be quick.
    import json

    from gradlane import _timeline_bundle, _timeline_files

    picture = _timeline_files.merge([_timeline_files.read(Path(path)) for path in paths])
    if out is not None:
        Path(out).write_text(json.dumps(picture.events), encoding="utf-8")
    if perfetto is not None:
        _timeline_bundle.write(picture.files, Path(perfetto))
    return picture.merged
