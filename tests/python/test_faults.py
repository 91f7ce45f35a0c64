"""What workers are told when one of them does not do what the others do: on every rank, in time, by name."""

import os
import time

import gradlane
import numpy as np
import pytest
from conftest import record_as_passed

pytestmark = pytest.mark.over("quic")

SOON = {"step_timeout": "2s"}
"""The knob that bounds how long a sum may lack contributions; short, so that the tests are."""


@pytest.mark.workers(2, alone=True)
def test_another_shape_is_a_mismatch_on_every_rank():
    with pytest.raises(gradlane.MismatchError, match="weights") as caught:
        gradlane.push_pull(np.zeros(3 + gradlane.rank(), np.float32), "weights")
    assert caught.value.tensor == "weights" and sorted(caught.value.ranks) == [0, 1]
    assert {caught.value.expected, caught.value.got} == {"[3]", "[4]"}


@pytest.mark.workers(2, alone=True)
def test_another_dtype_is_a_mismatch_on_every_rank():
    with pytest.raises(gradlane.MismatchError) as caught:
        gradlane.push_pull(np.zeros(3, ["float32", "float64"][gradlane.rank()]), "weights")
    assert caught.value.field == "dtype" and {caught.value.expected, caught.value.got} == {"float32", "float64"}


@pytest.mark.workers(2, alone=True)
def test_another_reduction_is_a_mismatch_on_every_rank():
    with pytest.raises(gradlane.MismatchError) as caught:
        gradlane.push_pull(np.zeros(3), "weights", op=[gradlane.Sum, gradlane.Max][gradlane.rank()])
    assert caught.value.field == "op"


@pytest.mark.over("local", "shm", "quic")
@pytest.mark.workers(2, alone=True, settings=SOON)
def test_a_missing_contribution_names_the_missing_rank():
    # Each waits for a tensor that the other one does not know, so both are told.
    started = time.monotonic()
    with pytest.raises(gradlane.StallError) as caught:
        gradlane.push_pull(np.zeros(3), f"only on {gradlane.rank()}")
    assert caught.value.missing_ranks == [1 - gradlane.rank()]
    assert f"only on {gradlane.rank()}" in str(caught.value)
    assert time.monotonic() - started < 15.0


@pytest.mark.over("local", "shm", "quic")
@pytest.mark.workers(2, alone=True)
def test_a_lost_worker_fails_the_others_before_the_step_timeout(request):
    if gradlane.rank() == 1:
        # Gone without a word; the test below is only about who stays.
        record_as_passed(request.node.nodeid)
        os._exit(0)
    with pytest.raises(gradlane.PeerLostError) as caught:
        gradlane.push_pull(np.zeros(3), "abandoned")
    assert caught.value.rank == 1


@pytest.mark.workers(2, alone=True)
def test_a_cancelled_operation_says_so():
    if gradlane.rank() == 0:
        handle = gradlane.push_pull_async(np.zeros(3), "never")
        handle.cancel()
        with pytest.raises(gradlane.Error) as caught:
            handle.wait()
        assert caught.value.code == "Cancelled"
    gradlane.barrier("after the cancellation")


@pytest.mark.over("shm", "quic")
@pytest.mark.workers(2, alone=True)
def test_leaving_with_operations_in_flight_does_not_hang():
    handle = gradlane.push_pull_async(np.zeros(3), f"in flight on {gradlane.rank()}")
    gradlane.shutdown(1.0)
    with pytest.raises(gradlane.Error):
        handle.wait()
    with pytest.raises(gradlane.NotInitializedError):
        gradlane.rank()
