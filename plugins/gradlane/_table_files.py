"""Snapshots of tables: full ones and deltas, in files that other tools read (safetensors).

A directory has the snapshots of one table: `snapshot-1`, `snapshot-2`, and `latest`, which names the newest whole one. Each is a
directory of files of rows (`ids`, `touched`, `score`, `rows`, and `state`: what the rule keeps), of files of removed ids, and of
`manifest.json`, which has a checksum of every file and of itself. A delta names its base and the base's checksum. A snapshot gets
its name when all of it is on the disk, so one that was broken off does not exist.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlane import _safetensors
from gradlane._table_changes import Changed, TableVersion, arrays, joined
from gradlane.errors import (
    CorruptCheckpointError,
    Error,
    FailedPreconditionError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from gradlane.tables import Table

FORMAT = 1
FILE_BYTES = 64 << 20
"""Bytes of rows behind which a file ends; one page more is the most that it has."""
RESTORE_BYTES = 16 << 20
"""Bytes of rows that are put back in one use."""
_NAME = re.compile(r"snapshot-([1-9][0-9]*)")


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a table that is whole."""

    number: int
    """Those of one directory count from 1."""
    directory: Path
    """Its own directory."""
    base: int | None
    """The snapshot whose changes it has; None of a full one."""
    rows: int
    """The rows that it has; of a delta, those that have changed."""
    gone: int
    """Of a delta: ids whose rows were removed."""
    bytes: int
    """The bytes of its files."""
    version: TableVersion
    """The version of the table that it is."""


@dataclass(frozen=True)
class _Found:
    """A snapshot, as its manifest says."""

    about: dict[str, Any]
    crc: int
    snapshot: Snapshot


