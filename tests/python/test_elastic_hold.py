"""Jobs that lose workers and wait for others: nobody trains with too few, and nothing is lost meanwhile."""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
import textwrap
import time

import pytest
from pools import GRADLANE, Pool
from processes import Running, over, run_all
from test_elastic_join import END, END_LINE, GOES_ON, LEAVES, STEP, TRAINING, check_ends

WAITS = {"on_worker_loss": "wait", "dead_timeout": "2s"}


class WaitingPool(Pool):
    """A pool whose workers hold if too few of them are left."""

    def lose_one_of_three(self) -> list[Running]:
        """Lets three workers train, and kills the second. Returns the others."""
        workers = [self.worker(GOES_ON) for _ in range(3)]
        for worker in workers:
            worker.line("trains ")
        workers.pop(1).interrupt(signal.SIGKILL)
        return workers

    def complete(self, workers: list[Running]) -> str:
        """Lets another one come to these two, which hold, and all three end. Returns what they have written."""
        workers = [*workers, self.newcomer(GOES_ON)]
        for worker in workers[:2]:
            worker.line("now 3 ")
        workers[2].line("trains ")
        self.stop.touch()
        ended = [worker.end(30) for worker in workers]
        output = "".join(worker.output for worker in ended)
        assert [worker.code for worker in ended] == [0] * 3, output
        return output

    def hold(self, there: int, needed: int) -> dict[str, object]:
        """What `gradlane status` says of the hold, once so many workers are there of those that are needed."""
        deadline = time.monotonic() + 60
        while True:
            [told] = run_all([([*GRADLANE, "status", "--json"], self._env | self._join)], timeout=30)
            assert told.code == 0, told.output
            hold = json.loads(told.output)["hold"]
            if hold is not None and (hold["there"], hold["needed"]) == (there, needed):
                return hold
            assert time.monotonic() < deadline, told.output


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("elastic", ["", "3:4"])
def test_workers_that_are_too_few_hold_until_another_one_comes(transport, elastic, tmp_path):
    with WaitingPool(tmp_path, transport, workers=3, elastic=elastic, **WAITS) as pool:
        workers = pool.lose_one_of_three()
        hold = pool.hold(there=2, needed=3)
        assert len(hold["lost"]) == 1 and "(pid " in hold["lost"][0] and hold["patience_ms"] <= 600_000, hold
        output = pool.complete(workers)
    runs, told = check_ends(output, came=1, size=3)
    assert runs[0][0] == runs[-1][0] == 111.0 and "a sum waits" not in output, output
    # They hear that others train when these have come, and not before.
    assert [size for _, size in told] == [3], output


@pytest.mark.over("shm", "quic")
def test_a_coordinator_that_is_started_again_holds_on_until_another_worker_comes(transport, tmp_path):
    with WaitingPool(tmp_path, transport, workers=3, elastic="", **WAITS) as pool:
        workers = pool.lose_one_of_three()
        lost = pool.hold(there=2, needed=3)["lost"]
        for _ in range(2):
            pool.replace_coordinator()
            assert pool.hold(there=2, needed=3)["lost"] == lost
        output = pool.complete(workers)
    runs, told = check_ends(output, came=1, size=3)
    assert runs[0][0] == runs[-1][0] == 111.0 and [size for _, size in told] == [3], output


def test_a_coordinator_that_is_started_again_ends_the_job_if_nobody_comes(tmp_path):
    with WaitingPool(tmp_path, "quic", workers=3, elastic="", rejoin_timeout="10s", **WAITS) as pool:
        workers = pool.lose_one_of_three()
        pool.hold(there=2, needed=3)
        pool.replace_coordinator()
        # Their time has begun anew.
        assert 0 < pool.hold(there=2, needed=3)["patience_ms"] <= 10_000
        ended = [worker.end(30) for worker in [*workers, pool.coordinator]]
    assert [process.code for process in ended] == [1] * 3, "".join(process.output for process in ended)
    for survivor in ended[:2]:
        text = "QuorumLostError: 2 of 3 workers are there, without worker 1 on "
        assert text in survivor.output and "came within 10.0 s" in survivor.output, survivor.output


