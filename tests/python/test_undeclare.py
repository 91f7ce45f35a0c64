"""Names that end when every worker has undeclared them."""

import gradlane
import numpy as np
import pytest
from gradlane.errors import FailedPreconditionError, InvalidArgumentError

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(2)]


def test_a_name_for_each_step():
    for step in range(50):
        value = np.full(step + 1, step, np.float32)
        np.testing.assert_array_equal(gradlane.push_pull(value, "metric", op=gradlane.Sum), np.full(step + 1, 2 * step))
        gradlane.undeclare("metric")


def test_what_cannot_end_says_why():
    with pytest.raises(InvalidArgumentError, match="never is not declared"):
        gradlane.undeclare("never")
    with pytest.raises(InvalidArgumentError, match="cannot name a tensor"):
        gradlane.undeclare(["x", None])
    gradlane.declare({"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)})
    with pytest.raises(InvalidArgumentError, match="tensor a shares a part with b"):
        gradlane.undeclare("a")
    gradlane.undeclare(["a", "b"])
    gradlane.barrier("ended")
    mine = np.ones(3, np.float32)
    if gradlane.rank() == 0:
        handle = gradlane.push_pull_async(mine, "late")
        with pytest.raises(FailedPreconditionError, match="tensor late is still being"):
            gradlane.undeclare("late")
        gradlane.barrier("tried")
        handle.wait()
    else:
        gradlane.barrier("tried")
        gradlane.push_pull(mine, "late")
    gradlane.undeclare("late")
