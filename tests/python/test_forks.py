"""A forked child can do nothing with what it inherits, and disturbs neither its parent nor the job."""

import asyncio
import gc
import subprocess
import sys
import threading

import gradlane
import numpy as np
import pytest
from children import fork, refused
from gradlane import Sum, _session
from processes import over, run_all, run_python

pytestmark = pytest.mark.over("local", "shm", "quic")

LENGTH = 1 << 14
ROUNDS = 10


async def awaited(handle):
    return await handle


ON_A_HANDLE = {
    "wait": lambda handle: handle.wait(),
    "wait with a timeout": lambda handle: handle.wait(0.5),
    "synchronize": lambda handle: handle.synchronize(),
    "poll": lambda handle: handle.poll(),
    "ready": lambda handle: handle.ready(),
    "cancel": lambda handle: handle.cancel(),
    "exception": lambda handle: handle.exception(),
    "then": lambda handle: handle.then(lambda result: result).wait(),
    "asyncio": lambda handle: asyncio.run(awaited(handle)),
}

ON_THE_JOB = {
    "push_pull": lambda: gradlane.push_pull(np.ones(3), "child"),
    "grouped": lambda: gradlane.grouped_push_pull([np.ones(3)], "child"),
    "broadcast": lambda: gradlane.broadcast(np.ones(3), 0, "child"),
    "barrier": lambda: gradlane.barrier("child"),
    "declare": lambda: gradlane.declare({"child": np.ones(3)}),
    "metrics": lambda: gradlane.metrics(),
    "init": lambda: gradlane.init(),
}

ON_THE_SESSION = {
    "next_ready": lambda session: session.next_ready(0.0),
    "settle": lambda session: session.settle(0.0),
    "shutdown": lambda session: session.shutdown(0.0),
    "lend": lambda session: session.lend(),
    "size": lambda session: session.size,
}


def while_pending(name, *, act):
    """Calls `act` with a list of handles of rank 0 that cannot have ended, and then checks their results."""
    rank = gradlane.rank()
    values = [np.full(LENGTH, rank + 1.0) for _ in range(3)]
    if rank == 1:
        gradlane.barrier(name)  # so the operations of rank 0 cannot have ended before
    handles = [
        gradlane.push_pull_async(values[0], f"{name} single", op=Sum),
        gradlane.grouped_push_pull_async(values[1:], f"{name} group", op=Sum),
    ]
    if rank == 0:
        act(handles)
        gradlane.barrier(name)
    for handle in handles:
        handle.wait()
    assert all((value == 3.0).all() for value in values)


@pytest.mark.workers(2)
def test_every_use_of_an_inherited_handle_or_session_is_refused():
    def act(handles):
        session = _session.session()

        def child():
            for handle in handles:
                for use in ON_A_HANDLE.values():
                    refused(lambda handle=handle, use=use: use(handle))
            for use in ON_THE_JOB.values():
                refused(use)
            for use in ON_THE_SESSION.values():
                refused(lambda use=use: use(session))
            gradlane.shutdown()  # has nothing to leave
            assert "forked" in repr(handles[0].native) and gradlane.rank() == 0

        fork(child)

    while_pending("uses", act=act)


@pytest.mark.workers(2)
def test_a_child_that_drops_what_it_inherits_disturbs_nobody():
    for _ in range(ROUNDS):

        def act(handles):
            def drops_handles():
                handles.clear()
                gc.collect()

            def drops_all():
                handles.clear()
                _session._inherited = None
                gc.collect()

            fork(drops_handles)
            fork(drops_all)

        while_pending("drops", act=act)


@pytest.mark.workers(2)
def test_a_child_of_a_child_is_refused_too():
    def act(handles):
        fork(lambda: fork(lambda: refused(handles[0].wait)))

    while_pending("grandchild", act=act)


@pytest.mark.workers(2)
def test_a_thread_may_fork_while_another_one_waits():
    for _ in range(ROUNDS):
        rank, values = gradlane.rank(), np.full(LENGTH, gradlane.rank() + 1.0)
        if rank == 1:
            gradlane.barrier("forked beside")
        handle = gradlane.push_pull_async(values, "beside", op=Sum)
        failures = []

        def forks(handle=handle, failures=failures):
            try:
                fork(lambda: refused(handle.wait))
            except BaseException as error:
                failures.append(error)
            gradlane.barrier("forked beside")

        if rank == 0:
            forking = threading.Thread(target=forks)
            forking.start()
        handle.wait()
        if rank == 0:
            forking.join()
        assert not failures and (values == 3.0).all()


@pytest.mark.workers(2)
def test_a_program_started_between_fork_and_exec_works():
    def act(handles):
        command = [sys.executable, "-c", "print('works')"]
        for preparation in (None, lambda: refused(handles[0].poll)):
            ended = subprocess.run(command, preexec_fn=preparation, capture_output=True, timeout=60, check=True)
            assert ended.stdout == b"works\n"

    while_pending("started", act=act)


ENDS = """
import os, signal, sys
import numpy as np
import gradlane

gradlane.init()
rank = gradlane.rank()
values = np.full(1 << 14, rank + 1.0)
if rank == 1:
    gradlane.barrier("forked")
handle = gradlane.push_pull_async(values, "values", op=gradlane.Sum)
if rank == 0:
    for end in ("exit", "error", "_exit", "shutdown"):
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that hangs
            if end == "_exit":
                os._exit(0)
            if end == "shutdown":
                gradlane.shutdown()
            if end == "error":
                raise SystemExit(3)
            sys.exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == (3 if end == "error" else 0), (end, status)
    gradlane.barrier("forked")
handle.wait()
assert (values == 3.0).all()
gradlane.shutdown()
os.write(1, b"exact\\n")
"""


def test_a_child_may_end_in_any_way(tmp_path, transport):
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", sys.executable, str(script)]
    [ended] = run_all([(command, over(transport))], timeout=90)
    assert ended.code == 0 and ended.output.count("exact") == 2, ended.output


ALONE = """
import os, signal
import numpy as np
import gradlane
gradlane.init()
handle = gradlane.push_pull_async(np.ones(3), "values")
child = os.fork()
if child == 0:
    signal.alarm(30)
    try:
        handle.wait()
    except gradlane.errors.ForkedProcessError:
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (handle.wait() == 1.0).all()
"""


def test_the_same_holds_in_a_job_of_one():
    ended = run_python(ALONE)
    assert ended.code == 0, ended.output
