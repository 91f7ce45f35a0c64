"""Parameters of a job of one, which keeps them itself, and the arguments of the calls."""

from pathlib import Path

import gradlane
import numpy as np
import pytest
from gradlane import InvalidArgumentError, modes, parameters, rules
from processes import run_python


@pytest.fixture
def alone():
    gradlane.init()
    yield
    gradlane.shutdown()


@pytest.fixture
def w(alone):
    parameters.init("w", np.array([1.0, 2.0]))


def test_before_init_every_call_says_to_call_init():
    for use in (parameters.init, parameters.push, parameters.pull, parameters.push_pull):
        with pytest.raises(gradlane.NotInitializedError, match=r"init\(\)"):
            use("x", np.zeros(3))


def test_a_parameter_is_given_a_value_once_changed_and_read(w):
    out = np.empty(2)
    assert parameters.init("w", np.zeros(2)) == 1, "it has a value"
    assert parameters.push("w", np.array([10.0, 20.0])) == 2
    assert (parameters.pull("w", out), out.tolist()) == (2, [11.0, 22.0])
    assert (parameters.push_pull("w", np.ones(2), out), out.tolist()) == (3, [12.0, 23.0])
    assert (parameters.push_pull("w", out, update="assign"), out.tolist()) == (4, [12.0, 23.0])
    assert parameters.push("w", np.zeros(2), update="assign") == 5
    assert (parameters.pull_async("w", out).wait(), out.tolist()) == (5, [0.0, 0.0])


def test_every_kind_of_buffer_is_taken(alone):
    parameters.init("bytes", b"\1\2\3")
    out = bytearray(3)
    assert parameters.push_pull("bytes", b"\1\1\1", out) == 2
    assert out == b"\2\3\4"
    parameters.init("scalar", np.float32(2.5))
    place = np.zeros((), np.float32)
    parameters.pull("scalar", place)
    assert place == 2.5


def test_errors_are_those_of_a_larger_job(w):
    with pytest.raises(gradlane.FailedPreconditionError, match="has no value"):
        parameters.pull("unset", np.empty(2))
    with pytest.raises(gradlane.MismatchError, match="w") as caught:
        parameters.push("w", np.zeros(2, np.float32))
    assert caught.value.field == "dtype"
    with pytest.raises(gradlane.MismatchError) as caught:
        parameters.pull("w", np.empty((1, 2)))
    assert caught.value.field == "shape"


def test_a_name_that_was_undeclared_may_have_another_shape(w):
    gradlane.undeclare("w")
    assert parameters.init("w", np.zeros(5)) == 1


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        (lambda: parameters.init("", np.ones(2)), "name="),
        (lambda: parameters.init("e", np.ones(0)), "value: its shape .0. has no elements"),
        (lambda: parameters.pull("e", np.ones((2, 0))), "out: its shape .2, 0. has no elements"),
        (lambda: parameters.init("w", [1.0]), "value: list is not a buffer"),
        (lambda: parameters.init("w", np.ones((4, 4))[:, 1]), "value: the array is not C-contiguous"),
        (lambda: parameters.init("w", np.ones(2, bool)), "value: dtype bool"),
        (lambda: parameters.pull("w", read_only()), "out: the array is read-only"),
        (lambda: parameters.push_pull("w", read_only()), "value: the array is read-only"),
        (lambda: parameters.push("w", np.ones(2), update="multiply"), "update='multiply'"),
        (lambda: parameters.push("w", np.ones(2), update=None), "update=None"),
        (lambda: parameters.push_pull("w", np.ones(2), np.ones(3)), "out is float64 .3., value float64 .2."),
        (lambda: parameters.push_pull("w", *overlapping()), "value and out overlap"),
        (lambda: parameters.pull("w", np.ones(2), priority="high"), "priority='high'"),
        (lambda: parameters.pull("w", np.ones(2), timeout=-1), "timeout=-1"),
        (lambda: gradlane.wait_any([]), "handles is empty"),
        (lambda: gradlane.wait_any([3]), r"handles\[0\] is int"),
        (lambda: gradlane.wait_any([parameters.init_async("w", np.ones(2))], timeout="x"), "timeout='x'"),
    ],
)
def test_a_wrong_argument_is_named(w, use, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        use()


def read_only():
    values = np.ones(2)
    values.flags.writeable = False
    return values


def overlapping():
    values = np.ones(3)
    return values[:2], values[1:]


def test_values_that_are_only_read_may_be_read_only(w):
    assert parameters.init("read", read_only()) == 1
    assert parameters.push("w", read_only()) == 2
    assert parameters.push_pull("w", read_only(), np.empty(2)) == 3


def test_wait_any_finds_the_first_that_has_ended(w):
    handles = [gradlane.push_pull_async(np.ones(2), "sum"), parameters.pull_async("w", np.empty(2))]
    assert gradlane.wait_any(handles) == 0
    assert gradlane.wait_any(iter(handles[1:])) == 0
    failed = parameters.pull_async("unset", np.empty(2))
    assert gradlane.wait_any([failed], timeout=0) == 0, "it has ended, and its own wait tells how"
    with pytest.raises(gradlane.FailedPreconditionError):
        failed.wait()


def test_a_reduction_tells_no_version(alone):
    assert gradlane.push_pull_async(np.ones(2), "sum").native.effect is None


def test_a_forked_child_is_refused():
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import gradlane, numpy as np
from children import fork, refused
from gradlane import parameters

gradlane.init()
parameters.init("w", np.ones(2))
handle = parameters.pull_async("w", np.empty(2))

def child():
    refused(lambda: parameters.pull("w", np.empty(2)))
    refused(lambda: gradlane.wait_any([handle]))

fork(child)
print(parameters.pull("w", np.empty(2)))
"""
    ended = run_python(script)
    assert (ended.code, ended.output.strip()) == (0, "1"), ended.output


def test_a_clock_is_of_the_job_in_which_it_was_first_used():
    clock = parameters.Clock("c", modes.Sync())
    with pytest.raises(gradlane.NotInitializedError, match=r"init\(\)"):
        clock.tick()
    gradlane.init()
    parameters.init("w", np.zeros(2), rule=rules.SGD(lr=1.0), mode=clock)
    parameters.push("w", np.ones(2), update="step")
    assert clock.tick() == parameters.Tick(1, 1, 0, "accepted")
    gradlane.shutdown()
    gradlane.init()
    for use in (clock.tick, clock.leave, lambda: parameters.init("w", np.zeros(2), mode=clock)):
        with pytest.raises(gradlane.FailedPreconditionError, match="of a job that has ended"):
            use()
    assert parameters.Clock("c", modes.SSP(1)).tick().round == 1, "a new job knows nothing of it"
    gradlane.shutdown()


def test_a_forked_child_does_not_tick():
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import gradlane
from children import fork, refused
from gradlane import modes, parameters

gradlane.init()
clock = parameters.Clock("c", modes.SSP(1))
clock.tick()
fork(lambda: refused(clock.tick))
print(clock.tick().round)
"""
    ended = run_python(script)
    assert (ended.code, ended.output.strip()) == (0, "2"), ended.output


def test_pytorch_is_not_imported_for_other_buffers():
    script = """
import sys, gradlane
from gradlane import parameters

gradlane.init()
parameters.init("w", bytes(4))
print([name for name in ("torch", "numpy") if name in sys.modules])
"""
    ended = run_python(script)
    assert (ended.code, ended.output.strip()) == (0, "[]"), ended.output
