"""Every exception class is reached by a call that a user can make, and says with its code whether to try again.

Two workers and their server live in this process, so that a disagreement needs no launch.
"""

import array
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import gradlane
import numpy as np
import pytest
from gradlane import _core, _dlpack, errors
from gradlane._reduction import Reduction
from processes import TRANSPORTS, run_python

SETTINGS = {"step_timeout": "500ms", "stall_warn": "100ms"}
SETTINGS |= dict.fromkeys(("partition_bytes", "credit_bytes", "submit_bytes_max"), "1MiB") | TRANSPORTS["quic"]
TWO = {"size": 2, "servers": 1, "local_rank": 0, "local_size": 1, "node_rank": 0, "num_nodes": 1, "timeout": 20.0, "software": {}}

NOT_BY_A_CALL = {
    errors.Error: "a base class",
    errors.AbortedError: "a base class",
    errors.PeerLostError: "needs a process that dies: test_lost_members.py",
    errors.ServerUnreachableError: "needs a server that cannot be reached: tests/it/unreachable.rs",
    errors.UnresponsiveError: "needs an engine whose threads are stuck: tests/it/stuck.rs",
    errors.CertExpiredError: "needs a certificate that has expired: tests/it/security.rs",
    errors.TokenError: "needs a token of a coordinator: core/src/identity/authority.rs",
    errors.FencedError: "needs a process that is held up: test_lost_members.py",
    errors.UnusedParametersError: "needs a model: test_torch_wrapper.py",
    errors.ProtocolError: "needs a peer of other make: tests/it/hostile.rs",
    errors.ChecksumError: "needs a fault of the memory: tests/it",
    errors.NotFiniteError: "needs a job that looks for it: test_nan_check.py",
    errors.RootLostError: "needs a worker that was lost: test_launch.py",
    errors.FullResyncNeededError: "needs a table that was cleared: test_table_changes.py",
    errors.StateLostError: "needs a server that dies: test_restore.py",
    errors.QuorumLostError: "needs workers that were lost: test_elastic_hold.py",
    errors.DeviceError: "needs a device that fails: tests/it/devices.rs",
    errors.InternalError: "needs a defect",
}


@dataclass(frozen=True)
class Pair:
    """Two workers of one job, and the string that leads to it."""

    first: _core.Session
    second: _core.Session
    join: str


@pytest.fixture(scope="module")
def pair():
    with gradlane.Server(workers=2, config=SETTINGS) as server:
        with ThreadPoolExecutor(2) as threads:
            workers = list(threads.map(lambda rank: join(server.join, rank=rank), range(2)))
        yield Pair(*workers, server.join)
        with ThreadPoolExecutor(2) as threads:  # each waits for the other
            list(threads.map(lambda worker: worker.shutdown(10.0), workers))


def reduce_what_is_no_buffer(pair):
    gradlane.push_pull(object(), "object")


def weigh_integers(pair):
    submit(pair.first, "integers", dtype="int64", op="weighted_mean")


def misspell_a_setting(pair):
    gradlane.init(config={"step_timeuot": "3s"})


def disagree_about_a_shape(pair):
    submit(pair.second, "shapes", length=4)
    submit(pair.first, "shapes", length=3).wait(None)


def contribute_alone(pair):
    submit(pair.first, "alone").wait(None)


def wait_briefly(pair):
    submit(pair.first, "brief").wait(0.01)


def give_it_little_time(pair):
    submit(pair.first, "late", timeout=0.01).wait(None)


def form_a_job_alone(pair):
    with gradlane.Server(workers=2, config={"form_timeout": "300ms"}) as server:
        join(server.join, rank=0)


def cancel(pair):
    handle = submit(pair.first, "cancelled")
    handle.cancel()
    handle.wait(None)


def submit_more_than_fits(pair):
    submit(pair.first, "large", length=200_000)  # one always fits, however large
    submit(pair.first, "another", length=200_000, timeout=0.05)


def take_a_rank_that_is_taken(pair):
    with gradlane.Server(workers=2) as server, ThreadPoolExecutor(2) as pool:
        both = [pool.submit(join, server.join, rank=0) for _ in range(2)]
        late = next(as_completed(both))
        # The job forms without the late one.
        [taken] = [other for other in both if other is not late]
        sessions = [join(server.join, rank=1), taken.result()]
        list(pool.map(lambda session: session.shutdown(10.0), sessions))  # each waits for the other
        late.result()


def come_as_one_of_three_to_a_job_of_two(pair):
    with gradlane.Server(workers=2) as server:
        join(server.join, size=3)


def come_with_another_secret(pair):
    join(pair.join[:-26] + "a" * 26)


def look_for_a_job_that_nobody_runs(pair):
    _core.find_join("a job that nobody runs", 0.05)


def listen_where_another_listens(pair):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        gradlane.Server(f"127.0.0.1:{other.getsockname()[1]}").start()


