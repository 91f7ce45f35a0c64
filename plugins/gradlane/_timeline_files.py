"""Files of timelines: reads those of gradlane and of other programs, and puts their events on one clock."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradlane._timeline_clock import Clock, Times
from gradlane._timeline_sums import Member, Placed, connect
from gradlane.errors import InvalidArgumentError
from gradlane.timeline import Merged

Event = dict[str, Any]

HEAD = "gradlane_timeline"
"""The event that says of which process a file is, and when the clock of its times began."""
READING = "gradlane_clock"
"""The event that says what the wall clock and the coordinator's clock showed at a time of the file."""
VERSION = 2


class Timeline:
    """A file of events."""

    def __init__(self, path: Path, events: list[Event]) -> None:
        self.path = path
        self.events = events
        self.machine = ""
        """The name of its machine, once clocks are set: no other machine has it."""

    @property
    def title(self) -> str:
        """A name of the file for people."""
        return self.path.stem

    def place(self, ns: int, length: int) -> Times:
        """What began `ns` nanoseconds after the file's zero, and took `length`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Reading:
    """What several clocks showed `at_ns` after the zero of a file, all in nanoseconds."""

    at_ns: int
    unix_ns: int
    """The wall clock of the host."""
    job_ns: int | None
    """The coordinator's clock, if its offset was known."""
    error_ns: int


class Own(Timeline):
    """A file that gradlane wrote. Its times are of one monotonic clock, which nobody sets."""

    def __init__(self, path: Path, events: list[Event], head: Event) -> None:
        super().__init__(path, events)
        about = _arguments(path, head, base_unix_ns=int, version=int)
        # In files of version 1 each event says what it is about.
        if about["version"] not in (1, VERSION):
            raise InvalidArgumentError(
                f"{path} is a timeline of another version of gradlane: {about['version']}, and not {VERSION}"
            )
        _complete(events)
        self.base_ns = about["base_unix_ns"]
        self.host, self.process, self.member = about.get("host"), about.get("process"), str(about.get("member"))
        # Files of one machine have one clock. A file that cannot say which has one of its own.
        self.monotonic, self.zero = about.get("monotonic") or path, about.get("monotonic_ns", 0)
        self.readings = [_reading(path, event) for event in events if event.get("name") == READING]
        # By the wall clock, because times of other programs are looked up by it.
        self._by_wall = sorted(self.readings, key=lambda reading: reading.unix_ns)
        self._walls = [reading.unix_ns for reading in self._by_wall]
        self.clock: Clock | None = None

    @property
    def title(self) -> str:
        return self.member.replace(" ", "-")

    def place(self, ns: int, length: int) -> Times:
        assert self.clock is not None, "clocks are set before events are placed"
        # Both ends, because spans that lie within each other must do so on a clock that runs a little faster.
        start_ns, error_ns = self.clock.place(self.zero + ns)
        end_ns, _ = self.clock.place(self.zero + ns + length)
        return Times(start_ns, end_ns, error_ns)

    def place_wall(self, unix_ns: int, length: int) -> Times:
        """What began at `unix_ns` by the wall clock of this file's host.

        Between two readings somebody may have set the wall clock; the last reading before `unix_ns` counts.
        """
        if not self._by_wall:
            return Times(unix_ns, unix_ns + length, 0)
        reading = self._by_wall[max(bisect.bisect_right(self._walls, unix_ns) - 1, 0)]
        return self.place(reading.at_ns + unix_ns - reading.unix_ns, length)


class Other(Timeline):
    """A file of another program, whose times are those of the wall clock of its host."""

    def __init__(self, path: Path, events: list[Event], base_ns: int, host: object) -> None:
        super().__init__(path, events)
        self.base_ns = base_ns
        self.host = host
        self.beside: Own | None = None

    def find_beside(self, owns: Iterable[Own]) -> None:
        """Looks for the file of gradlane of the same process, or else of the same host."""
        same_host = [own for own in owns if self.host is None or own.host == self.host]
        processes = set(map(_process, self.events))
        same_process = [own for own in same_host if own.process in processes]
        self.beside = next(iter(same_process + (same_host if self.host is not None else [])), None)

    def place(self, ns: int, length: int) -> Times:
        wall_ns = self.base_ns + ns
        if self.beside is None:
            return Times(wall_ns, wall_ns + length, 0)
        return self.beside.place_wall(wall_ns, length)


