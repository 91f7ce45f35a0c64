"""What the timelines of workers and servers say about one sum: names, arrows, and what cannot have been."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gradlane._timeline_clock import Times
from gradlane.timeline import Violation

Event = dict[str, Any]
Key = tuple[str, int, int]
"""The key of a tensor, the part, and the round: one sum."""

VIOLATIONS_MAX = 100


@dataclass(frozen=True)
class Placed:
    """An event, and its times on the clock of all. What describes a row or a process has none."""

    times: Times | None
    event: Event
    member: str
    """Whose file it is from, such as `worker 3`."""

    @property
    def start_ns(self) -> int:
        assert self.times is not None, "events of sums have times"
        return self.times.start_ns

    @property
    def end_ns(self) -> int:
        assert self.times is not None, "events of sums have times"
        return self.times.end_ns

    def sum(self) -> Key | None:
        """The sum that it is about."""
        args = self.event.get("args")
        if self.times is None or not isinstance(args, dict):
            return None
        key, part, round = args.get("key"), args.get("part"), args.get("round")
        is_one = isinstance(key, str) and isinstance(part, int) and isinstance(round, int)
        return (key, part, round) if is_one else None  # type: ignore[return-value]


@dataclass
class _Sum:
    """The events of one sum: those of workers by member, those of servers by member and name."""

    pushes: dict[str, Placed] = field(default_factory=dict)
    pulls: dict[str, Placed] = field(default_factory=dict)
    spans: dict[tuple[str, str], Placed] = field(default_factory=dict)
    first_bytes: dict[str, Placed] = field(default_factory=dict)
    last_bytes: dict[str, Placed] = field(default_factory=dict)

    def add(self, placed: Placed) -> None:
        name, args = placed.event.get("name"), placed.event["args"]
        is_server = placed.member.startswith("server ")
        if is_server and name in ("SUM", "SEND") and args.get("outcome") != "given up":
            # A sum is sent once more to a worker that lost its connection.
            self.spans.setdefault((placed.member, str(name)), placed)
        elif is_server and name in ("FIRST BYTE", "LAST BYTE"):
            of = self.first_bytes if name == "FIRST BYTE" else self.last_bytes
            # A worker that repeats its contribution sends the rest of it.
            if name == "LAST BYTE" or f"worker {args.get('worker')}" not in of:
                of[f"worker {args.get('worker')}"] = placed
        elif not is_server and name == "PUSH":
            self.pushes.setdefault(placed.member, placed)
        elif not is_server and name == "PULL" and args.get("outcome") == "done":
            self.pulls[placed.member] = placed


def connect(placed: Iterable[Placed]) -> tuple[list[tuple[int, Event]], list[Violation]]:
    """Arrows from each PUSH to its SUM and from each SEND to its PULL, and the worst violations of causality.

    Names the rows of servers by the tensors, which only workers know.
    """
    sums: dict[Key, _Sum] = {}
    names: dict[tuple[object, object], str] = {}
    unnamed: list[Event] = []
    for one in placed:
        key = one.sum()
        if key is not None:
            sums.setdefault(key, _Sum()).add(one)
        elif one.event.get("name") == "thread_name" and isinstance(one.event.get("args"), dict):
            args = one.event["args"]
            if "tensors" in args:
                names[args.get("key"), args.get("part")] = args.get("name")
            elif "what" in args:
                unnamed.append(args)
    for args in unnamed:
        if name := names.get((args.get("key"), args.get("part"))):
            args["name"] = f"{name}{args['what']}"
    arrows: list[tuple[int, Event]] = []
    violations: list[Violation] = []
    for sum in sums.values():
        _connect(sum, arrows)
        violations += _violations(sum)
    violations.sort(key=lambda violation: -violation.seconds)
    return arrows, violations[:VIOLATIONS_MAX]


def _connect(sum: _Sum, arrows: list[tuple[int, Event]]) -> None:
    for (server, name), span in sum.spans.items():
        of_server = span.event
        if name == "SUM":
            for worker, push in sum.pushes.items():
                last = sum.last_bytes.get(worker)
                if last is not None and last.member == server:
                    _arrow(arrows, "push", (push.start_ns, push.event), (last.start_ns, of_server))
        else:
            for pull in sum.pulls.values():
                # Inside of the span, because an arrow ends at what is there at its time.
                _arrow(arrows, "pull", (span.start_ns, of_server), (max(pull.end_ns - 1, pull.start_ns), pull.event))


def _arrow(arrows: list[tuple[int, Event]], name: str, start: tuple[int, Event], end: tuple[int, Event]) -> None:
    # Below the numbers of other programs' arrows.
    about = {"cat": "gradlane", "name": name, "id": len(arrows) // 2 + 1}
    for (ns, event), phase in ((start, {"ph": "s"}), (end, {"ph": "f", "bp": "e"})):
        arrows.append((ns, {**phase, **about, "pid": event["pid"], "tid": event["tid"]}))


def _violations(sum: _Sum) -> Iterable[Violation]:
    for worker, push in sum.pushes.items():
        first = sum.first_bytes.get(worker)
        if first is not None and first.start_ns < push.start_ns:
            what = f"{first.member} had the first byte of {worker} before its PUSH began"
            yield _violation(what, push, push.start_ns - first.start_ns)
    for (server, name), span in sum.spans.items():
        if name == "SUM":
            for worker, pull in sum.pulls.items():
                if pull.end_ns < span.end_ns:
                    what = f"the PULL of {worker} ended before {server} had the whole sum"
                    yield _violation(what, pull, span.end_ns - pull.end_ns)


def _violation(what: str, of_worker: Placed, ns: int) -> Violation:
    args = of_worker.event["args"]
    tensor, part, number = args.get("tensor"), args["part"], args["round"]
    return Violation(f"tensor {tensor}, part {part}, round {number}: {what}", ns / 1e9)
