"""A tar that Perfetto opens as one picture: files of timelines, and a manifest that says how they lie to each other.

The format of the manifest is that of https://perfetto.dev/docs/reference/perfetto-manifest, version 1. One number says how
far a file lies after another one, so the files have times on the clock of all: no number could tell the drift of a clock.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlane._timeline_clock import Times

if TYPE_CHECKING:
    from gradlane._timeline_files import Event, Timeline

MANIFEST = "perfetto_manifest.json"


def write(files: Iterable[tuple[Timeline, list[tuple[Times | None, Event]]]], out: Path) -> None:
    """Writes the files with their events to a tar."""
    # Perfetto drops what lies before the beginning of the file to which others are related.
    ordered = sorted(((file, placed, _begin(placed)) for file, placed in files), key=lambda one: one[2])
    listed: list[dict[str, Any]] = []
    contents: list[tuple[str, bytes]] = []
    for number, (file, placed, begin) in enumerate(ordered):
        path = f"{number}-{_plain(file.title)}.json"
        entry: dict[str, Any] = {"path": path, "machine": {"name": file.machine}}
        if listed:
            entry["clocks"] = {"sync_to": {"file": listed[0]["path"]}, "offset_ns": begin - ordered[0][2]}
        listed.append(entry)
        events = [event if times is None else event | {"ts": (times.start_ns - begin) / 1000} for times, event in placed]
        contents.append((path, json.dumps({"traceEvents": events}).encode()))
    manifest = {"perfetto_manifest": {"version": 1, "files": listed}}
    with tarfile.open(out, "w") as tar:
        for path, content in [(MANIFEST, json.dumps(manifest).encode()), *contents]:
            about = tarfile.TarInfo(path)
            about.size, about.mode = len(content), 0o600
            tar.addfile(about, io.BytesIO(content))


def _begin(placed: list[tuple[Times | None, Event]]) -> int:
    return min((times.start_ns for times, _ in placed if times is not None), default=0)


def _plain(title: str) -> str:
    """A title as a part of a file's name."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in title[:100])