def save(table: Table, path: str | os.PathLike[str], delta: bool, keep: int | None, timeout: float | None) -> Snapshot:
    """Saves a table; `Table.save` says how."""
    directory = _directory(path)
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise InvalidArgumentError(f"keep={keep!r}; give a number of snapshots, at least 1, or None for all")
    with _disk(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with _only_saver(directory):
        return _save(table, directory, delta, keep, timeout)


@contextlib.contextmanager
def _only_saver(directory: Path) -> Iterator[None]:
    """Keeps others from saving to the directory. The end of a process ends it too."""
    import fcntl

    with _disk(directory):
        lock = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedPreconditionError(f"another one saves to {directory}; one worker saves for all") from None
        except OSError:
            # Some file systems know no locks.
            pass
        yield
    finally:
        os.close(lock)


def _save(table: Table, directory: Path, delta: bool, keep: int | None, timeout: float | None) -> Snapshot:
    base = _base(table, directory) if delta else None
    with _disk(directory):
        for left in directory.glob(".partial-*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    if base is None:
        _check_owner(table, directory)
    number = max(_numbers(directory), default=0) + 1
    partial = directory / f".partial-snapshot-{number}"
    try:
        with _disk(directory):
            partial.mkdir()
            about = _write(table, partial, number, base, timeout)
            written = _write_manifest(partial, about)
            whole = directory / f"snapshot-{number}"
            os.rename(partial, whole)
            _safetensors.sync_directory(directory)
            _safetensors.write_whole(directory / "latest", lambda file: file.write(whole.name.encode()))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if keep is not None:
        _remove_old(directory, keep)
    return _snapshot(whole, about, written)


def load(table: Table, path: str | os.PathLike[str], number: int | None, timeout: float | None) -> Snapshot:
    """Loads a table; `Table.load` says how."""
    chain = _chain(_directory(path), number)
    for found in chain:
        about = found.about
        theirs = (about["table"], about["dim"], about["row_len"], _rule_of(about["text"]), _dtype_of(about["text"]))
        if theirs != (table.name, table.dim, table._row_len, _rule_of(table._text), _dtype_of(table._text)):
            raise FailedPreconditionError(
                f"{found.snapshot.directory} is of table {about['table']!r} with {about['text']!r}, and this is table {table.name!r} with "
                f"{table._text!r}; make the table with the name, the dim, the dtype and the kind of rule with which it was saved"
            )
    # All of it is checked before the first row is sent.
    for found in chain:
        for _ in _contents(found):
            pass
    table.clear(timeout=timeout)
    numpy = arrays()
    for found in chain:
        for kind, content in _contents(found):
            if kind == "gone":
                ids = content["ids"]
                marks = numpy.zeros(len(ids), [("touched", "<u4"), ("score", "<f4")])
                marks["score"] = numpy.nan
                numbers = numpy.broadcast_to(numpy.zeros(1, numpy.float32), (len(ids), table._row_len))
            else:
                ids = content["ids"]
                marks = numpy.empty(len(ids), [("touched", "<u4"), ("score", "<f4")])
                marks["touched"], marks["score"] = content["touched"], content["score"]
                numbers = numpy.concatenate([content["rows"], content["state"]], axis=1)
            _put_back(table, ids, marks, numbers, timeout)
    last = chain[-1]
    table._go_on_from(max(found.about["step"] for found in chain))
    return last.snapshot


def export(path: str | os.PathLike[str], file: str | os.PathLike[str], number: int | None = None) -> None:
    """Writes the table of a snapshot to one file; `gradlane.tables.export` says how."""
    numpy = arrays()
    target = Path(os.fspath(file))
    write = _writer_of(target)
    chain = _chain(_directory(path), number)
    dim = chain[0].about["dim"]
    ids, rows = numpy.empty(0, numpy.int64), numpy.empty((0, dim), numpy.float32)
    for found in chain:
        contents = list(_contents(found))
        news = [content for kind, content in contents if kind == "rows"]
        replaced = [content["ids"] for _, content in contents]
        if len(ids) and replaced:
            stays = ~numpy.isin(ids, numpy.concatenate(replaced))
            ids, rows = ids[stays], rows[stays]
        ids = numpy.concatenate([ids, *(content["ids"] for content in news)])
        rows = numpy.concatenate([rows, *(content["rows"] for content in news)])
    order = numpy.argsort(ids, kind="stable")
    ids, rows = numpy.ascontiguousarray(ids[order]), numpy.ascontiguousarray(rows[order])
    last = chain[-1]
    about = {"table": last.about["table"], "text": last.about["text"], "snapshot": last.snapshot.directory.name}
    with _disk(target):
        _safetensors.write_whole(target, lambda out: write(out, ids, rows, about))


def _write(table: Table, partial: Path, number: int, base: _Found | None, timeout: float | None) -> dict[str, Any]:
    """Writes the files of a snapshot, and says what they are."""
    since = None if base is None else base.snapshot.version
    files: list[dict[str, Any]] = []
    waiting: list[Changed] = []
    totals = {"rows": 0, "gone": 0, "step": 0 if base is None else base.about["step"]}
    version: TableVersion | None = None

    def put(kind: str, content: dict[str, Any]) -> None:
        name = f"{kind}-{sum(file['kind'] == kind for file in files) + 1}.safetensors"
        file_at = partial / name
        _safetensors.write_whole(file_at, lambda file: _safetensors.write(file, content, {"table": table.name, "format": str(FORMAT)}))
        data = file_at.read_bytes()
        files.append({"name": name, "kind": kind, "bytes": len(data), "crc32": zlib.crc32(data), "rows": len(content["ids"])})
        totals[kind] += len(content["ids"])

    def flush() -> None:
        if not waiting:
            return
        page = joined(waiting)
        waiting.clear()
        if len(page.gone):
            put("gone", {"ids": page.gone})
        if len(page.ids):
            assert page.state is not None
            of = page.state
            totals["step"] = max(totals["step"], int(of.touched.max()))
            numpy = arrays()
            content = {"ids": page.ids, "touched": of.touched, "score": of.score, "rows": page.rows, "state": of.numbers}
            put("rows", {name: numpy.ascontiguousarray(array) for name, array in content.items()})

    size = 0
    for page in table.changed_pages(since, state=True, timeout=timeout):
        version = page.version
        waiting.append(page)
        size += len(page.ids) * (16 + 4 * table._row_len) + 8 * len(page.gone)
        if size >= FILE_BYTES:
            flush()
            size = 0
    flush()
    return {
        "format": FORMAT,
        "snapshot": number,
        "table": table.name,
        "text": table._text,
        "dim": table.dim,
        "row_len": table._row_len,
        "base": None if base is None else base.snapshot.number,
        "base_crc32": None if base is None else base.crc,
        "version": str(version),
        **totals,
        "files": files,
    }


def _write_manifest(partial: Path, about: dict[str, Any]) -> int:
    text = json.dumps({"crc32": zlib.crc32(_canonical(about)), "about": about}, indent=1).encode()
    _safetensors.write_whole(partial / "manifest.json", lambda file: file.write(text))
    return len(text)


def _rule_of(text: str) -> str:
    """The name of the rule in the text of a table."""
    return text.partition(";")[0].partition(":")[0]


def _dtype_of(text: str) -> str:
    """The setting of a table's text that says how servers keep rows."""
    settings = (setting.partition("=") for setting in text.partition(";")[2].split(","))
    return next((value for name, _, value in settings if name == "dtype"), "f32")


def _canonical(about: dict[str, Any]) -> bytes:
    return json.dumps(about, sort_keys=True, separators=(",", ":")).encode()


def _base(table: Table, directory: Path) -> _Found:
    """The snapshot whose changes a delta has: the latest one."""
    try:
        found = _chain(directory, None)[-1]
    except NotFoundError as error:
        raise FailedPreconditionError(f"a delta has no base: {error}; save a full snapshot first") from error
    if (found.about["table"], found.about["text"]) != (table.name, table._text):
        raise FailedPreconditionError(
            f"a delta has no base: {found.snapshot.directory} is of another table; save a full snapshot to a directory of its own"
        )
    return found


def _check_owner(table: Table, directory: Path) -> None:
    """Refuses to save a table where another one is."""
    for number in sorted(_numbers(directory), reverse=True):
        # What is no snapshot of this version says nothing.
        with contextlib.suppress(CorruptCheckpointError, IncompatibleError, NotFoundError, UnavailableError):
            found = _read(directory, number)
            if found.about["table"] != table.name:
                raise FailedPreconditionError(
                    f"{directory} has the snapshots of table {found.about['table']!r}; give table {table.name!r} a directory of its own"
                )
            return


def _chain(directory: Path, number: int | None) -> list[_Found]:
    """A snapshot and those below it, the full one first."""
    if number is None:
        try:
            said = (directory / "latest").read_bytes().decode("utf-8", "replace").strip()
        except OSError as error:
            raise NotFoundError(f"a snapshot in {directory} is not there: {error}; save one first") from error
        match = _NAME.fullmatch(said)
        if match is None:
            raise _damaged(directory / "latest", f"it says {said!r:.50}")
        number = int(match[1])
    elif isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidArgumentError(f"snapshot={number!r}; give the number of one, or None for the latest")
    chain = [_read(directory, number)]
    while (base := chain[0].about["base"]) is not None:
        above = chain[0]
        if base >= above.snapshot.number:
            raise _damaged(above.snapshot.directory / "manifest.json", f"its base {base} is not before it")
        try:
            below = _read(directory, base)
        except NotFoundError as error:
            raise NotFoundError(
                f"snapshot-{base}, the base of {above.snapshot.directory}, is not there; load a snapshot that is before it"
            ) from error
        if below.crc != above.about["base_crc32"]:
            raise _damaged(above.snapshot.directory / "manifest.json", f"snapshot-{base} is not the one that was its base")
        chain.insert(0, below)
    return chain


def _read(directory: Path, number: int) -> _Found:
    """Reads and checks a manifest."""
    at = directory / f"snapshot-{number}"
    file = at / "manifest.json"
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"{file} is not there; give the number of a snapshot that is") from None
    except OSError as error:
        raise UnavailableError(f"reading {file}: {error}") from error
    try:
        whole = json.loads(text)
        about, crc = whole["about"], whole["crc32"]
        if about["format"] != FORMAT:
            theirs = about["format"]
            raise IncompatibleError(
                f"{file}: the form of its files is {theirs!r:.20}, and this version reads {FORMAT}; "
                "load it with the version that saved it",
                field="format",
            )
        if zlib.crc32(_canonical(about)) != crc:
            raise _damaged(file, "its checksum is another one")
        if about["snapshot"] != number:
            raise _damaged(file, f"it is of snapshot-{about['snapshot']}")
        return _Found(about, crc, _snapshot(at, about, len(text)))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, f"it is no manifest: {error!r:.100}") from error


