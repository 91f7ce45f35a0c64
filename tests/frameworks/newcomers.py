"""Elastic trainings of a framework: workers come, are lost, leave and do not fit.

Each worker has a number of its own, `WHO`, and contributes the power of ten of it to a sum in each step. So a sum says whose
contributions are in it. The gradient of one parameter is the same number, and an optimizer that adds up its gradients without
forgetting anything, momentum 1, has to have the sum of these sums in the end: each gradient once, of the same workers.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pools import Pool
from processes import SAY, Running

SOON = 180.0
"""Seconds for a step of a test, in which a process may import a framework and compile, on a machine that others share."""

BEGIN = (
    SAY
    + """
import hashlib, signal, sys
from pathlib import Path
import numpy as np
import gradlane
from gradlane import elastic

RATE = 2.0**-10  # a power of two, so that its products are exact
stop, who = Path(sys.argv[1]), int(os.environ["WHO"])
is_unfit, differs = "UNFIT" in os.environ, "DIFFERS" in os.environ
gradlane.init()
has_come = elastic._session.is_newcomer()
state = elastic.State(total=np.zeros(1), runs=[])
formation, own = elastic._session.generation() - has_come, 0

@elastic.on_change
def note(before, after):
    say(f"now {after.size}")

def begins(digest):
    # Called at the beginning of each step.
    global formation
    if formation != elastic._session.generation():  # somebody has come
        formation = elastic._session.generation()
        everyones = gradlane.allgather((digest(), state.step, float(state.total[0])), "arrival")
        assert len(set(everyones)) == 1, everyones
    if (stop.parent / f"kill{who}").exists():
        os.kill(os.getpid(), signal.SIGKILL)

def ends():
    # Called at the end of each step; returns whether it is the last one.
    global own
    own += 1
    sums = gradlane.push_pull(np.array([10.0**who, stop.exists()]), "contributions", op=gradlane.Sum)
    state.total += sums[:1]
    if state.runs and state.runs[-1][0] == int(sums[0]):
        state.runs[-1][1] += 1
    else:
        state.runs.append([int(sums[0]), 1])
    if own == 3:
        say(f"trains {who}")
    return sums[1] > 0

def check_end(digest, momentum):
    if elastic.has_left():
        say("left")
        return
    found = momentum(), state.total[0], sum(total * count for total, count in state.runs)
    assert len(set(found)) == 1, (found, state.runs)
    everyones = gradlane.allgather((digest(), state.step, float(state.total[0])), "end")
    assert len(set(everyones)) == 1, everyones
    say(f"end {[total for total, _ in state.runs]}")

def digest_of(arrays):
    of = hashlib.sha256()
    for array in arrays:
        array = np.asarray(array)
        of.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return of.hexdigest()

def trying(train):
    try:
        train()
    except gradlane.Error as error:
        say(f"refused {type(error).__name__} {gradlane.is_initialized()} {error}")
        os._exit(3)  # without what frameworks do in the end, such as a wait for sums
"""
)


class Training:
    """Workers that run one script, which begins with `BEGIN`."""

    def __init__(self, pool: Pool, script: str, first: int, env: dict[str, str]) -> None:
        """Starts the first workers and waits until they train."""
        self._pool, self._script = pool, script
        self._env = [f"{name}={value}" for name, value in (THREADS | env).items()]
        self.workers: list[Running] = []
        for who in range(first):
            self.workers.append(pool.worker(script, *self._as(who)))
        for worker in self.workers:
            worker.line("trains ", SOON)

    def come(self, who: int, *env: str) -> Running:
        """Another worker comes."""
        return self._pool.newcomer(self._script, *self._as(who), *env)

    def join(self) -> None:
        """Another worker comes, and trains with the others."""
        self.workers.append(self.come(len(self.workers)))
        try:
            self.workers[-1].line("trains ", SOON)
        except AssertionError as error:
            outputs = "\n".join(f"worker {who}:\n{worker.output}" for who, worker in enumerate(self.workers))
            raise AssertionError(f"{error}\n{outputs}") from None

    def heard(self, size: int) -> None:
        """Worker 0 is told that so many workers train now."""
        self.workers[0].line(f"now {size}", SOON)

    def ended(self) -> tuple[list[int], str]:
        """Stops the training. Returns the codes with which all have ended, and all that they wrote."""
        self._pool.stop.touch()
        ended = [worker.end(SOON) for worker in self.workers]
        return [one.code for one in ended], "\n".join(one.output for one in ended)

    def _as(self, who: int) -> list[str]:
        return ["env", f"WHO={who}", *self._env]


THREADS = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}


def check_that_one_comes(
    folder: Path, transport: str, script: str, first: int = 2, env: dict[str, str] | None = None, **settings: str
) -> None:
    """Another worker comes to one worker or to two, and has what they have."""
    with Pool(folder, transport, workers=first, elastic="1:3", **settings) as pool:
        training = Training(pool, script, first, env or {})
        training.join()
        training.heard(first + 1)
        codes, output = training.ended()
    totals = [int("1" * first), int("1" * (first + 1))]
    assert codes == [0] * (first + 1) and output.count(f"end {totals}\n") == first + 1, output


def check_that_workers_come_and_go(
    folder: Path, transport: str, script: str, env: dict[str, str] | None = None, **settings: str
) -> None:
    """One does not fit, one comes, one is killed, another one comes, and one leaves after SIGTERM."""
    with Pool(folder, transport, workers=2, elastic="1:4", dead_timeout="10s", **settings) as pool:
        training = Training(pool, script, 2, env or {})
        unfit = training.come(9, "UNFIT=1")
        line = unfit.line("refused ", SOON)
        assert line.startswith("refused MismatchError False "), line
        assert unfit.end(SOON).code == 3, unfit.output
        training.heard(3)
        training.heard(2)
        training.join()
        training.heard(3)
        (folder / "kill1").touch()
        training.heard(2)
        training.join()
        training.heard(3)
        os.kill(training.workers[2].pid, signal.SIGTERM)
        training.workers[2].line("left", SOON)
        training.heard(2)
        codes, output = training.ended()
    assert codes == [0, -signal.SIGKILL, 0, 0] and output.count("end [11, 111, 101, 1101, 1001]\n") == 2, output


def check_that_a_difference_is_an_error(
    folder: Path, transport: str, script: str, value: str, env: dict[str, str] | None = None
) -> None:
    """Worker 1 has changed a value by itself, which all are told when another worker comes."""
    with Pool(folder, transport, workers=2, elastic="1:3") as pool:
        training = Training(pool, script, 2, {"DIFFERS": "1"} | (env or {}))
        training.workers.append(training.come(2))
        for worker in training.workers:
            line = worker.line("refused ", SOON)
            assert "FailedPreconditionError" in line and f"the value {value!r} of the state differs" in line, line
        codes, output = training.ended()
    assert codes == [3, 3, 3], output
