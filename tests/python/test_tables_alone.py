"""Tables of a job of one worker without servers, and rules beside those of PyTorch."""

import gradlane
import numpy as np
import pytest
from gradlane import MismatchError, rules
from gradlane.tables import Table
from processes import run_python

pytestmark = [pytest.mark.workers(1), pytest.mark.over("local")]


def test_a_worker_alone_keeps_the_rows_itself():
    table = Table("own", 2, rule=rules.SGD(lr=1.0), init="uniform", scale=0.5, seed=3)
    first = table.pull([1, 2, 1])
    table.push([1, 1, 2], np.ones((3, 2), np.float32))
    assert (table.look([1, 2]) == first[:2] - np.array([[2], [1]], np.float32)).all()
    assert (table.stats().rows, table.shrink(min_score=1.5).evicted) == (2, 2)
    with pytest.raises(MismatchError, match="seed=3"):
        Table("own", 2, rule=rules.SGD(lr=1.0)).pull([1])
    gradlane.undeclare("own")
    assert Table("own", 1, rule=rules.SGD()).pull([1]).tolist() == [[0.0]]


def test_first_values_are_those_of_any_job():
    # As an independent script made them: see the unit tests of `core::types::table`.
    golden = np.array([0x3E7B_1FBC, 0x3E8F_E621, 0x3E31_0BF1, 0xBDA5_2CD5], np.uint32).view(np.float32)
    rows = Table("golden", 4, rule=rules.SGD(), init="uniform", scale=0.5, seed=3).look([17])
    assert rows.tolist() == [golden.tolist()]


def test_after_a_fork_the_child_is_told():
    program = """
import os, numpy, gradlane
from gradlane import errors, rules
from gradlane.tables import Table
gradlane.init()
table = Table("forked", 2, rule=rules.SGD())
begun = table.pull_async([1])
if os.fork() == 0:
    for use in (lambda: table.pull([1]), begun.wait):
        try:
            use()
        except (errors.ForkedProcessError, errors.NotInitializedError):
            continue
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert begun.wait().shape == (1, 2)
"""
    ended = run_python(program)
    assert ended.code == 0, ended.output
