"""Time limits of calls that are longer than the job's step timeout: they cannot have an effect, and a warning says so once."""

import warnings

import gradlane
import numpy as np
import pytest

pytestmark = pytest.mark.over("local", "shm")


def told(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("form", ["one", "group"])
@pytest.mark.workers(2, alone=True, settings={"step_timeout": "17s"})
def test_a_longer_timeout_is_warned_of_once(form):
    reduce = {
        "one": lambda timeout: gradlane.push_pull(np.ones(3), "one", timeout=timeout),
        "group": lambda timeout: gradlane.grouped_push_pull([np.ones(3)], "group", timeout=timeout),
    }[form]
    assert told(lambda: [reduce(timeout) for timeout in (None, 1.5, 17)]) == []
    [warning] = told(lambda: [reduce(timeout) for timeout in (60, 90)])
    assert warning.startswith("a timeout of 60 s is longer than the job's step timeout of 17 s") and "GRADLANE_STEP_TIMEOUT" in warning


@pytest.mark.workers(2, alone=True, settings={"step_timeout": "1500ms"})
def test_the_step_timeout_ends_a_wait_in_spite_of_a_longer_timeout():
    def wait():
        with pytest.raises(gradlane.StallError, match=r"after 1\.\d s|after 2\.\d s"):
            gradlane.push_pull(np.ones(3), "nobody comes", timeout=60)

    if gradlane.rank() == 0:
        [warning] = told(wait)
        assert "step timeout of 1.5 s" in warning
    gradlane.barrier("it has ended", timeout=60)


@pytest.mark.parametrize("seconds", [None, 1800, 7200])
@pytest.mark.workers(2, alone=True)
def test_only_a_timeout_that_a_script_gives_is_warned_of_by_a_process_group(seconds):
    torch = pytest.importorskip("torch")
    from datetime import timedelta

    import gradlane.torch
    from torch import distributed

    limit = {} if seconds is None else {"timeout": timedelta(seconds=seconds)}

    def use():
        distributed.init_process_group("gradlane", store=distributed.HashStore(), rank=gradlane.rank(), world_size=2, **limit)
        for _ in range(2):
            distributed.all_reduce(torch.ones(3))

    warned = [text for text in told(use) if "step timeout" in text]
    assert len(warned) == (1 if seconds == 7200 else 0), warned
    distributed.destroy_process_group()
