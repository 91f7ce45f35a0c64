"""Snapshots of tables in files: what is saved is loaded, and what is wrong with files is found before anything changes."""

import json
import os
import shutil

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from gradlane import (
    CorruptCheckpointError,
    FailedPreconditionError,
    FullResyncNeededError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    errors,
    rules,
    undeclare,
)
from gradlane import tables as gradlane_tables
from gradlane.tables import Table

pytestmark = [pytest.mark.workers(1), pytest.mark.over("local")]


def table_of(name, rule=None, dim=2, **settings):
    return Table(name, dim, rule=rule or rules.Adam(lr=0.1), init="uniform", scale=0.5, seed=3, **settings)


def whole(table):
    """All that there is of a table, in the order of the ids."""
    changed = table.changed(state=True)
    order = np.argsort(changed.ids)
    parts = (changed.ids, changed.rows, changed.state.touched, changed.state.score, changed.state.numbers)
    return [part[order].tolist() for part in parts]


def train(table, seed, steps=3):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        ids = rng.integers(0, 500, 60)
        table.push(ids, rng.standard_normal((60, table.dim)).astype(np.float32))


def test_a_table_is_loaded_as_it_was_saved_and_trains_on_alike(tmp_path):
    table = table_of("saved")
    train(table, 1)
    saved = table.save(tmp_path / "items")
    at_save = whole(table)
    assert (saved.number, saved.base, saved.rows, saved.gone) == (1, None, len(at_save[0]), 0)
    assert saved.bytes == sum(file.stat().st_size for file in saved.directory.iterdir())
    train(table, 2)
    went_on = whole(table)
    undeclare("saved")
    again = table_of("saved")
    again.push([7000], np.ones((1, 2), np.float32))
    assert again.load(tmp_path / "items") == saved
    assert whole(again) == at_save, "and the row that was there is gone"
    train(again, 2)
    assert whole(again) == went_on, "to the bit, with what the rule keeps, from the step of the snapshot on"


def test_a_full_snapshot_and_its_deltas_are_the_table(tmp_path):
    table = table_of("deltas", rules.RMSprop(lr=0.1, momentum=0.5))
    table.save(tmp_path)
    states = [whole(table)]
    for number in range(2, 6):
        train(table, number)
        if number == 4:
            table.shrink(min_score=2.0)
        saved = table.save(tmp_path, delta=True)
        assert (saved.number, saved.base) == (number, number - 1)
        states.append(whole(table))
    assert saved.rows < len(states[-1][0]), "rows that did not change are not in it"
    for number, state in enumerate(states, 1):
        assert table.load(tmp_path, snapshot=number).number == number
        # Scores of rows without a change are those of their last change, and a shrink without decay leaves them.
        assert whole(table) == state
    with pytest.raises(FullResyncNeededError, match="save a full snapshot"):
        table.save(tmp_path, delta=True)
    assert table.save(tmp_path).number == 6
    train(table, 9)
    assert table.save(tmp_path, delta=True).base == 6


def test_a_delta_without_a_base_is_refused(tmp_path):
    table = table_of("baseless")
    with pytest.raises(FailedPreconditionError, match="save a full snapshot first"):
        table.save(tmp_path, delta=True)
    other = table_of("another")
    other.save(tmp_path)
    with pytest.raises(FailedPreconditionError, match="of another table"):
        table.save(tmp_path, delta=True)
    with pytest.raises(FailedPreconditionError, match="the snapshots of table 'another'"):
        table.save(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["latest", "snapshot-1"]


def test_old_snapshots_go_unless_others_are_based_on_them(tmp_path):
    table = table_of("kept")
    names = lambda: sorted(entry.name for entry in tmp_path.iterdir())  # noqa: E731
    for delta in (False, True, True):
        train(table, 1)
        table.save(tmp_path, delta=delta, keep=1)
    assert names() == ["latest", "snapshot-1", "snapshot-2", "snapshot-3"]
    table.save(tmp_path, keep=2)
    assert names() == ["latest", "snapshot-1", "snapshot-2", "snapshot-3", "snapshot-4"]
    table.save(tmp_path, keep=2)
    assert names() == ["latest", "snapshot-4", "snapshot-5"]
    for wrong in (0, True, "1"):
        with pytest.raises(InvalidArgumentError, match="keep="):
            table.save(tmp_path, keep=wrong)


def saved_chain(table, path):
    """A full snapshot and two deltas, of which the last one has rows and removed ids."""
    train(table, 1)
    table.save(path)
    train(table, 2)
    table.save(path, delta=True)
    train(table, 3)
    table.shrink(min_score=2.0)
    last = table.save(path, delta=True)
    assert last.rows and last.gone


def test_what_is_wrong_with_files_is_found_before_anything_changes(tmp_path):
    table = table_of("damaged")
    saved_chain(table, tmp_path / "good")
    before = whole(table)

    def refused(error, named, damage, **arguments):
        path = tmp_path / "bad"
        shutil.copytree(tmp_path / "good", path)
        damage(path)
        with pytest.raises(error, match=named):
            table.load(path, **arguments)
        assert whole(table) == before
        shutil.rmtree(path)

    def flip(name):
        def damage(path):
            file = path / name
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)

        return damage

    def cut(name):
        return lambda path: os.truncate(path / name, (path / name).stat().st_size - 1)

    def without(name):
        return lambda path: (path / name).unlink()

    for number in (1, 2, 3):
        files = [file.name for file in (tmp_path / "good" / f"snapshot-{number}").iterdir()]
        assert "manifest.json" in files and "rows-1.safetensors" in files
        for file in files:
            name = f"snapshot-{number}/{file}"
            refused(CorruptCheckpointError, file, flip(name))
            refused(CorruptCheckpointError, file, cut(name))
            if file == "manifest.json":
                refused(NotFoundError, f"snapshot-{number}.* is not there", without(name))
            else:
                refused(CorruptCheckpointError, file, without(name))
    refused(NotFoundError, "snapshot-2, the base of", lambda path: shutil.rmtree(path / "snapshot-2"))
    refused(NotFoundError, "latest", without("latest"))
    refused(CorruptCheckpointError, "latest", lambda path: (path / "latest").write_text("snapshot-x"))
    refused(NotFoundError, "snapshot-9", lambda path: None, snapshot=9)
    refused(InvalidArgumentError, "snapshot=0", lambda path: None, snapshot=0)
    refused(CorruptCheckpointError, "is of snapshot-2", lambda path: swap(path, 2, 3))

    def with_another_base(path):
        other = table_of("damaged as well")
        saved_chain(other, tmp_path / "other")
        shutil.rmtree(path / "snapshot-1")
        shutil.copytree(tmp_path / "other" / "snapshot-1", path / "snapshot-1")

    refused(CorruptCheckpointError, "not the one that was its base", with_another_base)

    def of_another_form(path):
        file = path / "snapshot-3" / "manifest.json"
        manifest = json.loads(file.read_text())
        manifest["about"]["format"] = 2
        file.write_text(json.dumps(manifest))

    refused(IncompatibleError, "this version reads 1", of_another_form)


