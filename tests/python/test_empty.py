"""Tensors without elements: nothing is sent of them, but the workers agree that they have none."""

import time

import gradlane
import numpy as np
import pytest

pytestmark = pytest.mark.over("local", "shm", "quic")

SOON = 10.0
"""Far below the step timeout of these jobs, which is 20 s."""


@pytest.mark.parametrize("call", ["single", "group", "broadcast"])
@pytest.mark.workers(2, alone=True)
@pytest.mark.parametrize("empty", [0, 1])
def test_elements_on_one_worker_only_are_a_mismatch_on_both(empty, call):
    values = np.zeros(0 if gradlane.rank() == empty else 3, np.float32)
    started = time.monotonic()
    with pytest.raises(gradlane.MismatchError) as caught:
        if call == "single":
            gradlane.push_pull(values, "rows")
        elif call == "group":
            gradlane.grouped_push_pull([np.ones(2, np.float32), values], ["full", "rows"])
        else:
            gradlane.broadcast(values, name="rows")
    assert caught.value.tensor == "rows" and {caught.value.expected, caught.value.got} == {"[0]", "[3]"}
    assert time.monotonic() - started < SOON


@pytest.mark.workers(2)
def test_tensors_without_elements_may_come_in_any_order():
    names = [f"none {i}" for i in range(4)]
    for _ in range(2):
        order = names if gradlane.rank() else names[::-1]
        handles = [gradlane.push_pull_async(np.zeros((0, 5)), name) for name in order]
        assert all(handle.wait(SOON).shape == (0, 5) for handle in handles)


@pytest.mark.workers(2)
def test_a_group_may_hold_tensors_without_elements():
    for _ in range(2):
        full, none = gradlane.grouped_push_pull([np.full(3, gradlane.rank(), np.float32), np.zeros(0)], "mixed")
        assert full.tolist() == [0.5] * 3 and none.shape == (0,)
        assert gradlane.grouped_push_pull([np.zeros(0)], "alone")[0].shape == (0,)


@pytest.mark.workers(2, alone=True, settings={"step_timeout": "2s"})
def test_a_worker_that_does_not_come_is_named():
    if gradlane.rank() == 0:
        with pytest.raises(gradlane.TimeoutError, match=r"without elements of tensor nothing.*rank 1"):
            gradlane.push_pull(np.zeros(0), "nothing")
    gradlane.barrier("after", timeout=15.0)