def _snapshot(at: Path, about: dict[str, Any], manifest_bytes: int) -> Snapshot:
    size = manifest_bytes + sum(file["bytes"] for file in about["files"])
    version = TableVersion.parse(about["version"])
    return Snapshot(about["snapshot"], at, about["base"], about["rows"], about["gone"], size, version)


def _contents(found: _Found) -> Iterator[tuple[str, dict[str, Any]]]:
    """Reads and checks the files of a snapshot: removed ids first, because they make room for rows."""
    numpy = arrays()
    about = found.about
    behind = (about["dim"],), (about["row_len"] - about["dim"],)
    wanted: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
        "gone": {"ids": ("int64", ())},
        "rows": {
            "ids": ("int64", ()),
            "touched": ("uint32", ()),
            "score": ("float32", ()),
            "rows": ("float32", behind[0]),
            "state": ("float32", behind[1]),
        },
    }
    for kind, arrays_of_kind in wanted.items():
        for said in about["files"]:
            if said["kind"] != kind:
                continue
            file = found.snapshot.directory / said["name"]
            try:
                data = file.read_bytes()
            except OSError as error:
                raise _damaged(file, f"it cannot be read: {error}") from error
            if len(data) != said["bytes"] or zlib.crc32(data) != said["crc32"]:
                raise _damaged(file, "its length or its checksum is another one")
            try:
                content = _safetensors.read(data, arrays_of_kind, numpy)
            except (ValueError, UnicodeDecodeError) as error:
                raise _damaged(file, str(error)) from error
            if any(len(array) != said["rows"] for array in content.values()):
                raise _damaged(file, "its arrays have not as many rows as the manifest says")
            yield kind, content


