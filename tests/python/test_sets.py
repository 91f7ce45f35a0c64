"""Process sets, and collectives whose results are not the same on all workers, on buffers."""

import gradlane
import numpy as np
import pytest
from gradlane._reduction import Reduction
from gradlane.errors import InvalidArgumentError, MismatchError

pytestmark = [pytest.mark.workers(4), pytest.mark.over("local", "shm", "quic")]

ODD, EVEN = gradlane.ProcessSet([1, 3]), gradlane.ProcessSet([0, 2])


def own_set():
    return ODD if gradlane.rank() % 2 else EVEN


def test_sets_have_names_of_their_own_and_reduce_side_by_side():
    rank = gradlane.rank()
    values = np.full(1000, float(rank))
    mean = gradlane.push_pull(values, "same name", out=np.empty_like(values), process_set=own_set())
    assert mean.tolist() == [2.0 if rank % 2 else 1.0] * 1000
    gradlane.push_pull(values, "same name", op=gradlane.Sum)
    assert values.tolist() == [6.0] * 1000, "of all workers, beside the sets"


def test_a_set_knows_its_members():
    mine, other = (ODD, EVEN) if gradlane.rank() % 2 else (EVEN, ODD)
    assert mine.included() and not other.included()
    assert (mine.size(), mine.rank()) == (2, gradlane.rank() // 2)
    assert gradlane.ProcessSet([3, 1]) == ODD and "ProcessSet([1, 3])" in repr(ODD)
    with pytest.raises(InvalidArgumentError, match="only members may make this call"):
        gradlane.push_pull(np.ones(2), "of others", process_set=other)


@pytest.mark.parametrize("ranks", [[], [1, 1], [-1, 0], [0.5], "01", 3])
def test_ranks_that_are_no_set_are_refused(ranks):
    with pytest.raises(InvalidArgumentError, match=r"give each member once|give a list of ranks"):
        gradlane.ProcessSet(ranks)


def test_a_rank_that_the_job_lacks_is_refused():
    with pytest.raises(InvalidArgumentError, match="worker 9 does not exist in a job of 4 workers"):
        gradlane.push_pull(np.ones(2), "too many", process_set=gradlane.ProcessSet([gradlane.rank(), 9]))


def test_broadcast_in_a_set():
    values = np.full(3, gradlane.rank())
    gradlane.broadcast(values, 3 if gradlane.rank() % 2 else 0, "weights", process_set=own_set())
    assert values.tolist() == [3 if gradlane.rank() % 2 else 0] * 3
    with pytest.raises(InvalidArgumentError, match=r"root_rank=\d is not one of the workers that take part"):
        gradlane.broadcast(values, 1 - gradlane.rank() % 2, "weights", process_set=own_set())


@pytest.mark.parametrize("root", range(4))
def test_reduce(root):
    values = np.full(50_000, float(gradlane.rank()), np.float32)
    gradlane.reduce(values, "reduced", root, op=gradlane.Sum)
    expected = 6.0 if gradlane.rank() == root else gradlane.rank()
    assert (values == expected).all()


def test_reduce_scatter():
    rank = gradlane.rank()
    values, part = np.arange(8.0) + rank, np.empty(2)
    handle = gradlane.reduce_scatter_async(values, part, "scattered", op=gradlane.Sum)
    assert handle.wait() is part
    assert part.tolist() == [8.0 * rank + 6, 8.0 * rank + 10]
    assert values.tolist() == (np.arange(8.0) + rank).tolist(), "the contribution stays"
    of_set = gradlane.reduce_scatter(values[:2].copy(), np.empty(1), "in a set", process_set=own_set())
    assert of_set.tolist() == [(2.0 if rank % 2 else 1.0) + rank // 2]
    with pytest.raises(InvalidArgumentError, match="8 elements of float64 into 3"):
        gradlane.reduce_scatter(values, np.empty(3), "uneven")


def test_all_gather_of_different_lengths():
    rank = gradlane.rank()
    outs = [np.zeros(1 + other, np.int32) for other in range(4)]
    gradlane.all_gather(np.full(1 + rank, rank, np.int32), outs, "gathered")
    assert [out.tolist() for out in outs] == [[other] * (1 + other) for other in range(4)]
    pair = [np.zeros(1, np.uint8) for _ in range(2)]
    gradlane.all_gather(np.array([rank], np.uint8), pair, "gathered", process_set=own_set())
    assert [out.item() for out in pair] == list(own_set().ranks)


def test_all_to_all_of_different_lengths():
    rank = gradlane.rank()
    buffers = [np.full(1 + rank + other, 10 * rank + other, np.int64) for other in range(4)]
    outs = [np.zeros(1 + rank + other, np.int64) for other in range(4)]
    for _ in range(3):
        gradlane.all_to_all(buffers, outs, "exchanged")
        assert [out.tolist() for out in outs] == [[10 * other + rank] * (1 + rank + other) for other in range(4)]


def test_messages_go_round_a_ring():
    rank = gradlane.rank()
    token = np.array([rank], np.int64)
    received = np.zeros(1, np.int64)
    for _ in range(5):
        sent = gradlane.send_async(token, (rank + 1) % 4, "token")
        gradlane.recv(received, (rank - 1) % 4, "token")
        sent.wait()
        token[:] = received
    assert token.item() == (rank - 5) % 4
    with pytest.raises(InvalidArgumentError, match="is this worker itself"):
        gradlane.send(token, rank, "token")


def test_objects_and_barriers_in_a_set():
    rank = gradlane.rank()
    assert gradlane.allgather({"of": rank}, process_set=own_set()) == [{"of": member} for member in own_set().ranks]
    assert gradlane.broadcast_object("x" * rank, own_set().ranks[1], process_set=own_set()) == "x" * own_set().ranks[1]
    for _ in range(3):
        gradlane.barrier(process_set=own_set())
    with pytest.raises(InvalidArgumentError, match=r"root_rank=\d is not one of the workers that take part"):
        gradlane.broadcast_object(rank, 1 - rank % 2, process_set=own_set())


@pytest.mark.over("shm", "quic")
def test_only_what_is_needed_travels():
    rank, elements = gradlane.rank(), 40_000
    whole, part = np.ones(4 * elements, np.float32), np.empty(elements, np.float32)
    before = gradlane.metrics()
    gradlane.reduce_scatter(whole, part, "bytes")
    after = gradlane.metrics()
    pushed, pulled = (
        after[f"{way}_bytes"] - before[f"{way}_bytes"] for way in ("push", "pull")
    )
    assert (pushed, pulled) == (whole.nbytes, part.nbytes), f"on rank {rank}"


@pytest.mark.workers(2, alone="disagreement")
def test_a_disagreement_names_both_sets():
    values = np.ones(3)
    receiver = gradlane.rank()
    with pytest.raises(MismatchError, match=r"participants.*sums to worker [01].*sums to worker [01]"):
        gradlane._operations.submit(
            "disputed",
            *(2 * [gradlane._buffers.locate(values, writable=True)]),
            Reduction("sum", receiver=receiver),
            result=values,
        ).wait()
