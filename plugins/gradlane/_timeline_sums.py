"""What the timelines of workers and servers say about one sum, or one use of a parameter or a table: names, arrows, and what cannot have been."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gradlane._timeline_clock import Times
from gradlane.timeline import Pair, Violation

Event = dict[str, Any]
Key = tuple[str, int, int, str | None]
"""The key of a tensor, the part, the round, and what is used: one sum, or of each worker one use. The use of a residual has the round of the
next sum, and says `residual`."""

VIOLATIONS_MAX = 100


@dataclass(frozen=True)
class Member:
    """Whose file an event is from."""

    name: str
    """Such as `worker 3`."""
    machine: str
    knows: bool
    """Whether its file knows the clock of all, and how wrong it may be."""


@dataclass(frozen=True)
class Placed:
    """An event, and its times on the clock of all. What describes a row or a process has none."""

    times: Times | None
    event: Event
    of: Member

    @property
    def member(self) -> str:
        return self.of.name

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
        use = "residual" if args.get("use") == "residual" else None
        return (key, part, round, use) if is_one else None  # type: ignore[return-value]


@dataclass
class _Sum:
    """The events of one sum: those of workers by member, those of servers by member and name."""

    pushes: dict[str, Placed] = field(default_factory=dict)
    pulls: dict[str, Placed] = field(default_factory=dict)
    spans: dict[tuple[str, str], Placed] = field(default_factory=dict)
    first_bytes: dict[str, Placed] = field(default_factory=dict)
    last_bytes: dict[str, Placed] = field(default_factory=dict)
    uses: dict[str, Placed] = field(default_factory=dict)
    """By worker, as the answers to them."""
    answers: dict[str, Placed] = field(default_factory=dict)

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
        elif is_server and name == "USE" and args.get("outcome") == "answered":
            # A worker that lost its connection asks again.
            self.uses.setdefault(_only(args), placed)
        elif is_server and name == "ANSWER":
            self.answers[_only(args)] = placed
        elif not is_server and name == "PUSH":
            self.pushes.setdefault(placed.member, placed)
        elif not is_server and name == "PULL" and args.get("outcome") == "done":
            self.pulls[placed.member] = placed


def connect(placed: Iterable[Placed]) -> tuple[list[tuple[int, Event]], list[Violation], list[Pair]]:
    """Arrows from each PUSH to its SUM or USE and from each SEND or ANSWER to the end of its PULL, and the violations of causality: the
    worst, and counts.

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
    orders = [order for sum in sums.values() for order in _orders(sum)]
    for sum in sums.values():
        _connect(sum, arrows)
    worst = heapq.nlargest(VIOLATIONS_MAX, (order for order in orders if order.is_wrong), key=lambda order: order.wrong_ns)
    return arrows, [order.violation() for order in worst], _pairs(orders)


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
                _pull(arrows, span, pull)
    for worker, push in sum.pushes.items():
        if use := sum.uses.get(worker):
            _arrow(arrows, "push", (push.start_ns, push.event), (use.start_ns, use.event))
    for worker, pull in sum.pulls.items():
        if answer := sum.answers.get(worker):
            _pull(arrows, answer, pull)


def _pull(arrows: list[tuple[int, Event]], span: Placed, pull: Placed) -> None:
    # Inside of the span, because an arrow ends at what is there at its time. Perfetto lets it lead from what begins first to what begins
    # later, and a PULL begins before its SEND; so it ends at a moment of its own.
    arrived_ns = max(pull.end_ns - 1, pull.start_ns)
    place = {"pid": pull.event["pid"], "tid": pull.event["tid"]}
    arrows.append((arrived_ns, {"ph": "i", "s": "t", "cat": "task", "name": "ARRIVED", **place}))
    _arrow(arrows, "pull", (span.start_ns, span.event), (arrived_ns, pull.event))


def _only(args: Event) -> str:
    """The worker of a use."""
    workers = args.get("workers")
    return f"worker {workers[0]}" if isinstance(workers, list) and workers else ""


def _arrow(arrows: list[tuple[int, Event]], name: str, start: tuple[int, Event], end: tuple[int, Event]) -> None:
    # Below the numbers of other programs' arrows.
    about = {"cat": "gradlane", "name": name, "id": len(arrows) + 1}
    for (ns, event), phase in ((start, {"ph": "s"}), (end, {"ph": "f", "bp": "e"})):
        arrows.append((ns, {**phase, **about, "pid": event["pid"], "tid": event["tid"]}))


@dataclass(frozen=True)
class _Order:
    """Two events of which the cause cannot come after the effect: one of a worker, and one of a server."""

    of_worker: Placed
    of_server: Placed
    wrong_ns: int
    """How much later the cause came by the clock of all; negative if it came before."""
    what: str
    """What it means if the cause came later."""

    @property
    def error_ns(self) -> int:
        """How far the clocks of both may be apart. The files of one machine have one clock."""
        times = self.of_worker.times, self.of_server.times
        if self.of_worker.of.machine == self.of_server.of.machine or not self.is_known:
            return 0
        return sum(time.error_ns for time in times if time is not None)

    @property
    def is_known(self) -> bool:
        is_one = self.of_worker.of.machine == self.of_server.of.machine
        return is_one or (self.of_worker.of.knows and self.of_server.of.knows)

    @property
    def is_wrong(self) -> bool:
        return self.wrong_ns > self.error_ns

    def violation(self) -> Violation:
        args = self.of_worker.event["args"]
        tensor, part, number = args.get("tensor"), args["part"], args["round"]
        return Violation(f"tensor {tensor}, part {part}, round {number}: {self.what}", self.wrong_ns / 1e9)


def _orders(sum: _Sum) -> Iterable[_Order]:
    for worker, push in sum.pushes.items():
        first = sum.first_bytes.get(worker)
        if first is not None:
            what = f"{first.member} had the first byte of {worker} before its PUSH began"
            yield _Order(push, first, push.start_ns - first.start_ns, what)
    for (server, name), span in sum.spans.items():
        if name == "SUM":
            for worker, pull in sum.pulls.items():
                what = f"the PULL of {worker} ended before {server} had the whole sum"
                yield _Order(pull, span, span.end_ns - pull.end_ns, what)
    for worker, push in sum.pushes.items():
        if use := sum.uses.get(worker):
            what = f"{use.member} had the use of {worker} before its PUSH began"
            yield _Order(push, use, push.start_ns - use.start_ns, what)
    for worker, pull in sum.pulls.items():
        if use := sum.uses.get(worker):
            what = f"the PULL of {worker} ended before {use.member} began to answer"
            yield _Order(pull, use, use.end_ns - pull.end_ns, what)


def _pairs(orders: Iterable[_Order]) -> list[Pair]:
    """Counts for each two machines, the worst first."""
    by_machines: dict[tuple[str, str], list[_Order]] = {}
    for order in orders:
        by_machines.setdefault((order.of_worker.of.machine, order.of_server.of.machine), []).append(order)
    pairs = []
    for (worker, server), both in by_machines.items():
        wrong = [order.wrong_ns for order in both if order.is_wrong]
        error = max(order.error_ns for order in both) / 1e9 if all(order.is_known for order in both) else None
        pairs.append(Pair(worker, server, len(both), len(wrong), max(wrong, default=0) / 1e9, error))
    return sorted(pairs, key=lambda pair: (-pair.worst, pair.worker, pair.server))
