"""A job of one: everything works, and nothing is running. Also what happens before `init` and in forked children."""

import re

import gradlane
import numpy as np
import pytest
from processes import run_python


@pytest.fixture
def alone():
    gradlane.init()
    yield
    gradlane.shutdown()


@pytest.mark.parametrize(
    "call",
    [
        gradlane.rank,
        gradlane.size,
        gradlane.local_rank,
        gradlane.num_nodes,
        gradlane.barrier,
        gradlane.metrics,
        gradlane.metrics_text,
        lambda: gradlane.push_pull(np.zeros(3, np.float32), "x"),
        lambda: gradlane.declare("x"),
        lambda: gradlane.allgather(b"x"),
    ],
)
def test_before_init_every_call_says_to_call_init(call):
    assert not gradlane.is_initialized()
    with pytest.raises(gradlane.NotInitializedError, match=r"init\(\)"):
        call()


def test_without_a_launcher_the_job_has_one_worker(alone):
    assert gradlane.is_initialized()
    assert (gradlane.rank(), gradlane.size(), gradlane.local_rank(), gradlane.local_size()) == (0, 1, 0, 1)
    assert (gradlane.node_rank(), gradlane.num_nodes()) == (0, 1)


@pytest.mark.parametrize("op", [gradlane.Average, gradlane.Sum, gradlane.Min, gradlane.Max])
def test_reducing_over_one_worker_changes_nothing(alone, op):
    values = np.array([1.5, -2.0, np.inf], np.float32)
    assert gradlane.push_pull(values, f"values {op.name}", op=op) is values
    assert values.tolist() == [1.5, -2.0, np.inf]


def test_out_receives_the_result_and_the_input_stays(alone):
    source, target = np.arange(3.0), np.zeros(3)
    assert gradlane.push_pull(source, "into", out=target) is target
    assert target.tolist() == [0.0, 1.0, 2.0]


def test_objects_are_gathered_and_broadcast(alone):
    assert gradlane.allgather({"loss": 0.5}) == [{"loss": 0.5}]
    assert gradlane.broadcast_object([1, 2]) == [1, 2]
    gradlane.barrier()


def test_init_twice_is_once_and_shutdown_twice_too(alone):
    gradlane.init()
    gradlane.shutdown()
    gradlane.shutdown()
    assert not gradlane.is_initialized()


def test_init_into_another_job_is_refused(alone):
    with pytest.raises(gradlane.InvalidArgumentError, match="size 1, not 2"):
        gradlane.init(size=2)


def test_a_process_can_join_again_after_shutdown(alone):
    gradlane.shutdown()
    gradlane.init()
    assert gradlane.push_pull(np.ones(2), "again").tolist() == [1.0, 1.0]


def test_a_size_without_a_coordinator_is_a_configuration_error():
    with pytest.raises(gradlane.ConfigError, match="gradlane run -n 2"):
        gradlane.init(rank=0, size=2)


def test_a_wrong_setting_is_named():
    with pytest.raises(gradlane.ConfigError, match="step_timeuot"):
        gradlane.init(config={"step_timeuot": "3s"})
    assert not gradlane.is_initialized()


def test_the_metrics_are_those_that_the_documentation_lists(alone):
    documented = re.findall(r"^    - `(\w+)`: .*\.$", gradlane.metrics.__doc__, re.MULTILINE)
    # A job of one has no other clock.
    assert list(gradlane.metrics()) == [name for name in documented if not name.startswith("clock_")]


def test_the_metrics_as_text_have_the_same_values(alone):
    line = re.compile(r'^(?:gradlane_worker_|(?=process_))(\w+?)(?:_total)?\{rank="0"\} ([\d.]+)$', re.MULTILINE)
    in_text = {name: float(value) for name, value in line.findall(gradlane.metrics_text())}
    for name in ("push_pull_duration", "step_duration"):
        in_text[f"{name}_seconds"] = in_text.pop(f"{name}_seconds_sum")
        in_text[f"{name}_count"] = in_text.pop(f"{name}_seconds_count")
    values = {
        name.replace("_nanoseconds", "_seconds"): value / 1e9 if name.endswith("_nanoseconds") else value
        for name, value in gradlane.metrics().items()
    }
    # Nanoseconds since 1970 are more than a float tells apart.
    assert in_text == pytest.approx(values, rel=1e-12)


def test_operations_and_what_the_process_uses_are_counted(alone):
    gradlane.push_pull(np.zeros(3, np.float32), "x")
    counted = gradlane.metrics()
    assert [counted[name] for name in ("submissions", "resolved", "failed", "push_pull_duration_count")] == [1, 1, 0, 1]
    assert counted["process_cpu_nanoseconds"] > 0
    assert counted["process_resident_memory_bytes"] > 1 << 20


def test_print_config_tells_where_values_come_from(alone, capsys):
    gradlane.print_config({"step_timeout": "7s"})
    [line] = [line for line in capsys.readouterr().out.splitlines() if "step_timeout" in line and "7" in line]
    assert "argument" in line


def test_a_forked_child_is_told_its_place_and_refused_operations_and_the_parent_goes_on():
    ended = run_python(
        """
import os, gradlane
gradlane.init()
child = os.fork()
if child == 0:
    for call in (gradlane.init, lambda: gradlane.push_pull(bytearray(3), "x"), gradlane.barrier):
        try:
            call()
        except gradlane.ForkedProcessError:
            continue
        os._exit(1)
    questions = (gradlane.rank, gradlane.size, gradlane.local_rank, gradlane.local_size, gradlane.node_rank)
    assert [ask() for ask in (*questions, gradlane.num_nodes)] == [0, 1, 0, 1, 0, 1] and not gradlane.is_initialized()
    gradlane.shutdown()
    raise SystemExit(7)     # through the exit handlers
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert gradlane.push_pull(bytearray(b"abc"), "x") == b"abc"
"""
    )
    assert ended.code == 0, ended.output


def test_a_child_forked_before_init_may_join_a_job():
    ended = run_python(
        """
import os, gradlane
child = os.fork()
if child == 0:
    gradlane.init()
    raise SystemExit(gradlane.size() + 4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
"""
    )
    assert ended.code == 0, ended.output
