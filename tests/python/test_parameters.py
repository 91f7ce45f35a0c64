"""Parameters: what workers get from tensors that servers keep."""

import json
import re

import gradlane
import numpy as np
import pytest
from gradlane import FailedPreconditionError, MismatchError, parameters

pytestmark = [pytest.mark.workers(2, 3, servers=2), pytest.mark.over("local", "shm", "quic")]

LARGE = 3 << 20
"""Elements of float32 for several parts of the default length."""

CHANGES = 20
"""How many changes each worker makes in tests that count them."""


def pulled(name, like):
    """The value of a parameter of the dtype and shape of `like`, and its version."""
    out = np.full_like(like, 99)
    version = parameters.pull(name, out)
    return out, version


def test_the_first_worker_gives_the_value_and_all_agree_on_it():
    mine = np.full(5, float(gradlane.rank() + 1))
    assert parameters.init("first", mine) == 1
    assert mine.tolist() == [gradlane.rank() + 1.0] * 5, "it is only read"
    value, version = pulled("first", mine)
    assert version == 1 and value[0] in range(1, gradlane.size() + 1)
    values = np.zeros(gradlane.size())
    values[gradlane.rank()] = value[0]
    gradlane.push_pull(values, "what all have read", op=gradlane.Sum)
    assert values.tolist() == [value[0]] * gradlane.size()


def test_changes_of_all_workers_add_up_exactly_and_each_makes_one_version():
    rank, size = gradlane.rank(), gradlane.size()
    parameters.init("added", np.zeros(100, np.float32))
    # Digits of base 64 per worker: no sum of another worker's changes looks like a change of this one.
    change = np.full(100, float(64**rank), np.float32)
    versions = [parameters.push("added", change) for _ in range(CHANGES)]
    assert versions == sorted(set(versions)) and versions[0] > 1
    gradlane.barrier("added by all")
    value, version = pulled("added", change)
    assert value.tolist() == [float(sum(CHANGES * 64**other for other in range(size)))] * 100
    assert version == 1 + CHANGES * size


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8"])
def test_every_element_type_is_added(dtype):
    name = f"added {dtype}"
    parameters.init(name, np.array([1, 2], dtype))
    gradlane.barrier(f"begun {dtype}")
    parameters.push(name, np.array([1, 3], dtype))
    gradlane.barrier(f"done {dtype}")
    size = gradlane.size()
    assert pulled(name, np.empty(2, dtype))[0].tolist() == [1 + size, 2 + 3 * size]


def test_assign_takes_the_place_of_the_value():
    rank = gradlane.rank()
    parameters.init("assigned", np.zeros((2, 2)))
    gradlane.barrier("may be assigned")
    if rank == 1:
        assert parameters.push("assigned", np.full((2, 2), 7.0), update="assign") == 2
    gradlane.barrier("was assigned")
    value, version = pulled("assigned", np.empty((2, 2)))
    assert (value.tolist(), version) == ([[7.0, 7.0], [7.0, 7.0]], 2)


def test_push_pull_reads_what_it_made_and_no_two_changes_read_the_same():
    parameters.init("counter", np.zeros(1, np.int64))
    change, seen = np.ones(1, np.int64), np.empty(1, np.int64)
    for _ in range(CHANGES):
        version = parameters.push_pull("counter", change, out=seen)
        assert seen[0] == version - 1 and change[0] == 1
    ticket = np.ones(1, np.int64)
    version = parameters.push_pull("counter", ticket)
    assert ticket[0] == version - 1, "in place"
    gradlane.barrier("all have counted")
    value, version = pulled("counter", seen)
    assert value[0] == version - 1 == (CHANGES + 1) * gradlane.size()


