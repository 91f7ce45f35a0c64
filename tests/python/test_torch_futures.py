"""Every way of waiting ends on every side road: operations that need no engine, or that end in an unusual way."""

import asyncio
import threading
import time

import gradlane
import gradlane.torch as gl
import pytest
import torch
from gradlane._operations import ProcessSet
from gradlane.torch._futures import Completions
from processes import run_python

pytestmark = pytest.mark.over("local", "shm", "quic")

SOON = 10.0
"""Far below the step timeout of these jobs, which is 20 s."""
CPU = torch.device("cpu")


def ended(future: torch.futures.Future) -> object:
    """The value of a future, which must complete soon."""
    told = threading.Event()
    future.add_done_callback(lambda _: told.set())
    assert told.wait(SOON), "the future did not complete"
    return future.value()


def by_poll(handle: gradlane.Handle) -> object:
    deadline = time.monotonic() + SOON
    while not handle.poll():
        assert time.monotonic() < deadline, "the handle did not end"
    return handle.wait(SOON)


async def awaited(handle: gradlane.Handle) -> object:
    async with asyncio.timeout(SOON):
        return await handle


WAYS = {
    "wait": lambda handle: handle.wait(SOON),
    "synchronize": lambda handle: handle.synchronize(SOON),
    "poll": by_poll,
    "future": lambda handle: ended(Completions.of_this_job().of(handle, CPU)),
    "callback": lambda handle: ended(Completions.of_this_job().of(handle, CPU).then(lambda done: done.value())),
    "two futures": lambda handle: [ended(Completions.of_this_job().of(handle, CPU)) for _ in range(2)][1],
    "asyncio": lambda handle: asyncio.run(awaited(handle)),
}


def empty(name: str) -> gradlane.Handle:
    return gl.push_pull_async_(torch.ones(0), name)


def of_some(name: str, *sizes: int) -> gradlane.Handle:
    return gl.grouped_push_pull_async_([torch.ones(size) for size in sizes], name)


def alone(name: str) -> gradlane.Handle:
    own = ProcessSet({gradlane.rank()})
    return gl.push_pull_async_(torch.ones(3), f"{name} {gradlane.rank()}", process_set=own)


ROADS = {
    "full": lambda name: gl.push_pull_async_(torch.ones(3), name),
    "empty": empty,
    "group without elements": lambda name: of_some(name, 0, 0),
    "group with some elements": lambda name: of_some(name, 3, 0, 2),
    "set of one": alone,
    "empty in a set": lambda name: gl.push_pull_async_(torch.ones(0), name, process_set=ProcessSet({0, 1})),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.workers(2)
def test_every_way_of_waiting_ends(road, way):
    Completions.of_this_job()
    for _ in range(3):  # the first use of a name goes another way than later ones
        WAYS[way](ROADS[road](f"{road} {way}"))


@pytest.mark.workers(2)
def test_many_futures_without_elements_complete_in_any_order():
    completions = Completions.of_this_job()
    names = [f"none {i}" for i in range(20)]
    futures = [completions.of(empty(name), CPU) for name in (names if gradlane.rank() else names[::-1])]
    again = [completions.of(empty(name), CPU) for name in names]  # some wait for the same agreement
    for future in futures + again:
        assert ended(future).numel() == 0


@pytest.mark.workers(2)
def test_futures_of_a_process_group_complete_for_tensors_without_elements():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gradlane", store=store, rank=gradlane.rank(), world_size=2)
    try:
        for dtype in (torch.float32, torch.int64):
            work = torch.distributed.all_reduce(torch.ones(0, dtype=dtype), async_op=True)
            assert ended(work.get_future())[0].numel() == 0
            assert torch.distributed.all_reduce(torch.ones(0, dtype=dtype), async_op=True).wait()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.workers(2, alone=True)
def test_futures_of_cancelled_operations_and_of_a_session_that_ends_raise():
    completions = Completions.of_this_job()
    if gradlane.rank() == 0:
        handles = [gl.push_pull_async_(torch.ones(3), f"never {i}") for i in range(3)]
        futures = [completions.of(handle, CPU) for handle in handles]
        handles[0].cancel()
        with pytest.raises(RuntimeError, match="CancelledError"):
            ended(futures[0])
    gradlane.barrier("one was cancelled")
    if gradlane.rank() == 0:
        gradlane.shutdown()
        for future in futures[1:]:
            with pytest.raises(RuntimeError, match="Error: "):
                ended(future)


@pytest.mark.workers(2, alone=True, settings={"step_timeout": "2s"})
def test_the_future_of_an_operation_that_others_do_not_join_raises_after_the_step_timeout():
    completions = Completions.of_this_job()
    if gradlane.rank() == 0:
        for handle in (gl.push_pull_async_(torch.ones(3), "full"), empty("nothing")):
            with pytest.raises(RuntimeError, match=r"(Stall|Timeout)Error: "):
                ended(completions.of(handle, CPU))
    gradlane.barrier("after", timeout=15.0)


@pytest.mark.workers(2)
def test_a_future_completes_though_nobody_reports_that_its_operation_is_over():
    class Silent:
        """A part of an operation that the engine gives up, and does not report."""

        id = 1 << 40
        asked = 0

        def is_issued(self) -> bool:
            self.asked += 1
            return self.asked > 2

        def wait(self, timeout: float | None) -> None:
            raise gradlane.UnresponsiveError("the engine does not answer")

    completions = Completions.of_this_job()
    with pytest.raises(RuntimeError, match="UnresponsiveError: the engine does not answer"):
        ended(completions.of(gradlane.Handle(Silent(), lambda: None), CPU))


JOB_OF_ONE = """
import gradlane, torch
import gradlane.torch as gl
from gradlane.torch._futures import Completions
gradlane.init()
completions = Completions.of_this_job()
cpu = torch.device("cpu")
futures = [completions.of(gl.push_pull_async_(torch.ones(n), f"{n}"), cpu) for n in (0, 3, 0) for _ in range(50)]
futures.append(completions.of(gl.grouped_push_pull_async_([torch.ones(0), torch.ones(0)], "group"), cpu))
torch.futures.wait_all(futures)
print("all ended")
"""


def test_futures_complete_in_a_job_of_one():
    result = run_python(JOB_OF_ONE)
    assert result.code == 0 and "all ended" in result.output, result.output