def set_clocks(owns: list[Own]) -> list[Own]:
    """Gives each file the clock of its machine and its name, and returns those that are placed by their wall clocks."""
    machines: dict[object, list[Own]] = {}
    for own in owns:
        machines.setdefault(own.monotonic, []).append(own)
    by_wall: list[Own] = []
    named: set[str] = set()
    for files in machines.values():
        # Hosts may have the same name, such as containers.
        name = _free_name(str(files[0].host or "machine"), named)
        for file in files:
            file.machine = name
        # All files of a machine have one, so that what happened there keeps its order to the nanosecond.
        readings = [
            (file.zero + reading.at_ns, reading.job_ns - reading.at_ns - file.zero, reading.error_ns)
            for file in files
            for reading in file.readings
            if reading.job_ns is not None
        ]
        if readings:
            clock = Clock(readings)
        else:
            # Without a coordinator's clock the monotonic clock of the machine is the clock of all, from its wall clock on.
            clock = Clock([(files[0].zero, files[0].base_ns - files[0].zero, 0)], drift_ppm=0)
            by_wall += files
        for file in files:
            file.clock = clock
    return by_wall if len(machines) > 1 else []


def read(path: Path) -> Timeline:
    """
    Raises:
        InvalidArgumentError: the file is no timeline.
    """
    # What is no UTF-8 is the half of a character at the end of a file that was cut off.
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        parsed = _parse(text)
    except ValueError as error:
        parsed = _parse_incomplete(text)
        if parsed is None:
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


@dataclass(frozen=True)
class Picture:
    """Several files on one clock."""

    events: list[Event]
    """All of them, with arrows. The first one says when the clock began, and how good the picture is."""
    files: list[tuple[Timeline, list[tuple[Times | None, Event]]]]
    """The events of each file, without arrows, with their times on that clock."""
    merged: Merged


def merge(files: list[Timeline]) -> Picture:
    """All events on one clock, under distinct processes."""
    owns = [file for file in files if isinstance(file, Own)]
    others = [file for file in files if isinstance(file, Other)]
    by_wall: list[Timeline] = [*set_clocks(owns)]
    named = {own.machine for own in owns}
    for other in others:
        other.find_beside(owns)
        if other.beside is None:
            other.machine = str(other.host or _free_name("machine", named))
        else:
            other.machine = other.beside.machine
        if other.beside is None or other.beside in by_wall:
            by_wall.append(other)
    taken: set[object] = set()
    placed: list[tuple[Times | None, Event]] = []
    of_members: list[Placed] = []
    of_files: list[tuple[Timeline, list[tuple[Times | None, Event]]]] = []
    # First, because the processes of others get other numbers.
    for number, file in enumerate([*owns, *others]):
        of_file = list(_place(file, _distinct(file.events, taken), arrows=number << 40))
        if isinstance(file, Own):
            member = Member(file.member, file.machine, knows=file not in by_wall)
            of_members += [Placed(times, event, member) for times, event in of_file]
        of_files.append((file, of_file))
        placed += of_file
    arrows, violations, pairs = connect(of_members)
    placed += [(Times(ns, ns, 0), event) for ns, event in arrows]
    all_times = [times for times, _ in placed if times is not None]
    begins = min((times.start_ns for times in all_times), default=0)
    error = None if by_wall else max((times.error_ns for times in all_times), default=0) / 1e9
    merged = Merged(error, tuple(file.path for file in by_wall), tuple(violations), tuple(pairs))
    about = {"version": VERSION, "base_unix_ns": begins, "error_s": error, "pairs": [asdict(pair) for pair in pairs]}
    events: list[Event] = [{"ph": "M", "pid": 0, "name": HEAD, "args": about}]
    events += [event if times is None else event | {"ts": (times.start_ns - begins) / 1000} for times, event in placed]
    return Picture(events, of_files, merged)


