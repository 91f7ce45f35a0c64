"""Clocks, which keep the workers of a mode together."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Literal, cast

from gradlane import _session, modes
from gradlane._arguments import check_name, check_timeout
from gradlane.errors import FailedPreconditionError, InvalidArgumentError

Fate = Literal["accepted", "kept", "scaled", "discarded_stale", "dropped_late"]
"""What became of a change: it was done; it is kept until its round is closed; it was scaled and done; it was not done,
because it was too stale; or because its round was closed without this worker."""


_SAMPLES_MAX = 2**63 - 1


@dataclass(frozen=True)
class Tick:
    """Where this worker stands after a tick."""

    round: int
    """The round that is finished. If others have closed rounds without this worker, it is the last one of these."""
    step: int
    """The global step: the rounds that were closed, or without those the ticks of all workers."""
    ahead: int
    """How many rounds the slowest worker is behind this one."""
    fate: Fate
    """Whether the round was closed with this worker, `accepted`, or without it, `dropped_late`."""


class Clock:
    """What the workers of a mode tick, each after its changes of a round.

    All workers make one of the same name and mode, and give it to the parameters that follow it. A worker that has ticked
    knows that all values which it reads have the changes of every worker, up to the rounds that its mode promises.
    """

    def __init__(self, name: str, mode: modes.Mode) -> None:
        """
        Args:
            name: equal on all workers.
            mode: one of `gradlane.modes`, equal on all workers.
        Raises:
            InvalidArgumentError: an argument is not what it should be; it is named.
        """
        check_name(name)
        self.name = name
        self.mode = modes.check_mode(mode)
        self._round = 0
        self._step = 0
        self._session: Any = None
        # Two threads that tick at once would tick one round.
        self._ticking = threading.Lock()

    @property
    def round(self) -> int:
        """The rounds that this worker has finished."""
        return self._round

    @property
    def step(self) -> int:
        """The global step, as the last tick has told it."""
        return self._step

    def tick(self, *, samples: int = 1, wait: bool = True, timeout: float | None = None) -> Tick:
        """Finish a round, and wait until this worker may begin the next one.

        Call it when all changes of the round have ended; calls without a handle have. A call that has failed because others
        did not come in time may be repeated: it finishes the same round.

        Args:
            samples: from which this worker's changes of the round were computed. Schedules `by="samples"` follow the sum over
                the workers that close each round; they need a mode with rounds.
            wait: with False, go on although others are too far behind, and look at `ahead`. A mode with rounds always waits.
            timeout: seconds; None takes the job's step timeout, which is also the upper bound.
        Raises:
            TimeoutError: others are too far behind; they are named.
            FailedPreconditionError: more workers are to close a round than there are, or the job in which this clock was
                made has ended.
            MismatchError: another worker's clock of this name has another mode; both are named.
        """
        check_timeout(timeout)
        if not isinstance(wait, bool):
            raise InvalidArgumentError(f"wait={wait!r}; give True or False")
        if isinstance(samples, bool) or not isinstance(samples, int) or not 0 <= samples <= _SAMPLES_MAX:
            raise InvalidArgumentError(f"samples={samples!r}; give an integer of at least 0")
        with self._ticking:
            return self._told((self._round + 1, samples), (wait, False, timeout))

    def leave(self, *, timeout: float | None = None) -> None:
        """Tell that this worker ticks the clock no more: its data is over, and the others wait for it no more.

        Call it behind the last tick, where workers may have different numbers of rounds. A worker that leaves the job leaves its
        clocks too. A round that `Backup` closes with its first workers is closed by those that are left, if these are fewer.

        Args:
            timeout: seconds for the answer; None takes the job's step timeout.
        """
        check_timeout(timeout)
        with self._ticking:
            self._told((self._round, 0), (False, True, timeout))

    def _told(self, round_: tuple[int, int], how: tuple[bool, bool, float | None]) -> Tick:
        told = self.joined().tick((self.name, str(self.mode)), round_, how)
        tick = Tick(told[0], told[1], told[2], cast("Fate", told[3]))
        self._round, self._step = tick.round, tick.step
        return tick

    def stands_at(self, *, is_gradient: bool) -> int:
        """The round to which a gradient belongs, or the one whose changes a value must have; without rounds the global step."""
        if not modes.has_rounds(self.mode):
            return self._step
        return self._round + 1 if is_gradient else self._round

    def joined(self) -> Any:
        """The session whose clock it is, from its first use on."""
        session = _session.session()
        if self._session is None:
            self._session = session
        if self._session is not session:
            raise FailedPreconditionError(f"clock {self.name!r} is of a job that has ended; make another one after init()")
        return session

    def __repr__(self) -> str:
        return f"Clock({self.name!r}, {self.mode!r}, round={self._round})"
