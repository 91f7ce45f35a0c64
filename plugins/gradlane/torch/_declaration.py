"""In which session the gradients of a wrapper are declared: anew in each, when an elastic job forms again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gradlane import _session


class Declaration:
    """The session in which gradients are declared, as long as their job lasts."""

    def __init__(self) -> None:
        """The caller declares them in the present session; on a newcomer, only the first `renew` does."""
        self._enrolment, self._generation = _session.enrolment(), None if _session.is_newcomer() else _session.generation()
        self._renewing = threading.Lock()

    @property
    def was_made(self) -> bool:
        """Whether they were declared in any session."""
        return self._generation is not None

    @property
    def is_present(self) -> bool:
        """Whether they are declared in the present session."""
        return self._generation == _session.generation()

    def renew(self, declare: Callable[[], None]) -> None:
        """Calls `declare` if the present session is another one of the same job than before."""
        if self.is_present or self._enrolment != _session.enrolment():
            return
        with self._renewing:
            if not self.is_present:  # else a thread of another device has done it
                declare()
                self._generation = _session.generation()
