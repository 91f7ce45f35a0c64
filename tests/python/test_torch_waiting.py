"""The time limit of `synchronize`, as users give it."""

import pytest

pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
from gradlane import InvalidArgumentError  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("local", "shm")]


@pytest.mark.parametrize("timeout", ["3", -1], ids=str)
def test_synchronize_refuses_what_is_no_time(timeout):
    with pytest.raises(InvalidArgumentError, match=r"timeout=.*give seconds"):
        gl.synchronize(timeout=timeout)
