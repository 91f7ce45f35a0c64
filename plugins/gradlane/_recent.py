"""Names of calls that are told apart by what they carry, such as a length.

A name fixes a shape, and a job has 65,536 names at a time. Calls without a name of the user's, and calls of one name
whose shape changes, would use them up. So these names end. No name comes twice: therefore no call waits until an
earlier one has ended. Names end while the program goes on, once their operations have ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from gradlane import _session
from gradlane._sets import ProcessSet, name_in_job
from gradlane.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from gradlane import _core
    from gradlane._handle import Handle, Several

T = TypeVar("T")

Parts = Callable[[str], Sequence[str]]
"""The names of an operation's tensors, from the operation's own name."""


@dataclass
class _Name:
    """A name in use."""

    present: str
    in_job: list[str]
    """The names of its tensors in the job."""
    last: _core.Handle | Several | None = None
    """Its latest operation; None if there is none, or the engine had nothing to do."""
    beginning: int = 0
    """How many operations begin at this moment."""

    def has_ended(self) -> bool:
        """Whether no operation uses it."""
        return self.beginning == 0 and (self.last is None or self.last.poll())


@dataclass
class _Leaving:
    """Names that are used no more, until they are undeclared."""

    names: list[_Name] = field(default_factory=list)

    def sweep(self) -> None:
        """Undeclares those whose operations have ended."""
        if self.names:
            ended: list[_Name] = []
            kept: list[_Name] = []
            for name in self.names:
                (ended if name.has_ended() else kept).append(name)
            self.names = kept + _undeclare(ended)


class _OfJob:
    """What names of one job have in common: they have ended with their job, and then everything starts again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = _session.generation()
        self._leaving = _Leaving()

    def _renew(self) -> bool:
        """Forgets the names of an earlier job; whether there may be some. Called with the lock."""
        if self._generation == _session.generation():
            return False
        self._generation, self._leaving = _session.generation(), _Leaving()
        return True


class RecentNames(_OfJob):
    """The names of a sequence of calls, which all members make in the same order. The least recently used ones end.

    Because the order is the same, the same names end on all members, and nothing has to be agreed on.
    """

    def __init__(self, most: int) -> None:
        """Keeps at most `most` names."""
        super().__init__()
        self._most = most
        self._names: dict[str, _Name] = {}
        self._turns = 0

    def begin(
        self,
        key: str,
        submit: Callable[[str], Handle[T]],
        *,
        members: ProcessSet | None = None,
        parts: Parts | None = None,
    ) -> Handle[T]:
        """Begins an operation by `submit`, which is called with the present name for `key`.

        Args:
            key: what tells calls apart, and the first name.
            members: the workers whose names `submit` uses; all by default.
            parts: the names that `submit` gives to tensors; the name itself by default.
        """
        with self._lock:
            if self._renew():
                self._names, self._turns = {}, 0
            name = self._names.pop(key, None)
            if name is None:
                name = _named(f"{key}#{self._turns}" if self._turns else key, members, parts)
            self._names[key] = name  # the last one is the one used last
            if len(self._names) > self._most:
                self._turns += 1
                oldest = list(self._names)[: 1 + self._most // 8]
                self._leaving.names += [self._names.pop(old) for old in oldest]
            self._leaving.sweep()
            name.beginning += 1
        return _begin(name, submit, self._lock)

    def restart(self) -> None:
        """Begins anew, where members that have made other calls come together. The names of earlier calls end."""
        with self._lock:
            if not self._renew():
                self._leaving.names += self._names.values()
            self._names, self._turns = {}, 0
            self._leaving.sweep()


class ChangingNames(_OfJob):
    """Names of the user's, which may be used again for another kind of tensor. Then the name for the earlier kind ends.

    All members must use a name for the same kinds in the same order. Calls with different names may come in any order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, tuple[object, int, _Name]] = {}

    def begin(
        self,
        key: str,
        kind: object,
        submit: Callable[[str], Handle[T]],
        *,
        members: ProcessSet | None = None,
        parts: Parts | None = None,
    ) -> Handle[T]:
        """Begins an operation on a tensor of this kind by `submit`; for the other arguments see `RecentNames.begin`."""
        in_job = name_in_job(key, members)
        with self._lock:
            if self._renew():
                self._names = {}
            before, version, name = self._names.get(in_job, (kind, 0, None))
            if name is None or before != kind:
                if name is not None:
                    version += 1
                    self._leaving.names.append(name)
                name = _named(f"{key}#{version}" if version else key, members, parts)
                self._names[in_job] = kind, version, name
            self._leaving.sweep()
            name.beginning += 1
        return _begin(name, submit, self._lock)


class PassingNames(_OfJob):
    """Names that are used for one operation each."""

    def begin(self, name: str, submit: Callable[[str], Handle[T]], *, members: ProcessSet | None = None) -> Handle[T]:
        """Begins the one operation with this name by `submit`; the other arguments are those of `RecentNames.begin`."""
        with self._lock:
            self._renew()
            self._leaving.sweep()
            used = _named(name, members, None)
            used.beginning += 1
            self._leaving.names.append(used)
        return _begin(used, submit, self._lock)


def _named(present: str, members: ProcessSet | None, parts: Parts | None) -> _Name:
    tensors = [present] if parts is None else parts(present)
    return _Name(present, [name_in_job(tensor, members) for tensor in tensors])


def _begin(name: _Name, submit: Callable[[str], Handle[T]], lock: threading.Lock) -> Handle[T]:
    try:
        handle = submit(name.present)
        name.last = handle.native
        return handle
    finally:
        with lock:
            name.beginning -= 1


def _undeclare(names: Sequence[_Name]) -> list[_Name]:
    """Undeclares names, and returns those that cannot end yet."""
    names = [name for name in names if name.in_job]
    if not names:
        return []
    session = _session.session()
    try:
        session.undeclare([tensor for name in names for tensor in name.in_job], None)
    except (FailedPreconditionError, InvalidArgumentError) as error:
        if len(names) > 1:
            return [late for name in names for late in _undeclare([name])]
        if isinstance(error, FailedPreconditionError):
            return list(names)
        # An operation failed before all of its tensors were declared.
        for tensor in names[0].in_job:
            with contextlib.suppress(FailedPreconditionError, InvalidArgumentError):
                session.undeclare([tensor], None)
    return []
