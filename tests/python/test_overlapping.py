"""Calls of several operations: places that overlap are refused first, and what fails halfway leaves no memory in use."""

import gradlane
import numpy as np
import pytest
from gradlane import InvalidArgumentError, Sum
from gradlane._handle import begin_all
from gradlane._sets import ProcessSet

pytestmark = [pytest.mark.workers(3), pytest.mark.over("local", "shm")]


def values():
    return np.arange(6.0) + 10 * gradlane.rank()


def rows(whole):
    return [whole[0:2], whole[2:4], whole[4:6]]


OVERLAPPING = {
    "all_gather into one place": lambda a, name: gradlane.all_gather(a[:2].copy(), [a[:2]] * 3, name),
    "all_gather into places that overlap": lambda a, name: gradlane.all_gather(np.ones(2), [a[:2], a[1:3], a[4:]], name),
    "reduce_scatter into the part of another": lambda a, name: gradlane.reduce_scatter(
        a, rows(a)[gradlane.rank() - 1], name
    ),
    "reduce_scatter into two parts": lambda a, name: gradlane.reduce_scatter(a, a[1:3], name),
    "all_to_all into one place": lambda a, name: gradlane.all_to_all(rows(values()), [a[:2]] * 3, name),
    "all_to_all in turned places": lambda a, name: gradlane.all_to_all(rows(a), rows(a)[::-1], name),
    "all_to_all in place": lambda a, name: gradlane.all_to_all(rows(a), rows(a), name),
}
"""Calls in which a result would land where the call reads or where another result lands."""


@pytest.mark.parametrize("call", OVERLAPPING)
def test_results_that_would_land_on_other_memory_of_the_call_are_refused_before_anything_is_sent(call):
    array = values()
    with pytest.raises(InvalidArgumentError, match=r"(all_gather|all_to_all|reduce_scatter): .* and .* overlap") as refused:
        OVERLAPPING[call](array, call)
    assert "wait for that operation" not in str(refused.value)
    gradlane.barrier(f"{call} was refused")
    assert (array == values()).all()
    assert (gradlane.push_pull(array, f"{call} after", op=Sum) == np.arange(6.0) * 3 + 30).all(), "its memory is free"


def test_a_buffer_may_be_in_its_own_place_and_one_may_go_to_several_workers():
    rank, array = gradlane.rank(), np.zeros(6)
    rows(array)[rank][:] = rank
    gradlane.all_gather(rows(array)[rank], rows(array), "in place")
    assert array.tolist() == [0, 0, 1, 1, 2, 2]
    gradlane.reduce_scatter(array, rows(array)[rank], "into the own part", op=Sum)
    assert rows(array)[rank].tolist() == [3 * rank] * 2
    same, room = np.full(2, float(rank)), np.zeros(6)
    gradlane.all_to_all([same] * 3, rows(room), "the same for all")
    assert room.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_call_that_fails_halfway_leaves_no_memory_in_use_and_tells_the_others():
    array, pair = values(), ProcessSet([0, 1])
    if gradlane.rank() == 2:
        return

    def refuse():
        raise InvalidArgumentError("the second part cannot begin")

    if gradlane.rank() == 0:
        with pytest.raises(InvalidArgumentError, match="second part"):
            begin_all([lambda: gradlane.push_pull_async(array, "half", op=Sum, process_set=pair), refuse])
        assert (gradlane.push_pull(array, "its memory is free", op=Sum, process_set=pair)[:2] == [10.0, 12.0]).all()
    else:
        with pytest.raises(gradlane.errors.Error, match="worker 0 gave|rank 0"):
            gradlane.push_pull(values(), "half", op=Sum, process_set=pair, timeout=10.0)
        gradlane.push_pull(array, "its memory is free", op=Sum, process_set=pair)
