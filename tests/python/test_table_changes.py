"""Changed rows of tables: a reader who follows them has what the servers have."""

import pickle

import gradlane
import numpy as np
import pytest
from gradlane import FullResyncNeededError, InvalidArgumentError, rules
from gradlane.tables import Table, TableVersion

pytestmark = [pytest.mark.workers(2, servers=3), pytest.mark.over("local", "shm", "quic")]


def follow(copy, changed):
    """Changes a copy of a table, a dict, as a reader does."""
    for id in changed.gone.tolist():
        copy.pop(id, None)
    copy.update(zip(changed.ids.tolist(), changed.rows.tolist(), strict=True))


def test_a_reader_gets_what_has_changed_since_it_looked_and_nothing_else():
    table = Table(f"followed {gradlane.rank()}", 2, rule=rules.SGD(lr=1.0), init="uniform", scale=0.5, seed=3)
    ids = np.arange(100)
    first = table.pull(ids)
    whole = table.changed()
    assert sorted(whole.ids.tolist()) == ids.tolist() and len(whole.gone) == 0 and whole.state is None
    assert (whole.rows[np.argsort(whole.ids)] == first).all()
    assert len(table.changed(whole.version).ids) == 0, "nothing has changed since"
    table.look(ids)
    table.pull(ids)
    assert len(table.changed(whole.version).ids) == 0, "who reads changes nothing"
    table.push(ids[:7], np.ones((7, 2), np.float32))
    table.pull([500])
    news = table.changed(whole.version)
    assert sorted(news.ids.tolist()) == [*range(7), 500] and news.version > whole.version
    assert (news.rows[np.argsort(news.ids)][:7] == first[:7] - 1).all()
    table.shrink(min_score=0.5)
    left = table.changed(news.version)
    assert sorted(left.gone.tolist()) == [*range(7, 100), 500] and len(left.ids) == 0
    assert sorted(table.changed(whole.version).ids.tolist()) == list(range(7)), "as often as it is asked for"


def test_a_reader_has_all_that_others_push_meanwhile():
    table = Table("pushed meanwhile", 3, rule=rules.SGD(lr=1.0))
    copy, since = {}, None
    rng = np.random.default_rng(5)
    if gradlane.rank() == 1:
        for _ in range(40):
            some = rng.integers(0, 3000, 400)
            table.push(some, np.ones((400, 3), np.float32))
            if rng.random() < 0.1:
                table.shrink(decay=0.9, min_score=0.5)
    else:
        for _ in range(20):
            changed = table.changed(since)
            follow(copy, changed)
            since = changed.version
    gradlane.barrier("all is pushed")
    if gradlane.rank() == 0:
        follow(copy, table.changed(since))
        assert len(copy) == table.stats().rows
        ids = np.array(sorted(copy))
        assert table.look(ids).tolist() == [copy[id] for id in ids.tolist()]
    gradlane.barrier("all is read")


def test_a_scan_of_many_pages_is_one_moment_and_pages_come_one_by_one():
    table = Table(f"many pages {gradlane.rank()}", 256, rule=rules.Adagrad(lr=1.0))
    ids = np.arange(9000)
    for at in range(0, len(ids), 3000):
        table.push(ids[at : at + 3000], np.ones((3000, 256), np.float32))
    before = table.look(ids)
    count, seen = 0, []
    for page in table.changed_pages(state=True):
        count += 1
        seen.extend(page.ids.tolist())
        assert page.rows.shape == (len(page.ids), 256) == page.state.numbers.shape
        assert (page.rows == before[page.ids]).all() and (page.state.score == 1).all()
        table.push(ids[:100], np.ones((100, 256), np.float32))
        table.push([10_000 + count], np.ones((1, 256), np.float32))
    assert count > 1 and sorted(seen) == ids.tolist()
    pages = table.changed_pages()
    version = next(pages).version
    pages.close()
    assert sorted(table.changed(version).ids.tolist()) == [], "who stops early may begin again"
    pages = table.changed_pages()
    next(pages)
    table.changed()
    with pytest.raises(gradlane.FailedPreconditionError, match="once at a time; begin again"):
        next(pages)


def test_versions_are_texts_that_can_be_saved():
    table = Table(f"versions {gradlane.rank()}", 1, rule=rules.SGD())
    table.pull([1, 2, 3])
    version = table.changed().version
    again = TableVersion.parse(str(version))
    assert again == version == pickle.loads(pickle.dumps(version)) and hash(again) == hash(version)
    table.push([1], np.ones((1, 1), np.float32))
    later = table.changed(again).version
    assert version < later and later >= version and not later <= version and version <= again
    for wrong in ("", "1:", "2:0-1-1", "1:0-0-1", "1:0-1", "1:5000-1-1", "x", None):
        with pytest.raises(InvalidArgumentError, match="no version of a table"):
            TableVersion.parse(wrong)


def test_a_version_that_says_nothing_here_is_refused():
    table = Table(f"refused {gradlane.rank()}", 1, rule=rules.SGD())
    table.pull([1, 2, 3])
    version = table.changed().version
    with pytest.raises(InvalidArgumentError, match="since='x'"):
        table.changed("x")
    with pytest.raises(InvalidArgumentError, match="which are at version"):
        table.changed(TableVersion(tuple((first, life, at + 9) for first, life, at in version.parts)))
    other = Table(f"refused too {gradlane.rank()}", 1, rule=rules.SGD())
    for of_others in (version, TableVersion(version.parts[:1] * 2), TableVersion(())):
        if of_others.parts:
            with pytest.raises(FullResyncNeededError, match="read all of it"):
                other.changed(of_others)
    table.clear()
    with pytest.raises(FullResyncNeededError, match=f"table refused {gradlane.rank()}"):
        table.changed(version)
    assert len(table.changed().ids) == 0
    with pytest.raises(InvalidArgumentError, match="step=4294967295"):
        table.push([1], np.ones((1, 1), np.float32), step=(1 << 32) - 1)
