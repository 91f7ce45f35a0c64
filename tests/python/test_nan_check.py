"""Contributions with a NaN or an infinity: what becomes of them, by the setting `nan_check`."""

import gradlane
import numpy as np
import pytest
from gradlane import Compression

OVER = pytest.mark.over("local", "shm", "quic")
CODECS = [
    Compression.none,
    Compression.bf16,
    Compression.fp16,
    Compression.int8,
    Compression.int4,
    Compression.fp8_e4m3,
    Compression.fp8_e5m2,
    Compression.topk,
    Compression.randomk,
]
LEN = 100_000


def contribution(special, mine, at=54_321):
    """Ones, with a special number among them on rank 1."""
    array = np.ones(LEN, np.float32)
    if mine:
        array[at] = special
    return array


@OVER
@pytest.mark.workers(2, servers=1, settings={"nan_check": "error"})
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.codec)
def test_an_error_names_tensor_worker_and_round_to_all_workers_and_the_next_round_is_whole(codec):
    name, special = f"checked {codec.codec}", [np.nan, np.inf, -np.inf][CODECS.index(codec) % 3]
    for _ in range(2):
        gradlane.push_pull(np.ones(LEN, np.float32), name, compression=codec)
    before = gradlane.metrics()["not_finite"]
    with pytest.raises(gradlane.NotFiniteError, match=rf"{name}.*round 2: what worker 1 contributes has a NaN") as caught:
        gradlane.push_pull(contribution(special, gradlane.rank() == 1), name, compression=codec)
    assert (caught.value.tensor, caught.value.round, caught.value.worker) == (name, 2, "worker 1")
    assert (gradlane.metrics()["not_finite"] > before) == (gradlane.rank() == 1)
    whole = gradlane.push_pull(np.ones(LEN, np.float32), name, op=gradlane.Sum, compression=codec)
    assert np.isfinite(whole).all()


@OVER
@pytest.mark.workers(2, servers=1, settings={"nan_check": "error"})
@pytest.mark.parametrize("op", [gradlane.Sum, gradlane.Max], ids=["sum", "max"])
def test_it_is_found_wherever_it_is_in_a_part(op):
    long = 3_000_001  # Three parts, each of many pieces; the last one is short.
    for number, at in enumerate([0, 8191, 1_048_575, 1_048_576, 1_600_000, long - 1]):
        name, by = f"anywhere {op} {at}", number % 2
        array = np.ones(long, np.float32)
        if gradlane.rank() == by:
            array[at] = np.inf
        with pytest.raises(gradlane.NotFiniteError, match=rf"round 0: what worker {by} contributes has a NaN"):
            gradlane.push_pull(array, name, op=op)
        whole = gradlane.push_pull(np.ones(long, np.float32), name, op=op)
        assert (whole == (2 if op is gradlane.Sum else 1)).all(), "the next round"


@pytest.mark.over("local")
@pytest.mark.workers(1, settings={"nan_check": "error"})
def test_the_only_worker_of_a_job_is_checked_too():
    for _ in range(2):
        gradlane.push_pull(np.ones(LEN, np.float32), "alone")
    with pytest.raises(gradlane.NotFiniteError, match="alone, round 2: what worker 0 contributes has a NaN"):
        gradlane.push_pull(contribution(np.nan, True), "alone")
    assert gradlane.metrics()["not_finite"] == 1
    assert np.isinf(gradlane.broadcast(contribution(np.inf, True), 0, "bits"))[54_321], "the bits of a broadcast may be any"
    assert gradlane.push_pull(np.ones(LEN, np.float32), "alone").sum() == LEN


@OVER
@pytest.mark.workers(2, servers=1, settings={"nan_check": "warn"})
def test_a_warning_lets_it_pass_and_counts_it_where_it_comes_from():
    before = gradlane.metrics()["not_finite"]
    result = gradlane.push_pull(contribution(np.nan, gradlane.rank() == 1), "warned")
    assert np.isnan(result[54_321]) and np.isnan(result).sum() == 1
    assert gradlane.metrics()["not_finite"] - before == gradlane.rank()
    bits = gradlane.broadcast(contribution(np.inf, gradlane.rank() == 1), 1, "bits")
    assert np.isinf(bits[54_321]), "the bits of a broadcast may be any"
    assert gradlane.metrics()["not_finite"] - before == gradlane.rank()


@OVER
@pytest.mark.workers(2, servers=1)
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.codec)
def test_what_is_no_number_is_none_in_the_sum_whatever_the_codec(codec):
    result = gradlane.push_pull(contribution(np.nan, gradlane.rank() == 1), f"passes {codec.codec}", compression=codec)
    if codec is Compression.randomk and gradlane.metrics()["push_bytes"]:
        assert np.isnan(result).any(), "all that is sent of the part"
    else:
        assert np.isnan(result[54_321])
    assert gradlane.metrics()["not_finite"] == 0
