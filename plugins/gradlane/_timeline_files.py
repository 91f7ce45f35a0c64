"""Files of timelines: reads those of gradlane and of other programs, and puts their events on one clock."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradlane.errors import InvalidArgumentError

Event = dict[str, Any]

HEAD = "gradlane_timeline"
"""The event that says of which process a file is, and when the clock of its times began."""
READING = "gradlane_clock"
"""The event that says what the wall clock showed at a time of the file."""
VERSION = 1


class Timeline:
    """A file of events. `place` gives a time of the file in nanoseconds since 1970."""

    def __init__(self, path: Path, events: list[Event], base_ns: int) -> None:
        self.path = path
        self.events = events
        self.base_ns = base_ns

    def place(self, ns: int) -> int:
        """The time `ns` nanoseconds after the file's zero."""
        return self.base_ns + ns


class Own(Timeline):
    """A file that gradlane wrote. Its times are of one monotonic clock, which nobody sets."""

    def __init__(self, path: Path, events: list[Event], head: Event) -> None:
        about = _arguments(path, head, base_unix_ns=int, version=int)
        if about["version"] != VERSION:
            raise InvalidArgumentError(
                f"{path} is a timeline of another version of gradlane: {about['version']}, and not {VERSION}"
            )
        super().__init__(path, events, about["base_unix_ns"])
        self.host, self.process = about.get("host"), about.get("process")
        readings = [_arguments(path, event, at_ns=int, unix_ns=int) for event in events if event.get("name") == READING]
        # By the wall clock, because times of other programs are looked up by it.
        self._readings = sorted((reading["unix_ns"], reading["at_ns"]) for reading in readings)

    def place_wall(self, unix_ns: int) -> int:
        """The time of the wall clock of this file's host, as this file's clock counts it.

        Between two readings somebody may have set the wall clock; the last reading before `unix_ns` counts.
        """
        if not self._readings:
            return unix_ns
        index = bisect.bisect_right(self._readings, (unix_ns, 1 << 63))
        wall_ns, at_ns = self._readings[max(index - 1, 0)]
        return self.place(at_ns + unix_ns - wall_ns)


class Other(Timeline):
    """A file of another program, whose times are those of the wall clock of its host."""

    def __init__(self, path: Path, events: list[Event], base_ns: int, host: object) -> None:
        super().__init__(path, events, base_ns)
        self.host = host
        self.beside: Own | None = None

    def find_beside(self, owns: Iterable[Own]) -> None:
        """Looks for the file of gradlane of the same process, or else of the same host."""
        same_host = [own for own in owns if self.host is None or own.host == self.host]
        processes = set(map(_process, self.events))
        same_process = [own for own in same_host if own.process in processes]
        self.beside = next(iter(same_process + (same_host if self.host is not None else [])), None)

    def place(self, ns: int) -> int:
        wall_ns = super().place(ns)
        return wall_ns if self.beside is None else self.beside.place_wall(wall_ns)


def read(path: Path) -> Timeline:
    """
    Raises:
        InvalidArgumentError: the file is no timeline.
    """
    text = path.read_text(encoding="utf-8")
    try:
        parsed = _parse(text)
    except ValueError:
        try:  # a process that was killed left it incomplete
            parsed = _parse(text.rstrip().rstrip(",") + "]")
        except ValueError as error:
            raise InvalidArgumentError(f"{path} is no timeline: {error}") from error
    about = parsed if isinstance(parsed, dict) else {"traceEvents": parsed}
    listed, base_ns = about.get("traceEvents"), about.get("baseTimeNanoseconds", 0)
    if not isinstance(listed, list) or not isinstance(base_ns, int):
        raise InvalidArgumentError(f"{path} is no timeline: it has no list of events")
    events = [event for event in listed if isinstance(event, dict)]
    head = next((event for event in events if event.get("name") == HEAD), None)
    if head is not None:
        return Own(path, events, head)
    return Other(path, events, base_ns, about.get("host_name"))


def merge(files: list[Timeline]) -> list[Event]:
    """All events on one clock, under distinct processes. The first event says when the clock began."""
    owns = [file for file in files if isinstance(file, Own)]
    others = [file for file in files if isinstance(file, Other)]
    for other in others:
        other.find_beside(owns)
    taken: set[object] = set()
    placed: list[tuple[int | None, Event]] = []
    # First, because the processes of others get other numbers.
    for number, file in enumerate([*owns, *others]):
        placed += _place(file, _distinct(file.events, taken), arrows=number << 40)
    begins = min((ns for ns, _ in placed if ns is not None), default=0)
    merged: list[Event] = [
        {"ph": "M", "pid": 0, "name": HEAD, "args": {"version": VERSION, "base_unix_ns": begins}},
    ]
    for ns, event in placed:
        if ns is not None:
            event["ts"] = (ns - begins) / 1000
        merged.append(event)
    return merged


def _place(file: Timeline, numbers: dict[object, object], *, arrows: int) -> Iterator[tuple[int | None, Event]]:
    """The events with their times, without those that describe the file."""
    for event in file.events:
        if event.get("name") in (HEAD, READING):
            continue
        moved = dict(event)
        ns = None
        if (ts := _nanoseconds(event.get("ts"))) is not None:
            ns = file.place(ts)
            if (length := _nanoseconds(event.get("dur"))) is not None:
                # By the clock of the file: the wall clock may be set in the middle.
                moved["dur"] = length / 1000
        if "pid" in event:
            moved["pid"] = numbers[_process(event)]
        # Arrows between events: the numbers of two programs mean different arrows.
        if isinstance(file, Other) and "id" in event:
            moved["id"] = event["id"] + arrows if isinstance(event["id"], int) else f"{arrows >> 40}:{event['id']}"
        yield ns, moved


def _distinct(events: list[Event], taken: set[object]) -> dict[object, object]:
    """A number for each process of a file: another one where its own is in `taken`, to which all are added."""
    own: list[object] = list(dict.fromkeys(map(_process, events)))
    free = itertools.count(_FIRST_FREE)
    numbers: dict[object, object] = {}
    for process in own:
        numbers[process] = process if process not in taken else next(i for i in free if i not in taken and i not in own)
    taken.update(numbers.values())
    return numbers


_FIRST_FREE = 1 << 24
"""Above the process numbers of Linux (at most 2^22), so that a new number looks like none."""


def _process(event: Event) -> object:
    process = event.get("pid")
    # What cannot be the key of a dictionary is no process.
    return process if isinstance(process, (int, float, str)) else None


class _Exact(float):
    """A number that remembers how it is written, because a double rounds times that count from long ago."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> _Exact:
        number = super().__new__(cls, text)
        number.text = text
        return number


def _parse(text: str) -> Any:
    return json.loads(text, parse_float=_Exact)


def _nanoseconds(micros: object) -> int | None:
    """A time of an event in nanoseconds; None if it is no number."""
    if isinstance(micros, _Exact) and micros - micros == 0:
        return int((Decimal(micros.text) * 1000).to_integral_value())
    return micros * 1000 if isinstance(micros, int) else None


def _arguments(path: Path, event: Event, **kinds: type) -> Event:
    arguments = event.get("args")
    for name, kind in kinds.items():
        if not isinstance(arguments, dict) or not isinstance(arguments.get(name), kind):
            raise InvalidArgumentError(f"{path} is no timeline: its {event.get('name')} has no {name}")
    assert isinstance(arguments, dict)
    return arguments
