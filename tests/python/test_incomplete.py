"""Small tensors that are declared together share a part. What happens if some of them are submitted later and others are not."""

import time

import gradlane
import numpy as np
import pytest

SOON = {"step_timeout": "2s"}
"""The knob that bounds the wait; short, so that the tests are."""

LOCAL = SOON | {"local_reduce": "auto"}
"""The same where the workers of a machine sum among themselves."""

MISSING = "because they were declared together and share a part"


@pytest.mark.workers(2, alone=True, settings=SOON)
def test_a_member_of_a_group_that_is_reduced_without_the_others_fails_in_time_and_names_them():
    check_members_alone()


@pytest.mark.workers(2, alone=True, settings=LOCAL)
def test_a_member_of_a_group_that_is_reduced_without_the_others_fails_in_time_on_one_machine_too():
    check_members_alone()


def check_members_alone():
    names = ["weight", "bias", "scale"]
    gradlane.grouped_push_pull([np.ones(4, np.float32) for _ in names], names)
    for alone in ["bias", "bias", "scale"]:
        started = time.monotonic()
        with pytest.raises(gradlane.Error, match=MISSING) as caught:
            gradlane.push_pull(np.ones(4, np.float32), alone)
        assert "weight" in str(caught.value) and "prefix" in str(caught.value)
        assert time.monotonic() - started < 15.0
    assert gradlane.push_pull(np.ones(4, np.float32), "apart", op=gradlane.Sum)[0] == 2, "the job goes on"


@pytest.mark.workers(2, alone=True, settings=SOON)
def test_a_worker_that_forgets_a_member_fails_the_others_with_its_name():
    names = ["weight", "bias", "scale"]
    gradlane.grouped_push_pull([np.ones(4, np.float32) for _ in names], names)
    mine = names[: 2 + gradlane.rank()]
    with pytest.raises(gradlane.Error, match="for scale on worker 0"):
        gradlane.grouped_push_pull([np.ones(4, np.float32) for _ in mine], mine)


@pytest.mark.torch
@pytest.mark.workers(2, alone=True, settings=SOON)
def test_a_smaller_model_with_equal_names_is_told_to_take_a_prefix():
    check_smaller_model()


@pytest.mark.torch
@pytest.mark.workers(2, alone=True, settings=LOCAL)
def test_a_smaller_model_with_equal_names_is_told_to_take_a_prefix_on_one_machine_too():
    check_smaller_model()


def check_smaller_model():
    import gradlane.torch as gl
    import torch

    teacher = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    student = torch.nn.Sequential(torch.nn.Linear(4, 4))
    gl.broadcast_parameters(teacher.state_dict())
    with pytest.raises(gradlane.Error, match=MISSING) as caught:
        gl.broadcast_parameters(student.state_dict())
    assert "1.weight" in str(caught.value) and "prefix" in str(caught.value)
    gl.broadcast_parameters(student.state_dict(), prefix="student.")
