"""The memory of the parts of one call: no result may land on what another part reads or writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradlane._buffers import Buffer
from gradlane.errors import InvalidArgumentError


@dataclass(slots=True)
class Use:
    """What one part of a call does with a buffer."""

    buffer: Buffer
    what: str
    """The buffer in words, for errors, such as `the place for worker 1`."""
    lands: bool
    """Whether a result lands in it."""

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.buffer.address + self.buffer.bytes


def uses_of(source: Buffer, read: str, target: Buffer, written: str) -> list[Use]:
    """The uses by a part that reads one buffer and writes another one, or the same one in place."""
    target_use = Use(target, written, True)
    in_place = (source.address, source.bytes, source.device) == (target.address, target.bytes, target.device)
    return [target_use] if in_place else [Use(source, read, False), target_use]


def check_apart(call: str, uses: Iterable[Use]) -> None:
    """Raises if a result of the call would land on memory that the call also uses otherwise.

    Begun parts cannot be taken back, so this comes before the first one.

    Raises:
        InvalidArgumentError: two buffers overlap (both are named).
    """
    kept = [use for use in uses if use.buffer.bytes]
    kept.sort(key=lambda use: (-1 if use.buffer.device is None else use.buffer.device, use.buffer.address))
    widest: Use | None = None  # of those before, the one that ends last, and the same of those in which results land
    widest_landing: Use | None = None
    for use in kept:
        other = widest if use.lands else widest_landing
        if _reaches(other, use):
            assert other is not None
            raise InvalidArgumentError(
                f"{call}: {other.what} and {use.what} overlap in memory, and a result would land there; give each its own "
                "memory"
            )
        if not _reaches_beyond(widest, use):
            widest = use
        if use.lands and not _reaches_beyond(widest_landing, use):
            widest_landing = use


def _reaches(before: Use | None, use: Use) -> bool:
    """Whether `before` ends behind the begin of `use`."""
    return before is not None and before.buffer.device == use.buffer.device and before.end > use.buffer.address


def _reaches_beyond(before: Use | None, use: Use) -> bool:
    """Whether `before` ends behind the end of `use`."""
    return before is not None and before.buffer.device == use.buffer.device and before.end > use.end