def _complete(events: list[Event]) -> None:
    """Adds to the events of parts what their rows say for all of them."""
    rows: dict[object, Event] = {}
    for event in events:
        about = event.get("args")
        if not isinstance(about, dict):
            continue
        if event.get("name") == "thread_name":
            rows[_row(event)] = {word: about[word] for word in ("tensor", "key", "part", "bytes", "priority", "server") if word in about}
        elif "round" in about:
            event["args"] = rows.get(_row(event), {}) | about


def _free_name(name: str, taken: set[str]) -> str:
    """This name, or with a number if it is in `taken`, to which it is added."""
    names = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
    free = next(name for name in names if name not in taken)
    taken.add(free)
    return free


def _place(file: Timeline, numbers: dict[object, object], *, arrows: int) -> Iterator[tuple[Times | None, Event]]:
    """The events with their times, without those that describe the file."""
    for event in file.events:
        if event.get("name") in (HEAD, READING):
            continue
        moved = dict(event)
        if isinstance(moved.get("args"), dict):
            moved["args"] = dict(moved["args"])
        times = None
        if (ts := _nanoseconds(event.get("ts"))) is not None:
            length = _nanoseconds(event.get("dur"))
            times = file.place(ts, length or 0)
            if length is not None:
                moved["dur"] = (times.end_ns - times.start_ns) / 1000
        if "pid" in event:
            moved["pid"] = numbers[_process(event)]
        # Arrows between events: the numbers of two programs mean different arrows.
        for name in ("id", "bind_id"):
            if isinstance(file, Other) and name in event:
                id = event[name]
                moved[name] = id + arrows if isinstance(id, int) else f"{arrows >> 40}:{id}"
        yield times, moved


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
    return _number(event.get("pid"))


def _row(event: Event) -> object:
    return _process(event), _number(event.get("tid"))


def _number(value: object) -> object:
    # What cannot be the key of a dictionary is the number of no process or thread.
    return value if isinstance(value, (int, float, str)) else None


class _Exact(float):
    """A number that remembers how it is written, because a double rounds times that count from long ago."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> _Exact:
        number = super().__new__(cls, text)
        number.text = text
        return number


def _parse_incomplete(text: str) -> Any:
    """The lines of a file whose writer was killed, or that was cut off while it was copied; None if it is no such file."""
    whole = text.rstrip().rstrip(",")
    for lines in (whole, whole[: whole.rfind("\n") + 1].rstrip().rstrip(",")):
        try:
            return _parse(lines + "]")
        except ValueError:
            pass
    return None


def _parse(text: str) -> Any:
    return json.loads(text, parse_float=_Exact)


def _nanoseconds(micros: object) -> int | None:
    """A time of an event in nanoseconds; None if it is no number."""
    if isinstance(micros, _Exact) and micros - micros == 0:
        return int((Decimal(micros.text) * 1000).to_integral_value())
    return micros * 1000 if isinstance(micros, int) else None


def _reading(path: Path, event: Event) -> Reading:
    about = _arguments(path, event, at_ns=int, unix_ns=int)
    if "job_ns" not in about:
        return Reading(about["at_ns"], about["unix_ns"], None, 0)
    about = _arguments(path, event, job_ns=int, error_ns=int)
    return Reading(about["at_ns"], about["unix_ns"], about["job_ns"], about["error_ns"])


def _arguments(path: Path, event: Event, **kinds: type) -> Event:
    arguments = event.get("args")
    for name, kind in kinds.items():
        if not isinstance(arguments, dict) or not isinstance(arguments.get(name), kind):
            raise InvalidArgumentError(f"{path} is no timeline: its {event.get('name')} has no {name}")
    assert isinstance(arguments, dict)
    return arguments