def test_a_large_parameter_is_read_part_by_part_and_no_part_is_torn():
    rank = gradlane.rank()
    parameters.init("large", np.zeros(LARGE, np.float32))
    lengths = parts_of("large")
    assert len(lengths) > 1 and sum(lengths) == LARGE * 4
    out = np.empty(LARGE, np.float32)
    for step in range(6):
        parameters.push("large", np.full(LARGE, rank + 10.0 * step, np.float32), update="assign")
        parameters.pull("large", out)
        start = 0
        for length in lengths:
            part = out[start // 4 : (start + length) // 4]
            assert (part == part[0]).all(), f"part at {start} is torn"
            start += length


def parts_of(name):
    """The bytes of each part of a tensor, in order."""
    spans = re.findall(rf"\| {name} \[(\d+), (\d+)\)", gradlane.layout())
    return [int(end) - int(start) for start, end in sorted(spans, key=lambda span: int(span[0]))]


def test_a_worker_reads_what_it_wrote_without_waiting_between():
    name = f"of rank {gradlane.rank()}"
    begun = [parameters.init_async(name, np.zeros(LARGE // 3, np.float32))]
    begun += [parameters.push_async(name, np.full(LARGE // 3, 2.0**i, np.float32)) for i in range(8)]
    out = np.empty(LARGE // 3, np.float32)
    assert parameters.pull_async(name, out).wait() == 9
    assert (out == 255).all()
    assert [handle.wait() for handle in begun] == list(range(1, 10))


def test_wait_any_finds_a_use_of_a_parameter_beside_a_sum_that_waits_for_others():
    rank = gradlane.rank()
    parameters.init("beside a sum", np.zeros(3))
    if rank == 0:
        late = gradlane.push_pull_async(np.ones(4), "late sum", op=gradlane.Sum)
        push = parameters.push_async("beside a sum", np.ones(3))
        assert gradlane.wait_any([late, push], timeout=20) == 1
        assert push.wait() >= 2
        with pytest.raises(gradlane.StillRunningError):
            gradlane.wait_any([late], timeout=0.05)
    gradlane.barrier("now the others come")
    if rank == 0:
        assert gradlane.wait_any([late], timeout=20) == 0
        assert late.wait().tolist() == [gradlane.size()] * 4
    else:
        gradlane.push_pull(np.ones(4), "late sum", op=gradlane.Sum)


def test_wait_any_takes_each_of_many_once():
    names = [f"one of many {i} of {gradlane.rank()}" for i in range(30)]
    left = {i: parameters.init_async(name, np.full(10_000, float(i))) for i, name in enumerate(names)}
    while left:
        positions = list(left)
        ended = positions[gradlane.wait_any(list(left.values()), timeout=20)]
        assert left.pop(ended).wait() == 1


def test_sums_go_on_beside_parameters():
    rank, size = gradlane.rank(), gradlane.size()
    parameters.init("weights", np.zeros(1000))
    for step in range(10):
        handle = parameters.push_async("weights", np.ones(1000))
        gradient = gradlane.push_pull(np.full(1000, float(rank)), "gradient", op=gradlane.Sum)
        assert gradient.tolist() == [size * (size - 1) / 2] * 1000, step
        handle.wait()
    gradlane.barrier("all steps")
    assert pulled("weights", np.empty(1000))[0].tolist() == [10.0 * size] * 1000


def test_what_was_never_given_a_value_is_neither_changed_nor_read():
    out = np.full(3, 5.0)
    for use in (
        lambda: parameters.pull("never set", out),
        lambda: parameters.push("never set", out),
        lambda: parameters.push("never set", out, update="assign"),
        lambda: parameters.push_pull("never set", out),
    ):
        with pytest.raises(FailedPreconditionError, match="never set"):
            use()
    assert out.tolist() == [5.0] * 3
    gradlane.barrier("nobody has a value")
    parameters.init("never set", out)
    assert pulled("never set", out)[0].tolist() == [5.0] * 3, "a refused use does no harm"


@pytest.mark.parametrize(
    ("field", "other"), [("dtype", np.zeros(4, np.float32)), ("shape", np.zeros(5)), ("shape", np.zeros((2, 2)))]
)
def test_another_dtype_or_shape_is_a_mismatch(field, other):
    name, size = f"disputed {field} {other.ndim}", gradlane.size()
    if gradlane.rank() == 0:
        parameters.init(name, np.zeros(4))
    gradlane.barrier(f"begun {name}")
    if gradlane.rank() == 1:
        with pytest.raises(MismatchError, match="disputed") as caught:
            parameters.init(name, other)
        assert caught.value.field == field
    gradlane.barrier(f"others go on {name}")
    assert gradlane.push_pull(np.ones(2), f"a sum {name}", op=gradlane.Sum).tolist() == [size, size]
    assert parameters.init(f"another {name}", np.zeros(4)) == 1


def test_the_name_of_a_sum_is_no_parameter_and_the_other_way_round():
    gradlane.push_pull(np.ones(4), "sum")
    with pytest.raises(MismatchError, match="sum") as caught:
        parameters.init("sum", np.ones(4))
    assert caught.value.field == "kind"
    parameters.init("parameter", np.ones(4))
    with pytest.raises(MismatchError, match="parameter") as caught:
        gradlane.push_pull(np.ones(4), "parameter")
    assert caught.value.field == "kind"
    gradlane.barrier("both refused")
    assert pulled("parameter", np.empty(4))[0].tolist() == [1.0] * 4


def test_a_name_that_all_workers_have_undeclared_may_have_another_shape():
    parameters.init("ends", np.ones(4))
    gradlane.barrier("begun to end")
    gradlane.undeclare("ends")
    gradlane.barrier("ended by all")
    parameters.init("ends", np.full(7, 2.0))
    assert pulled("ends", np.empty(7))[0].tolist() == [2.0] * 7


def test_a_timeline_and_the_metrics_have_uses_of_parameters(tmp_path):
    name, before = f"recorded {gradlane.rank()}", gradlane.metrics()
    path = gradlane.start_timeline(tmp_path)
    parameters.init(name, np.zeros(100))
    parameters.push_pull(name, np.ones(100))
    gradlane.stop_timeline()
    assert any(name in str(event) for event in json.loads(path.read_text()))
    after = gradlane.metrics()
    assert after["push_bytes"] - before["push_bytes"] >= 1600
    assert after["pull_bytes"] - before["pull_bytes"] >= 800


def test_tensors_of_pytorch_are_used_where_they_are():
    torch = pytest.importorskip("torch")
    name = f"torch {gradlane.rank()}"
    parameters.init(name, torch.ones(3, dtype=torch.bfloat16))
    out = torch.zeros(3, dtype=torch.bfloat16)
    before = out._version
    assert parameters.push_pull(name, torch.full((3,), 2.0, dtype=torch.bfloat16), out) == 2
    assert out.tolist() == [3.0] * 3 and out._version > before
