"""Small tensors that are declared together share a part. What happens if some of them are submitted later and others are not."""

import time

import gradlane
import numpy as np
import pytest

SOON = {"step_timeout": "2s"}
"""The knob that bounds the wait; short, so that the tests are."""

MISSING = "because they were declared together and share a part"


@pytest.mark.over("local", "shm", "quic")
@pytest.mark.workers(2, alone=True, settings=SOON)
def test_a_member_of_a_group_that_is_reduced_without_the_others_fails_in_time_and_names_them():
    names = ["weight", "bias", "scale"]
    gradlane.grouped_push_pull([np.ones(4, np.float32) for _ in names], names)
    for alone in ["bias", "bias", "scale"]:
        started = time.monotonic()
        with pytest.raises(gradlane.Error, match=MISSING) as caught:
            gradlane.push_pull(np.ones(4, np.float32), alone)
        assert "weight" in str(caught.value) and "prefix" in str(caught.value)
        assert time.monotonic() - started < 15.0
    assert gradlane.push_pull(np.ones(4, np.float32), "apart", op=gradlane.Sum)[0] == 2, "the job goes on"


@pytest.mark.over("shm", "quic")
@pytest.mark.workers(2, alone=True, settings=SOON)
def test_a_worker_that_forgets_a_member_fails_the_others_with_its_name():
    names = ["weight", "bias", "scale"]
    gradlane.grouped_push_pull([np.ones(4, np.float32) for _ in names], names)
    mine = names[: 2 + gradlane.rank()]
    # Worker 0 tells what it lacks when its step timeout has passed. The server's, for the part, passes at about the same time.
    with pytest.raises(gradlane.Error, match="for scale on worker 0|weight . bias . scale, round 1: no contribution from rank 0"):
        gradlane.grouped_push_pull([np.ones(4, np.float32) for _ in mine], mine)


@pytest.mark.over("local", "quic")
@pytest.mark.torch
@pytest.mark.workers(2, alone=True, settings=SOON)
def test_a_smaller_model_with_equal_names_is_told_to_take_a_prefix():
    import gradlane.torch as gl
    import torch

    teacher = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    student = torch.nn.Sequential(torch.nn.Linear(4, 4))
    gl.broadcast_parameters(teacher.state_dict())
    with pytest.raises(gradlane.Error, match=MISSING) as caught:
        gl.broadcast_parameters(student.state_dict())
    assert "1.weight" in str(caught.value) and "prefix" in str(caught.value)
    gl.broadcast_parameters(student.state_dict(), prefix="student.")