@pytest.mark.over("shm")
def test_a_worker_leaves_while_the_job_holds_and_nobody_waits_for_it(transport, tmp_path):
    with WaitingPool(tmp_path, transport, workers=3, elastic="", **WAITS) as pool:
        stays, dies, goes = [pool.worker(script) for script in (GOES_ON, GOES_ON, LEAVES)]
        for worker in (stays, dies, goes):
            worker.line("trains ")
        dies.interrupt(signal.SIGKILL)
        pool.hold(there=2, needed=3)
        os.kill(goes.pid, signal.SIGTERM)
        goes.line("left")
        pool.hold(there=1, needed=2)
        comes = pool.newcomer(GOES_ON)
        comes.line("trains ")
        pool.stop.touch()
        ended = [worker.end(30) for worker in (stays, comes, goes)]
    output = "".join(worker.output for worker in ended)
    assert [worker.code for worker in ended] == [0] * 3, output
    ends = [END_LINE.fullmatch(line) for line in output.splitlines() if line.startswith("end ")]
    [(weights, runs)] = {(float(end["weights"]), end["runs"]) for end in ends if end is not None}
    assert len(ends) == 2 and weights == sum(total * count for total, count in ast.literal_eval(runs)), output


DIES = """
marker = Path(sys.argv[2])
for step in elastic.steps(state, until_stopped()):
    if (gradlane.rank(), step) == (1, 5) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if told and len(own) > told[-1][0] + 5:
        stop.touch()
"""


@pytest.mark.over("default", "quic")
def test_the_launcher_starts_a_lost_worker_again_and_the_others_hold_for_it(transport, tmp_path):
    command = [*GRADLANE, "run", "-n", "3", "-s", "1", "-o", "on_worker_loss=wait", "--", sys.executable, "-c", TRAINING + DIES + STEP + END]
    [ended] = run_all([([*command, str(tmp_path / "stop"), str(tmp_path / "died")], over(transport))], timeout=60)
    assert ended.code == 0 and "it is started again" in ended.output, ended.output
    runs, told = check_ends(ended.output, came=1, size=3)
    assert runs[0] == [111.0, 5] and [total for total, _ in runs] in ([111.0, 101.0, 111.0], [111.0, 111.0]), ended.output
    assert [size for _, size in told] == [3], ended.output


NOBODY = f"""{TRAINING}
try:
{textwrap.indent(DIES + STEP, "    ")}
except gradlane.QuorumLostError as error:
    say(f"quorum {{error.there}} of {{error.needed}}: {{error.lost}}")
    sys.exit(1)  # a traceback would come into the lines of the other worker
"""


def test_if_nobody_comes_every_worker_gets_an_error_that_says_for_whom_it_waited(tmp_path):
    options = ["-o", "on_worker_loss=wait", "-o", "rejoin_timeout=1s", "--restarts", "0"]
    command = [*GRADLANE, "run", "-n", "3", "-s", "1", *options, "--", sys.executable, "-c", NOBODY]
    [ended] = run_all([([*command, str(tmp_path / "stop"), str(tmp_path / "died")], {})], timeout=60)
    # That of the first process that failed.
    assert ended.code == 128 + signal.SIGKILL, ended.output
    lines = [line for line in ended.output.splitlines() if line.startswith("quorum ")]
    assert len(lines) == 2 and all(line.startswith("quorum 2 of 3: ['worker 1 on ") for line in lines), ended.output
    assert "killed by signal 9" in lines[0] and "rejoin_timeout" in ended.output, ended.output


def test_a_coordinator_of_its_own_ends_with_the_code_of_a_failed_job(tmp_path):
    with WaitingPool(tmp_path, "shm", workers=2, elastic="", rejoin_timeout="1s", **WAITS) as pool:
        workers = [pool.worker(GOES_ON) for _ in range(2)]
        for worker in workers:
            worker.line("trains ")
        workers[0].interrupt(signal.SIGKILL)
        survivor, coordinator = workers[1].end(30), pool.coordinator.end(30)
    assert survivor.code == 1 and "QuorumLostError: 1 of 2 workers are there, without worker " in survivor.output, survivor.output
    assert coordinator.code == 1 and "1 of 2 workers are there" in coordinator.output, coordinator.output


@pytest.mark.parametrize(
    ("options", "setting"),
    [(["-s", "0"], "servers"), (["-s", "1", "--elastic", "2:3", "-o", "min_workers=3"], "elastic"), (["-s", "1", "-o", "min_workers=3"], "min_workers")],
)
def test_what_cannot_be_waited_for_is_refused_at_the_start(options, setting):
    command = [*GRADLANE, "run", "-n", "2", *options, "-o", "on_worker_loss=wait", "--", "true"]
    [ended] = run_all([(command, {})], timeout=30)
    assert ended.code == 2 and f"setting {setting}" in ended.output, ended.output
