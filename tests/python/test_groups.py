"""Many buffers reduced in one call: each is as if it were alone, and all of them have one outcome."""

import gradlane
import numpy as np
import pytest

pytestmark = pytest.mark.over("local", "shm", "quic")

GROUP = 200


@pytest.mark.over("shm", "quic")
@pytest.mark.workers(2)
def test_a_thousand_small_buffers_travel_in_few_messages():
    buffers = [np.full(1024, i + gradlane.rank(), np.float32) for i in range(1000)]
    before = gradlane.metrics()["pushes"]
    for number in range(3):
        assert gradlane.grouped_push_pull(buffers, "thousand", op=gradlane.Sum) is not buffers
        assert all((buffer == (2 * i + 1) * 2**number).all() for i, buffer in enumerate(buffers))
    assert gradlane.metrics()["pushes"] - before <= 6


@pytest.mark.workers(2)
def test_buffers_of_any_kind_are_a_group_and_results_may_go_elsewhere():
    rank = gradlane.rank()
    buffers = [
        np.full((2, 3), rank, np.float64),
        np.array([rank, 7], np.int32),
        np.zeros((0, 4), np.float32),
        np.float32([rank]),
    ]
    out = [np.zeros_like(buffer) for buffer in buffers]
    names = ["matrix", "integers", "empty", "one"]
    results = gradlane.grouped_push_pull(buffers, names, op=gradlane.Max, out=out)
    assert all(result is place for result, place in zip(results, out, strict=True))
    assert [place.tolist() for place in out] == [[[1.0] * 3] * 2, [1, 7], [], [1.0]]
    assert buffers[0].tolist() == [[float(rank)] * 3] * 2
    assert gradlane.push_pull(np.float32([rank]), "one", op=gradlane.Max) == [1], "each member keeps its own name"
    assert gradlane.grouped_push_pull([], "nothing") == []
    assert gradlane.grouped_push_pull([np.zeros(0, np.float32)], "all empty")[0].size == 0


@pytest.mark.workers(2)
def test_a_group_is_waited_for_polled_and_weighted_as_one():
    buffers = [np.full(10, float(gradlane.rank()), np.float32) for _ in range(GROUP)]
    handle = gradlane.grouped_push_pull_async(
        buffers, "weighted", op=gradlane.WeightedAverage, weight=1.0 + 2 * gradlane.rank(), priority=5, timeout=20
    )
    assert handle.wait(timeout=20) is handle.wait() and handle.poll() and handle.exception() is None
    assert all((buffer == 0.75).all() for buffer in buffers)
    assert gradlane.metrics()["handles_live"] == 0


@pytest.mark.workers(2)
def test_a_group_with_a_bad_member_is_refused_by_name_and_nothing_is_sent():
    good = np.ones(3, np.float32)
    before = gradlane.metrics()["submissions"]
    for bad, name, complaint in [
        (np.ones(3, bool), "bad", r"bad\.1: .*view it as uint8"),
        (np.ones((3, 3), np.float32).T[:2], "bad", r"bad\.1: .*contiguous"),
        ("text", "bad", r"bad\.1: .*not a buffer"),
        (good, ["same", "same"], "tensor same comes twice"),
        (good, ["only"], "1 names for 2"),
        (good, ["a", ""], "cannot name a tensor"),
        (good, "", "cannot name a tensor"),
    ]:
        with pytest.raises(gradlane.InvalidArgumentError, match=complaint):
            gradlane.grouped_push_pull([good, bad], name)
    with pytest.raises(gradlane.InvalidArgumentError, match="out has 1 buffers for 2"):
        gradlane.grouped_push_pull([good, good], "bad", out=[good])
    with pytest.raises(gradlane.InvalidArgumentError, match=r"bad\.1: out is float64 \[3\]"):
        gradlane.grouped_push_pull([good, good], "bad", out=[good, np.ones(3)])
    with pytest.raises(gradlane.InvalidArgumentError, match="takes no weight"):
        gradlane.grouped_push_pull([good], "bad", weight=2.0)
    assert gradlane.metrics()["submissions"] == before
    assert (good == 1).all()
    gradlane.grouped_push_pull([good, np.ones(3, np.float32)], "bad", op=gradlane.Sum)
    assert (good == 2).all()


@pytest.mark.workers(2)
def test_workers_that_disagree_about_a_member_all_learn_its_name():
    buffers = [np.ones(8, np.float32), np.ones(10 + gradlane.rank(), np.float32)]
    with pytest.raises(gradlane.MismatchError) as caught:
        gradlane.grouped_push_pull(buffers, ["agreed", "disagreed"])
    assert caught.value.tensor == "disagreed"
    assert gradlane.push_pull(np.float32([1]), "after", op=gradlane.Sum) == [2]


@pytest.mark.workers(2)
def test_a_worker_that_contradicts_itself_is_refused_before_anything_is_sent():
    gradlane.push_pull(np.ones(4, np.float32), "fixed")
    fresh = np.ones(4, np.float32)
    before = gradlane.metrics()["submissions"]
    with pytest.raises(gradlane.MismatchError, match="fixed"):
        gradlane.grouped_push_pull([fresh, np.ones(5, np.float32)], ["fresh", "fixed"])
    assert gradlane.metrics()["submissions"] == before
    gradlane.grouped_push_pull([fresh], ["fresh"], op=gradlane.Sum)
    assert (fresh == 2).all()


@pytest.mark.over("shm", "quic")
@pytest.mark.workers(2, alone=True, settings={"step_timeout": "3s"})
def test_a_worker_that_leaves_one_out_is_named_with_the_tensor():
    buffers = [np.ones(100_000, np.float32) for _ in range(3)]
    names = ["a", "b", "c"]
    if gradlane.rank() == 1:
        gradlane.grouped_push_pull(buffers[:2], names[:2])
    else:
        with pytest.raises(gradlane.TimeoutError) as caught:
            gradlane.grouped_push_pull(buffers, names)
        assert "tensor c" in str(caught.value) and caught.value.missing_ranks == [1]
    gradlane.barrier(timeout=20)


def test_a_job_of_one_copies():
    gradlane.init()
    try:
        buffers, out = [np.arange(3.0), np.arange(2.0)], [np.zeros(3), np.zeros(2)]
        assert gradlane.grouped_push_pull_async(buffers, "alone", out=out).wait()[1].tolist() == [0.0, 1.0]
        assert out[0].tolist() == [0.0, 1.0, 2.0]
    finally:
        gradlane.shutdown()
