"""Workers of one machine reduce among themselves: the same results and errors, and nothing goes to a server."""

import signal
import threading

import gradlane
import numpy as np
import pytest

pytestmark = [pytest.mark.workers(2, 3), pytest.mark.over("local")]


def test_nothing_goes_to_a_server():
    values = np.full(1_000_003, 4.0 ** gradlane.rank(), np.float32)
    gradlane.push_pull(values, "large", op=gradlane.Sum)
    assert (values == sum(4.0**rank for rank in range(gradlane.size()))).all()
    counts = gradlane.metrics()
    assert (counts["push_bytes"], counts["pull_bytes"], counts["connections"]) == (0, 0, 0)
    assert counts["local_bytes"] == values.nbytes


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8"])
def test_the_average_of_every_element_type_is_right(dtype):
    values = np.array([3, 30]).astype(dtype)
    assert gradlane.push_pull(values, f"average {dtype}").tolist() == [3, 30]


def test_many_operations_may_be_under_way_in_any_order():
    names = [f"many {index}" for index in range(100)]
    if gradlane.rank() == 0:
        names.reverse()
    handles = [gradlane.push_pull_async(np.ones(100, np.float32), name, op=gradlane.Sum) for name in names]
    assert all((handle.wait() == gradlane.size()).all() for handle in handles)


def test_a_disagreement_is_told_to_all():
    op = gradlane.Sum if gradlane.rank() == 0 else gradlane.Max
    with pytest.raises(gradlane.MismatchError, match="has op sum"):
        gradlane.push_pull(np.ones(2), "disagreement", op=op)


def test_a_call_that_waits_can_be_interrupted_and_what_it_began_goes_on():
    values, go = np.ones(3), np.zeros(1)
    if gradlane.rank() == 0:
        live = gradlane.metrics()["handles_live"]
        main = threading.get_ident()

        def interrupt():
            while gradlane.metrics()["handles_live"] == live:
                pass
            signal.pthread_kill(main, signal.SIGINT)

        other = threading.Thread(target=interrupt)
        other.start()
        with pytest.raises(KeyboardInterrupt):
            gradlane.push_pull(values, "interrupted", op=gradlane.Sum, timeout=60)
        other.join()
        gradlane.push_pull(go, "go")
        gradlane.push_pull(go, "come")
        while gradlane.metrics()["handles_live"] > live:
            pass
    else:
        gradlane.push_pull(go, "go")
        gradlane.push_pull(values, "interrupted", op=gradlane.Sum, timeout=60)
        gradlane.push_pull(go, "come")
    gradlane.push_pull(values, "interrupted", op=gradlane.Sum)
    assert values.tolist() == [gradlane.size() ** 2] * 3, "the second round of all sums of the first"


def test_a_call_that_waits_ends_at_its_timeout():
    if gradlane.rank() == 0:
        with pytest.raises(gradlane.TimeoutError):
            gradlane.push_pull(np.ones(3), "too late", timeout=0.3)
    gradlane.barrier()


def test_no_operation_is_left_over():
    gradlane.push_pull(np.ones(3), "last")
    assert gradlane.metrics()["handles_live"] == 0