def swap(path, one, two):
    os.rename(path / f"snapshot-{one}", path / "aside")
    os.rename(path / f"snapshot-{two}", path / f"snapshot-{one}")
    os.rename(path / "aside", path / f"snapshot-{two}")


def test_two_saves_at_once_are_refused_and_what_lies_there_disturbs_nobody(tmp_path):
    import fcntl

    table = table_of("two savers")
    train(table, 1)
    table.save(tmp_path)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(FailedPreconditionError, match="one worker saves for all"):
        table.save(tmp_path)
    os.close(other)
    (tmp_path / "snapshot-5").mkdir()
    (tmp_path / "snapshot-7").write_text("no directory", encoding="utf-8")
    assert table.save(tmp_path).number == 8
    assert table.load(tmp_path).number == 8


def test_a_snapshot_of_another_table_is_refused(tmp_path):
    table = table_of("of one table")
    train(table, 1)
    table.save(tmp_path)
    one = "of one table"
    for other in (table_of("of another table"), table_of(one, dim=3), table_of(one, rules.SGD()), table_of(one, dtype="bfloat16")):
        with pytest.raises(FailedPreconditionError, match="the kind of rule with which it was saved"):
            other.load(tmp_path)


def test_a_disk_that_refuses_leaves_the_snapshot_before(tmp_path, monkeypatch):
    table = table_of("disk")
    train(table, 1)
    saved = table.save(tmp_path)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    for call in ("fsync", "rename"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, refuse)
            with pytest.raises(UnavailableError, match="No space left"):
                table.save(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["latest", "snapshot-1"]
    assert table.load(tmp_path) == saved
    with pytest.raises(InvalidArgumentError, match="path="):
        table.save("")


def test_a_snapshot_is_exported_as_one_file(tmp_path):
    table = table_of("exported")
    saved_chain(table, tmp_path / "items")
    ids, rows, *_ = whole(table)
    for name in ("a.parquet", "a.arrow", "a.safetensors"):
        gradlane_tables.export(tmp_path / "items", tmp_path / name)
    of_parquet = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    with pyarrow.ipc.open_file(str(tmp_path / "a.arrow")) as file:
        of_arrow = file.read_all()
    for found in (of_parquet, of_arrow):
        assert found["id"].to_pylist() == ids and found["row"].to_pylist() == rows
        assert found.schema.metadata[b"snapshot"] == b"snapshot-3"
    data = (tmp_path / "a.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    begin, end = header["ids"]["data_offsets"]
    assert np.frombuffer(body[begin:end], np.int64).tolist() == ids and (8 + length) % 8 == 0
    begin, end = header["rows"]["data_offsets"]
    assert np.frombuffer(body[begin:end], np.float32).reshape(-1, 2).tolist() == rows
    gradlane_tables.export(tmp_path / "items", tmp_path / "b.parquet", snapshot=1)
    assert len(pyarrow.parquet.read_table(tmp_path / "b.parquet")) > len(ids)
    with pytest.raises(InvalidArgumentError, match="parquet or .arrow"):
        gradlane_tables.export(tmp_path / "items", tmp_path / "a.csv")


def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch):
    table = table_of("without libraries")
    table.pull([1])
    table.save(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(errors.UnsupportedError, match="install pyarrow"):
        gradlane_tables.export(tmp_path, tmp_path / "a.parquet")
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    for call in (table.changed, lambda: table.save(tmp_path), lambda: table.load(tmp_path)):
        with pytest.raises(errors.UnsupportedError, match="install numpy"):
            call()
