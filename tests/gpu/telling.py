"""What a check tells: its workers add records to a file, and the runner reads them, also after a crash."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

PASS, FAIL, SKIP, FIGURE = "PASS", "FAIL", "SKIP", "FIGURE"
"""The kinds of records."""

_running = ""
"""The check that this worker runs now."""


def begin(check: str) -> None:
    """Says which check the records from now on belong to."""
    global _running
    _running = check


def passed(statement: str) -> None:
    """The statement was tried and it held. Rank 0 tells it for all, because a worker that fails tells so itself."""
    if _is_first():
        tell(PASS, text=statement)


def skipped(reason: str) -> None:
    """A part of the check cannot be tried here, for this reason."""
    if _is_first():
        tell(SKIP, text=reason)


def failed(text: str) -> None:
    """Something is wrong; any rank may tell so, and the check goes on."""
    tell(FAIL, text=text)


def figure(
    name: str, value: float, unit: str = "", *, at_least: float | None = None, at_most: float | None = None
) -> None:
    """A measurement, and what it should be on a GPU; only `--targets` makes a failure of a target that is missed."""
    if not _is_first():
        return
    record: dict[str, Any] = {"name": name, "value": value, "unit": unit}
    if at_least is not None:
        record |= {"at_least": at_least, "is_met": value >= at_least}
    if at_most is not None:
        record |= {"at_most": at_most, "is_met": value <= at_most}
    tell(FIGURE, **record)


def tell(kind: str, **fields: Any) -> None:
    """Appends a record, in one call so that those of several workers do not mix."""
    line = json.dumps({"check": _running, "kind": kind, **fields}) + "\n"
    records = os.open(Path(os.environ["GPU_CHECK_SCRATCH"], "records"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(records, line.encode())
    finally:
        os.close(records)


def read(scratch: Path) -> list[dict[str, Any]]:
    """All records of a launch, in the order in which they were told."""
    records = scratch / "records"
    return [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []


def text_of(record: dict[str, Any]) -> str:
    """A record as a person reads it."""
    if record["kind"] != FIGURE:
        return str(record["text"])
    value = f"{record['value']:.4g} {record['unit']}".rstrip()
    for word, target in (("at least", record.get("at_least")), ("at most", record.get("at_most"))):
        if target is not None:
            value += f" (target: {word} {target:g}{'' if record['is_met'] else ', missed'})"
    return f"{record['name']}: {value}"


def _is_first() -> bool:
    # Not imported here: the runner reads records too, and has no need of the package.
    package = sys.modules.get("gradlane")
    return package is None or not package.is_initialized() or package.rank() == 0
