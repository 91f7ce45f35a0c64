"""Tables whose servers keep rows in half precision."""

import gradlane
import numpy as np
import pytest
from gradlane import FailedPreconditionError, InvalidArgumentError, MismatchError, modes, rules
from gradlane import tables as gradlane_tables
from gradlane.tables import Group, Table

pytestmark = [pytest.mark.workers(2, servers=2), pytest.mark.over("local", "shm", "quic")]

DTYPES = ["bfloat16", "float16"]
IDS = np.arange(200)
STEP = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""How far a number is from the nearest that can be kept, beside its own size."""


def own(name):
    """The name of a table that no other worker uses."""
    return f"{name} of worker {gradlane.rank()}"


def is_kept(rows, dtype):
    """Whether all of these float32 are numbers of that type."""
    if dtype == "float16":
        return (rows.astype(np.float16).astype(np.float32) == rows).all()
    return not (rows.view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_begin_with_the_nearest_and_come_as_float32(dtype):
    given = {"rule": rules.SGD(lr=1.0), "init": "normal", "scale": 0.5, "seed": 3}
    half, full = Table(own(f"begin {dtype}"), 3, dtype=dtype, **given), Table(own(f"begin {dtype} full"), 3, **given)
    looked = half.look(IDS)
    rows = half.pull(IDS)
    assert rows.dtype == np.float32 and rows.tobytes() == looked.tobytes() and is_kept(rows, dtype)
    np.testing.assert_allclose(rows, full.pull(IDS), rtol=STEP[dtype], atol=2.0**-25)


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_steps_are_not_lost_and_workers_read_the_same(dtype):
    table = Table(f"small {dtype}", 4, rule=rules.SGD(lr=1.0), mode=modes.Sync(), dtype=dtype)
    table.push(IDS, np.full((200, 4), -1.0, np.float32), step=0)
    steps, length = 200, STEP[dtype] / 8
    for step in range(steps):
        table.push(IDS, np.full((200, 4), -length, np.float32), step=1 + step)
    rows = table.look(IDS)
    assert is_kept(rows, dtype)
    # Of 800 values, each with a variance of at most its way times the distance of neighbours. Five standard deviations.
    way = steps * length
    assert abs(rows.mean() - 1 - way) < 5 * (way * 2 * STEP[dtype] / rows.size) ** 0.5
    first, second = gradlane.all_gather(rows, [np.empty_like(rows) for _ in range(2)], f"what all read of {dtype}")
    assert (first == second).all()
    gradlane.barrier(f"all have looked at {dtype}")


def test_values_are_rounded_as_an_independent_script_does():
    # As in the unit tests of `core::codec::stored`: of the seed 3, the id 17, step 5 and a score of 2.
    for dtype, due in {
        "bfloat16": [0x3F810000, 0xBE9A0000, 0x36490000, 0x447A0000, 0xB3960000, 0x3F000000],
        "float16": [0x3F802000, 0xBE99A000, 0x364C0000, 0x447A2000, 0xB4000000, 0x3F000000],
    }.items():
        table = Table(own(f"script {dtype}"), 6, rule=rules.SGD(lr=1.0), seed=3, dtype=dtype)
        table.push([17], np.zeros((1, 6), np.float32), scores=[2.0], step=4)
        values = np.array([[1.001, -0.3, 3e-6, 1000.3, -7e-8, 0.5]], np.float32)
        table.push([17], -values, step=5)
        assert table.look([17]).view(np.uint32).tolist() == [due]


def test_numbers_that_are_too_large_become_the_largest():
    for dtype, largest in (("bfloat16", 0x7F7F0000), ("float16", 0x477FE000)):
        table = Table(own(f"large {dtype}"), 2, rule=rules.SGD(lr=1.0), dtype=dtype)
        for step in range(2):
            table.push([1], np.array([[-3.4e38, 3.4e38]], np.float32), step=step)
        assert table.look([1]).view(np.uint32).tolist() == [[largest, largest | 1 << 31]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_of_half_precision_takes_less_memory(dtype):
    ids = np.arange(20_000)
    sizes = []
    for kind in ("float32", dtype):
        table = Table(own(f"memory {kind} beside {dtype}"), 64, rule=rules.SGD(), dtype=kind)
        table.pull(ids)
        sizes.append(table.stats().bytes)
        table.clear()
    saved = 20_000 * 64 * 2
    assert 0.9 * saved < sizes[0] - sizes[1] < 1.1 * saved, sizes
    assert sizes[1] <= 1.3 * 20_000 * (64 * 2 + 16), sizes


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_rows_may_travel_as_they_are_kept(compression):
    table = Table(own(f"travels as {compression}"), 3, rule=rules.SGD(lr=0.3), dtype="bfloat16", compression=compression)
    for step in range(5):
        table.push(IDS, np.ones((200, 3), np.float32), step=step)
    rows, changed = table.look(IDS), table.changed()
    assert (changed.rows[np.argsort(changed.ids)] == rows).all(), "changes are never compressed"


def test_the_tables_of_a_group_are_kept_alike():
    group = Group(own("group"), {"user": 200, "item": 200}, 3, rule=rules.SGD(lr=0.3), init="normal", scale=0.5, dtype="bfloat16")
    ones = np.ones((200, 3), np.float32)
    group.push({"user": (IDS, ones), "item": (IDS, ones)})
    rows = group.pull({"user": IDS, "item": IDS})
    assert "dtype=bf16,members=" in repr(group) and is_kept(rows["user"], "bfloat16") and is_kept(rows["item"], "bfloat16")


def test_other_dtypes_are_refused_by_name():
    for wrong in ("bf16", "float64", np.float16, None, ["float16"]):
        with pytest.raises(InvalidArgumentError, match="dtype=.*; give one of float32, bfloat16, float16"):
            Table("wrong", 2, rule=rules.SGD(), dtype=wrong)
    with pytest.raises(InvalidArgumentError, match="kept as fp16"):
        Table("wrong", 2, rule=rules.SGD(), bound=1e-8, dtype="float16")
    assert "dtype" not in repr(Table("usual", 2, rule=rules.SGD(), dtype="float32"))
    Table("agreed", 2, rule=rules.SGD(), dtype="bfloat16").pull([1])
    gradlane.barrier("all have a table")
    with pytest.raises(MismatchError, match="dtype=bf16"):
        Table("agreed", 2, rule=rules.SGD(), dtype="float16").pull([1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_snapshot_is_of_its_dtype_and_is_loaded_to_the_bit(dtype, tmp_path):
    table = Table(own(f"saved {dtype}"), 3, rule=rules.Adam(lr=0.1), init="uniform", scale=1.0, dtype=dtype)
    path, file = (tmp_path / f"items {gradlane.rank()}{end}" for end in ("", ".safetensors"))
    random = np.random.default_rng(1)
    for step in range(3):
        table.push(IDS, random.standard_normal((200, 3)).astype(np.float32), step=step)
    table.save(path)
    table.push(IDS[:50], np.ones((50, 3), np.float32), step=3)
    table.save(path, delta=True)
    saved = table.look(IDS)
    gradlane_tables.export(path, file)
    table.push(IDS, np.ones((200, 3), np.float32), step=4)
    went_on = table.look(IDS)
    table.load(path)
    assert table.look(IDS).tobytes() == saved.tobytes()
    table.push(IDS, np.ones((200, 3), np.float32), step=4)
    assert table.look(IDS).tobytes() == went_on.tobytes(), "it trains on alike"
    assert saved.tobytes() in file.read_bytes()
    for other in ("float32", *(other for other in DTYPES if other != dtype)):
        again = Table(table.name, 3, rule=rules.Adam(lr=0.1), init="uniform", scale=1.0, dtype=other)
        with pytest.raises(FailedPreconditionError, match="the dtype and the kind of rule with which it was saved"):
            again.load(path)
