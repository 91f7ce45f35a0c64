"""The time limits of waits, as users give them."""

import gradlane
import numpy as np
import pytest
from gradlane import InvalidArgumentError

pytestmark = [pytest.mark.workers(2), pytest.mark.over("local", "shm")]


@pytest.mark.parametrize("timeout", ["3", -1, float("nan"), [3]], ids=str)
def test_a_wait_refuses_what_is_no_time(timeout):
    handle = gradlane.push_pull_async(np.ones(2), "waited for")
    for wait in (handle.wait, handle.synchronize):
        with pytest.raises(InvalidArgumentError, match=r"timeout=.*give seconds"):
            wait(timeout)
    assert handle.wait(60).tolist() == [1.0, 1.0]