def _put_back(table: Table, ids: Any, marks: Any, numbers: Any, timeout: float | None) -> None:
    """Puts rows back, as many at a time as one use takes."""
    numpy = arrays()
    rows = min(1 << 20, max(1, RESTORE_BYTES // (16 + 4 * table._row_len)))
    for at in range(0, len(ids), rows):
        of_use = (numpy.ascontiguousarray(of[at : at + rows]) for of in (ids, marks, numbers))
        table._restore(*of_use, timeout=timeout)


def _remove_old(directory: Path, keep: int) -> None:
    """Removes the oldest snapshots, but those on which others are based that stay."""
    stay: set[int] = set()
    for number in sorted(_numbers(directory))[-keep:]:
        stay.add(number)
        # Of one that is damaged, nothing says what it is based on.
        with contextlib.suppress(CorruptCheckpointError, IncompatibleError, NotFoundError):
            stay |= {found.snapshot.number for found in _chain(directory, number)}
    with _disk(directory):
        for number in set(_numbers(directory)) - stay:
            # A name that is no snapshot's first, so that none is half there.
            old = directory / f".partial-old-{number}"
            os.rename(directory / f"snapshot-{number}", old)
            shutil.rmtree(old)


def _numbers(directory: Path) -> list[int]:
    """The snapshots that are there."""
    names = (_NAME.fullmatch(entry.name) for entry in (directory.iterdir() if directory.is_dir() else ()))
    return [int(name[1]) for name in names if name]


def _directory(path: str | os.PathLike[str]) -> Path:
    try:
        given = os.fspath(path)
    except TypeError:
        given = ""
    if not isinstance(given, str) or not given:
        raise InvalidArgumentError(f"path={path!r:.100}; give the directory of the snapshots of this table as text or as a path")
    return Path(given)


def _damaged(file: Path, problem: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"the snapshot is damaged: {file}: {problem}; load an earlier one", file=str(file), problem=problem)


@contextlib.contextmanager
def _disk(at: Path) -> Iterator[None]:
    """Errors of the system while files are written."""
    try:
        yield
    except Error:
        # Some are errors of the system by their class.
        raise
    except OSError as error:
        raise UnavailableError(f"writing {at}: {error}; what was saved before stays") from error


def _writer_of(target: Path) -> Any:
    """What writes ids and rows to a file of this name."""
    suffix = target.suffix
    if suffix == ".safetensors":
        return lambda out, ids, rows, about: _safetensors.write(out, {"ids": ids, "rows": rows}, about)
    if suffix not in (".parquet", ".arrow"):
        raise InvalidArgumentError(f"file={str(target)!r}; give a name that ends in .safetensors, .parquet or .arrow")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UnsupportedError(f"a file that ends in {suffix} needs pyarrow, which is not installed; install pyarrow") from None

    def write(out: Any, ids: Any, rows: Any, about: dict[str, str]) -> None:
        values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), rows.shape[1])
        columns = pyarrow.table({"id": pyarrow.array(ids), "row": values}).replace_schema_metadata(about)
        if suffix == ".parquet":
            pyarrow.parquet.write_table(columns, out)
        else:
            with pyarrow.ipc.new_file(out, columns.schema) as to:
                to.write_table(columns)

    return write