def start_a_stopped_server(pair):
    server = gradlane.Server()
    server.stop()
    server.start()


def submit_after_the_end(pair):
    session = _core.Session.local({})
    session.shutdown(0.0)
    submit(session, "late")


def ask_before_init(pair):
    gradlane.rank()


def read_where_nothing_was_saved(pair):
    gradlane.checkpoint.Reader("no such directory")


def read_what_was_damaged(pair):
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "latest").write_text("checkpoint-1")
        gradlane.checkpoint.Reader(directory)


def reduce_memory_of_an_unknown_kind(pair):
    gradlane.push_pull(OnDevice(np.zeros(3)), "device")


RAISED = [
    (errors.InvalidArgumentError, "InvalidArgument", False, reduce_what_is_no_buffer),
    (errors.InvalidArgumentError, "InvalidArgument", False, weigh_integers),
    (errors.ConfigError, "InvalidArgument", False, misspell_a_setting),
    (errors.MismatchError, "InvalidArgument", False, disagree_about_a_shape),
    (errors.StallError, "DeadlineExceeded", False, contribute_alone),
    (errors.StillRunningError, "DeadlineExceeded", False, wait_briefly),
    (errors.TimeoutError, "DeadlineExceeded", False, give_it_little_time),
    (errors.NotFormedError, "DeadlineExceeded", False, form_a_job_alone),
    (errors.CancelledError, "Cancelled", False, cancel),
    (errors.ResourceExhaustedError, "ResourceExhausted", True, submit_more_than_fits),
    (errors.NotFoundError, "NotFound", False, read_where_nothing_was_saved),
    (errors.CorruptCheckpointError, "DataLoss", False, read_what_was_damaged),
    (errors.DuplicateRankError, "AlreadyExists", False, take_a_rank_that_is_taken),
    (errors.IncompatibleError, "FailedPrecondition", False, come_as_one_of_three_to_a_job_of_two),
    (errors.AuthError, "Unauthenticated", False, come_with_another_secret),
    (errors.UnavailableError, "Unavailable", True, look_for_a_job_that_nobody_runs),
    (errors.UnavailableError, "Unavailable", True, listen_where_another_listens),
    (errors.FailedPreconditionError, "FailedPrecondition", False, start_a_stopped_server),
    (errors.FailedPreconditionError, "FailedPrecondition", False, submit_after_the_end),
    (errors.NotInitializedError, "FailedPrecondition", False, ask_before_init),
    (errors.UnsupportedError, "Unimplemented", False, reduce_memory_of_an_unknown_kind),
]


@pytest.mark.parametrize(
    ("kind", "code", "retryable", "call"), RAISED, ids=[f"{row[0].__name__}-{row[3].__name__}" for row in RAISED]
)
def test_a_call_raises(kind, code, retryable, call, pair, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADLANE_STATE_DIR", str(tmp_path))
    if call in (reduce_what_is_no_buffer, reduce_memory_of_an_unknown_kind):
        gradlane.init()
    try:
        with pytest.raises(errors.Error) as caught:
            call(pair)
    finally:
        gradlane.shutdown()
    assert type(caught.value) is kind, str(caught.value)
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert str(caught.value)


def test_a_forked_child_is_told_so_with_the_code():
    ended = run_python(
        """
import os, gradlane
gradlane.init()
if os.fork() == 0:
    try:
        gradlane.barrier()
    except gradlane.ForkedProcessError as error:
        os._exit(0 if (error.code, error.retryable) == ("FailedPrecondition", False) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""
    )
    assert ended.code == 0, ended.output


def test_every_class_is_in_the_table_or_says_why_not():
    raised = {row[0] for row in RAISED} | {errors.ForkedProcessError}
    assert not raised & set(NOT_BY_A_CALL)
    assert raised | set(NOT_BY_A_CALL) == {getattr(errors, name) for name in errors.__all__}


def test_every_class_can_be_caught_by_the_name_of_the_package():
    assert {getattr(gradlane, name) for name in errors.__all__} == {getattr(errors, name) for name in errors.__all__}
    assert set(errors.__all__) <= set(gradlane.__all__)


class OnDevice:
    """Lends the memory of an array and claims that it lies on a device of a kind that is not known."""

    def __init__(self, array):
        self.capsule = array.__dlpack__()
        _dlpack._Tensor.from_address(_dlpack._pointer(self.capsule, b"dltensor")).device_type = 10  # kDLROCM

    def __dlpack__(self, **_):
        return self.capsule


def join(text, *, rank=None, **place):
    return _core.Session.join(text, rank=rank, settings=SETTINGS, **TWO | place)


def submit(session, name, *, length=3, dtype="float64", op="sum", timeout=None):
    values = array.array("d", bytes(8 * length))
    address, _ = values.buffer_info()
    return session.submit(name, dtype, (length,), address, address, Reduction(op, timeout=timeout), values)
