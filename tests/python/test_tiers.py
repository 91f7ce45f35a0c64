"""Two machines with two workers each: those of one machine reduce among themselves, and one of them pushes for both."""

import gradlane
import numpy as np
import pytest

SETTINGS = {"local_reduce": "auto", "step_timeout": "1h", "partition_bytes": "64 KiB", "fuse_bytes": "16 KiB"}

pytestmark = [
    pytest.mark.workers(4, servers=2, machines="aabb", settings=SETTINGS),
    pytest.mark.over("shm", "quic"),
]


def test_every_worker_is_counted_once_in_every_element_of_every_round():
    counts = gradlane.metrics()
    for length in [1, 1000, 300_001]:
        for dtype in [np.int32, np.float32]:
            for round in range(3):
                # Each digit of the sum to the base of 4 says how often a rank was counted.
                values = np.full(length, (round + 1) * 4 ** gradlane.rank()).astype(dtype)
                gradlane.push_pull(values, f"{length} {dtype.__name__}", op=gradlane.Sum)
                assert (values == (round + 1) * 0b01010101).all()
    now = gradlane.metrics()
    assert now["local_sums"] > counts["local_sums"], "the ranks of a machine reduce"
    moved = [now["push_bytes"] - counts["push_bytes"], now["local_bytes"] - counts["local_bytes"]]
    assert moved[0] < moved[1], "and one of them pushes for both"


def test_averages_extremes_and_broadcasts_mean_what_they_say():
    own = np.full(50_000, [8.0, -16.0, 24.0, 40.0][gradlane.rank()], np.float32)
    for op, expected in [(gradlane.Average, 14.0), (gradlane.Min, -16.0), (gradlane.Max, 40.0)]:
        assert (gradlane.push_pull(own.copy(), f"op {op}", op=op) == expected).all()


def test_what_two_workers_of_one_machine_disagree_about_is_heard_by_all():
    op = gradlane.Max if gradlane.rank() == 1 else gradlane.Sum
    with pytest.raises(gradlane.MismatchError, match="has op sum.*has op max|has op max.*has op sum"):
        gradlane.push_pull(np.ones(2), "disagreement", op=op)
    assert (gradlane.push_pull(np.ones(2), "disagreement", op=gradlane.Sum) == 4).all()


def test_a_call_that_one_worker_gives_up_ends_at_once_for_all():
    if gradlane.rank() == 3:
        with pytest.raises(gradlane.TimeoutError):
            gradlane.push_pull(np.ones(3), "given up", timeout=0.3)
        gradlane.barrier("given up")
    else:
        gradlane.barrier("given up")
        with pytest.raises(gradlane.StallError, match="worker [23]"):
            gradlane.push_pull(np.ones(3), "given up")
