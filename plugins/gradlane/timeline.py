"""The timeline: what the engine did with every tensor, and what the script did at the same time.

    gradlane.start_timeline("trace.json")
    with gradlane.timeline.span("backward"):
        loss.backward()
    gradlane.stop_timeline()

The setting `timeline` records from `init()` on. The files are in Chrome's trace format and open in Perfetto
(ui.perfetto.dev) and `chrome://tracing`; times are those of the wall clock, so that `merge` puts several workers, or
PyTorch's profiler, into one picture. A process that was killed leaves a file that can still be read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any

from gradlane import _session
from gradlane.errors import InvalidArgumentError

__all__ = ["merge", "span", "start_timeline", "stop_timeline"]


def start_timeline(path: str | os.PathLike[str]) -> Path:
    """Records from now on what this worker does.

    Args:
        path: a file name that ends in `.json`, to which the rank is added; or a folder, in which the file is
            `RANK/comm.json`.
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
        self._start = time.time_ns()

    def __exit__(self, *_: object) -> None:
        record(self._name, self._start, time.time_ns())


def record(name: str, start_ns: int, end_ns: int) -> None:
    """Shows past work of this thread; times are those of `time.time_ns()`."""
    if _session.is_initialized():
        thread = threading.current_thread()
        _session.session().record_span(thread.native_id or 0, thread.name, name, start_ns, end_ns)


def merge(*paths: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Merges several timelines into one file, such as those of all workers and of PyTorch's profiler.

    All times become those of the wall clock. Processes of other programs' files get other numbers where theirs are in
    use, because PyTorch's profiler gives small numbers to GPUs.

    Raises:
        InvalidArgumentError: a file is no timeline.
    """
    import json  # here, because importing gradlane has to be quick

    parsed = [_read(Path(path)) for path in paths]
    taken = {_process(event) for events, _, is_own in parsed if is_own for event in events}
    merged: list[Any] = []
    for number, (events, base_us, is_own) in enumerate(parsed):
        if not is_own:
            events = _moved(events, base_us, taken, flow_offset=number << 40)
        merged += events
    Path(out).write_text(json.dumps(merged), encoding="utf-8")


def _moved(events: list[Any], base_us: float, taken: set[object], *, flow_offset: int) -> list[Any]:
    """The events of another program's file at wall clock time, under process numbers that are not in `taken` yet."""
    own: list[object] = list(dict.fromkeys(map(_process, events)))
    free = itertools.count(_FIRST_FREE)
    numbers: dict[object, object] = {}
    for process in own:
        numbers[process] = process if process not in taken else next(i for i in free if i not in taken and i not in own)
    taken.update(numbers.values())
    moved = []
    for event in events:
        if isinstance(event, dict):
            event = dict(event)
            if "ts" in event:
                event["ts"] = event["ts"] + base_us
            if "pid" in event:
                event["pid"] = numbers[_process(event)]
            # Arrows between events: the numbers of two files mean different arrows.
            if isinstance(event.get("id"), int):
                event["id"] += flow_offset
        moved.append(event)
    return moved


_FIRST_FREE = 1 << 24
"""Above the process numbers of Linux (at most 2^22), so that a new number looks like none."""


def _process(event: Any) -> object:
    return event.get("pid") if isinstance(event, dict) else None


def _read(path: Path) -> tuple[list[Any], float, bool]:
    """The events of a file, the microseconds to add to their times, and whether gradlane wrote the file."""
    import json

    text = path.read_text(encoding="utf-8")
    try:
        parsed = json.loads(text)
    except ValueError:
        try:  # a process that was killed left it incomplete
            parsed = json.loads(text.rstrip().rstrip(",") + "]")
        except ValueError as error:
            raise InvalidArgumentError(f"{path} is no timeline: {error}") from error
    is_own = not isinstance(parsed, dict)
    events = parsed if is_own else parsed.get("traceEvents")
    base_ns = 0 if is_own else parsed.get("baseTimeNanoseconds", 0)
    if not isinstance(events, list) or not isinstance(base_ns, int):
        raise InvalidArgumentError(f"{path} is no timeline: it has no list of events")
    return events, base_ns / 1000, is_own
