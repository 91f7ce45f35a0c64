"""Processes that are killed, that fork, or that end without a word."""

from __future__ import annotations

import os
import signal
import time

import gradlane
import gradlane.torch as gl
import torch
from places import IS_SHORT, SCRATCH, put, settle, slow_down
from telling import figure, passed
from torch.utils.data import DataLoader, TensorDataset

ROUNDS_MAX = 10_000
KILLED_IN_ROUND = 5
ELEMENTS = 1 << 16 if IS_SHORT else 1 << 20

_at_exit: list[object] = []
"""What is still under way when the process ends."""


def killed() -> None:
    """Rank 1 is killed while collectives are under way; rank 0 is told, and its device still computes."""
    tensors = [put(torch.full((ELEMENTS,), gl.rank() + 1.0)) for _ in range(8)]
    moment = SCRATCH / "killed"
    try:
        for number in range(ROUNDS_MAX):
            handles = [gl.push_pull_async_(tensor, f"work {index}") for index, tensor in enumerate(tensors)]
            if number == KILLED_IN_ROUND - 1:
                slow_down()
            if number == KILLED_IN_ROUND and gl.rank() == 1:
                handles[0].synchronize()
                moment.write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            for handle in handles:
                handle.synchronize()
    except gradlane.Error as error:
        told = error
    else:
        raise AssertionError("no error came")
    figure("from the kill to the error", time.time() - float(moment.read_text()), "s")
    passed(f"the survivor is told: {type(told).__name__}: {told}")
    left = torch.randint(0, 4, (512, 512)).float()
    # Whole numbers, exact in any order and in TF32.
    there = put(left) @ put(left)
    settle()
    assert torch.equal(there.cpu(), left @ left), "a matmul after the loss is wrong"
    passed("its device multiplies matrices afterwards")


def fork() -> None:
    """A child of fork may ask who it is, and may not reduce; its parent does not notice it."""
    work = put(torch.ones(1000))
    gl.push_pull_(work, "before the fork")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            gl.push_pull(torch.ones(10), "in a child")
        except gradlane.ForkedProcessError:
            code = 0 if gl.rank() >= 0 else 2
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the child ended with {code}: 1 if it was not refused"
    passed("a forked child is refused, and knows its rank")
    data = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1, multiprocessing_context="fork")
    seen = [batch.sum().item() for [batch] in data]
    assert seen == [6.0, 22.0], seen
    gl.push_pull_(work, "after the fork", op=gl.Sum)
    assert (work == gl.size()).all()
    passed("its parent goes on, and so does one whose DataLoader forks")


def exit() -> None:
    """Leaves without `shutdown`, with an operation under way."""
    work = put(torch.full((1 << 20,), gl.rank() + 1.0))
    for number in range(2 if IS_SHORT else 20):
        total = gl.push_pull(work, f"before the end {number}", op=gl.Sum)
        assert (total == sum(range(1, gl.size() + 1))).all()
    _at_exit.append(gl.push_pull_async_(work, "at the end"))
    passed("the processes end without shutdown, with an operation under way; their code and their deadline count")
