"""The calls of a training that `run` makes, and the boundaries between its steps."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from gradlane import _session, barrier, elastic
from gradlane._objects import gather_by_rank
from gradlane.compat.horovod.common.exceptions import HostsUpdatedInterrupt
from gradlane.compat.horovod.torch.elastic.state import State
from gradlane.errors import Error, RootLostError


class Left(HostsUpdatedInterrupt):
    """This worker has left the job, as it was told."""


class Loop:
    """The steps of one `run`."""

    def __init__(self, state: State) -> None:
        """Trains with this state."""
        self._state = state
        self._shared = _Shared(self)
        self._steps = elastic.Steps(self._shared)
        self._has_begun = self._has_gone_back = self._has_changed = False
        self._commits = 0
        self._commits_at_failure = -1

    def enter(self) -> None:
        """Makes the state equal on all workers before the training is called.

        Raises:
            Left: there is nothing to call any more.
        """
        if not self._has_begun:
            is_newcomer = _session.is_newcomer()
            if not is_newcomer:
                self._state.sync()
            self._begin_step()
            self._has_begun = True
            if is_newcomer:
                self._has_changed = True
                self._state.save()
        elif self._has_gone_back:
            self._hear_of_loss()
        self._has_gone_back = False
        if self._has_changed:
            self._has_changed = False
            self._state.follow_change()

    def cross(self) -> None:
        """A commit: one step ends, and the next one begins.

        Raises:
            HostsUpdatedInterrupt: with other workers.
            Left: without this one.
        """
        self._commits += 1
        self._steps.end()
        self._begin_step()
        if self._has_changed:
            raise HostsUpdatedInterrupt(skip_sync=True)

    def interrupted(self, interrupt: HostsUpdatedInterrupt) -> None:
        """The training ended by this exception. That of a commit needs no sync, which a script's own may need."""
        if not interrupt.skip_sync:
            self._state.sync()

    def go_back(self, error: Error) -> None:
        """Brings back the state of the last commit, if the training failed because a worker was lost.

        Raises:
            Error: `error` itself, if it would come again: it has another reason, or came twice behind one commit.
        """
        # An error of the common class is one that a script has raised.
        may_pass = isinstance(error, RootLostError) or type(error) is Error
        if not (may_pass and self._has_begun and _session.is_initialized()) or self._commits == self._commits_at_failure:
            raise error
        self._commits_at_failure = self._commits
        self._state.restore()
        self._has_gone_back = True

    def changed(self) -> None:
        """Other workers train from now on. Newcomers get the state behind this call."""
        self._has_changed = True
        self._state.on_reset()
        self._shared.fill(self._state.values_to_send())

    def _hear_of_loss(self) -> None:
        """Comes to boundaries until all workers have heard of the loss for which they have gone back."""
        while True:
            # Behind it, each worker has every message that the coordinator had sent before. A step waits for none.
            barrier("horovod.elastic")
            formed = _session.session().times_formed
            self._steps.end()
            self._begin_step()
            if _session.session().times_formed > formed:
                return  # with those that the job has, of which newcomers make no call of this loop
            has_heard = set(elastic.world().ranks) <= set(_session.ranks())
            if all(gather_by_rank(has_heard, "horovod.elastic.heard", plain=True).values()):
                return

    def _begin_step(self) -> None:
        self._shared.fill(self._state.values_to_send())
        if not self._steps.begin():
            raise Left()
        self._state.take(self._shared.values())

    def __enter__(self) -> Loop:
        self._state._cross = self.cross
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del self._state._cross
        self._steps.rest()


class _Shared(elastic.State):
    """The values of a state of Horovod, as `gradlane.elastic` sends them. What else it needs is in slots, and not sent."""

    __slots__ = ("_loop", "_names")

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop
        self._names: dict[str, str] = {}

    def fill(self, values: Mapping[str, Any]) -> None:
        """Takes these values, by other names where our own state has a meaning for one."""
        self._names = {f"{name}_" if name == "step" else name: name for name in values}
        vars(self).update({ours: values[name] for ours, name in self._names.items()})

    def values(self) -> dict[str, Any]:
        """The values as they are now."""
        return {name: vars(self)[ours] for ours, name in self._names.items()}

    def _changed(self, before: elastic.World, after: elastic.World) -> None:
        self._loop.changed()
