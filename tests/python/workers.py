"""Runs tests on real workers.

A test marked `workers(n)` is a sentence about a job: its body runs in each of n worker processes, started by `gradlane
run` with real servers, and passes if it passes in all of them. The workers run pytest on the same files, so parameters
and assertions are those of any test. Tests of one module that need the same job share one launch; `alone=True` asks for
an own one, for tests that break their job.

A test marked `workers(2, 4)` runs with 2 and with 4. `servers=`, `settings=` (knobs by name) and `env=` shape the job. With
`machines="aabb"`, which has a letter a rank, the workers take themselves to be on two machines.

Each of these tests names its transports, `over("local", "shm", "quic")`, and runs once over each of them (`TRANSPORTS`
in `processes.py` has them all). A mark of a test counts instead of the mark of its module. The name of the transport is
the parameter `transport`, which any other test or fixture may also ask for. With `TRANSPORTS_AT_MOST=1` in the
environment, each test runs over one of them, which depends on its name, so that each transport is tried in each module.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import forks
import pytest
from processes import clean_environment, over, run_all

RESULTS = "WORKER_TEST_RESULTS"
"""In a worker: the folder for its results. Not named GRADLANE_*, where unknown names are warned of."""

MACHINES = "WORKER_TEST_MACHINES"
"""In a worker: the machine that the worker of each rank takes itself to be on, a letter a rank."""

ROOT = Path(__file__).parents[2]
"""The folder from which the names of tests count."""

WORKER_OPTIONS = "-p no:cacheprovider -p no:xdist"
"""For pytest in a worker, in the place of those that the tests outside may have in their environment."""

LAUNCH_TIMEOUT = float(os.environ.get("WORKER_TEST_LAUNCH_TIMEOUT", "150"))
IN_WORKER = RESULTS in os.environ


@dataclass(frozen=True)
class Shape:
    """What a test asks of its job; tests of one shape in one module share a launch."""

    module: Path
    workers: int
    servers: int
    env: tuple[tuple[str, str], ...]
    alone: str | None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "workers(n, ..., servers, settings, env, machines, alone): runs on n real workers")
    config.addinivalue_line("markers", "over(transport, ...): runs once over each of these transports")
    # A shell ignores it for what it starts in the background, and so would all processes of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[outcomes_key], config.stash[fork_servers_key] = {}, ForkServers()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[fork_servers_key].end()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test once over each transport that it names. A default could hide what a test is about."""
    names = metafunc.fixturenames
    if "transport" in names or metafunc.definition.get_closest_marker("workers"):
        named = metafunc.definition.get_closest_marker("over")
        if named is None:
            raise pytest.UsageError(f"{metafunc.definition.nodeid} names no transport: mark it over(...)")
        if "transport" not in names:
            names.append("transport")
        metafunc.parametrize("transport", chosen(named.args, f"{metafunc.module.__name__}.{metafunc.function.__name__}"), scope="module")


def chosen(transports: Sequence[str], test: str) -> list[str]:
    """Those of the transports over which a test runs: all, or as many as `TRANSPORTS_AT_MOST` says."""
    count = len(transports)
    at_most = int(os.environ.get("TRANSPORTS_AT_MOST", count))
    first = zlib.crc32(test.encode()) % count
    return [transport for index, transport in enumerate(transports) if (index - first) % count < at_most]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Outside of workers, replaces the call of a test by the outcome it had in each worker."""
    if IN_WORKER or pyfuncitem.get_closest_marker("workers") is None:
        return None
    outcomes = pyfuncitem.config.stash[outcomes_key]
    for shape in shapes(pyfuncitem):
        if shape not in outcomes:
            items = [item for item in pyfuncitem.session.items if shape in shapes(item)]
            servers = pyfuncitem.config.stash[fork_servers_key]
            outcomes[shape] = launch(shape, [item.nodeid for item in items], servers)
        failures = outcomes[shape].failures(pyfuncitem.nodeid)
        if failures:
            pytest.fail(failures, pytrace=False)
    return True


@pytest.fixture(scope="session", autouse=True)
def job():
    """In a worker: the job, joined before the first test and left after the last."""
    if not IN_WORKER:
        yield
        return
    import gradlane

    if MACHINES in os.environ:
        os.environ["GRADLANE_MACHINE"] = os.environ[MACHINES][int(os.environ["GRADLANE_RANK"])]
    gradlane.init()
    yield
    gradlane.shutdown()


@pytest.fixture(autouse=True)
def in_step(request: pytest.FixtureRequest):
    """In a worker: begins each test together with the others, so that a failure is not blamed on the tests after it."""
    marker = request.node.get_closest_marker("workers")
    if IN_WORKER and not marker.kwargs.get("alone"):
        import gradlane

        gradlane.barrier(request.node.nodeid)
    yield


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if IN_WORKER and (report.when == "call" or report.failed):
        import gradlane

        rank = os.environ["GRADLANE_RANK"] if not gradlane.is_initialized() else str(gradlane.rank())
        line = {"test": report.nodeid, "outcome": report.outcome, "text": report.longreprtext}
        with open(Path(os.environ[RESULTS], f"{rank}.jsonl"), "a") as results:
            results.write(json.dumps(line) + "\n")


def record_as_passed(test: str) -> None:
    """In a worker: writes that the test has passed here, because nothing runs after the worker's sudden end."""
    report = type("Report", (), {"when": "call", "failed": False, "outcome": "passed", "longreprtext": ""})()
    report.nodeid = test
    pytest_runtest_logreport(report)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Makes a skip a failure where CI is root and installs what tests need, unless `allowed_skips.txt` names the reason."""
    report = yield
    is_root_on_ci = os.environ.get("CI") == "true" and os.geteuid() == 0
    if report.skipped and is_root_on_ci and not why_skipped(report).startswith(allowed_skips()):
        report.outcome = "failed"
        report.longrepr = (
            f"a test was skipped in CI: {why_skipped(report)}; let .ci/run install what it needs, "
            "or add the reason to tests/allowed_skips.txt"
        )
    return report


def allowed_skips() -> tuple[str, ...]:
    """How the reasons begin for which CI may skip a test."""
    lines = (Path(__file__).parents[1] / "allowed_skips.txt").read_text().splitlines()
    return tuple(line.partition("\t")[0] for line in lines if not line.startswith("#"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Adds what was skipped to the file of `make test`, which ends with the count of the reasons.

    With pytest-xdist, the process that hands out the tests knows all reports, and does so for the others.
    """
    is_handed_tests = hasattr(terminalreporter.config, "workerinput")
    if "SKIPPED_TESTS" in os.environ and not IN_WORKER and not is_handed_tests:
        with open(os.environ["SKIPPED_TESTS"], "a") as file:
            for report in terminalreporter.stats.get("skipped", []):
                file.write(f"{report.nodeid}\t{why_skipped(report)}\n")


def why_skipped(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return reason.removeprefix("Skipped: ")


@dataclass
class Outcomes:
    """What the tests of one launch came to, by worker."""

    workers: int
    by_rank: list[dict[str, tuple[str, str]]]
    log: str

    def failures(self, test: str) -> str:
        """Why a test failed, per worker; empty if it passed in all."""
        texts = []
        for rank, outcomes in enumerate(self.by_rank):
            outcome, text = outcomes.get(test, ("missing", f"no outcome; the launch said:\n{self.log}"))
            if outcome != "passed":
                texts.append(f"worker {rank} of {self.workers}: {outcome}\n{text}")
        return "\n".join(texts)


outcomes_key = pytest.StashKey[dict[Shape, Outcomes]]()
fork_servers_key = pytest.StashKey["ForkServers"]()


def shapes(item: pytest.Item) -> list[Shape]:
    """The jobs that a test wants to run in."""
    marker = item.get_closest_marker("workers")
    if marker is None:
        return []
    wanted = marker.kwargs
    settings = {"step_timeout": "20s"} | wanted.get("settings", {})
    transport = item.callspec.params["transport"]
    env = over(transport)
    if "machines" in wanted and transport == "shm":
        # The servers are on the first machine; the other machines reach them over QUIC.
        env |= {"GRADLANE_TRANSPORT": "auto", "GRADLANE_MACHINE": wanted["machines"][0]}
    env |= {f"GRADLANE_{name.upper()}": value for name, value in settings.items()} | wanted.get("env", {})
    if "machines" in wanted:
        env[MACHINES] = wanted["machines"]
    alone = item.nodeid if wanted.get("alone") else None
    return [
        Shape(item.path, workers, wanted.get("servers", 1), tuple(sorted(env.items())), alone)
        for workers in marker.args
    ]


NO_SHARDING = "FSDP2 of this release of PyTorch runs on GPUs alone"


def shards_on_cpu() -> bool:
    """Whether `fully_shard` trains on the CPU, which PyTorch 2.6 cannot do; else a test is skipped for `NO_SHARDING`."""
    import torch

    return hasattr(torch.cpu.Stream, "record_event")


def is_forked(shape: Shape) -> bool:
    """Whether the workers are forks of a process with all imports. PyTorch reads some variables as it is imported."""
    return not any(name.startswith("TORCH") for name, _ in shape.env)


IMPORTED = ("gradlane", "numpy")
"""Modules that servers of forks import."""
IMPORTED_WITH_TORCH = (*IMPORTED, "gradlane.torch", "torch._dynamo")


class ForkServers:
    """The servers of forks for this process, each from the first job that needs it to the end."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._folders: dict[tuple[str, ...], str] = {}

    def started(self, module: Path) -> str:
        """The folder with the sockets of servers that have imported what the tests of a module use; they listen."""
        imported = IMPORTED_WITH_TORCH if "torch" in module.read_text(encoding="utf-8") else IMPORTED
        if imported not in self._folders:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gradlane-tests-"))
            serve = [sys.executable, forks.__file__, "serve"]
            commands = [[*serve, f"{folder}/{i}", *imported] for i in range(forks.SERVERS)]
            options = {"env": clean_environment() | {"OMP_NUM_THREADS": "1"}, "start_new_session": True}
            options |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            servers = [self._stack.enter_context(subprocess.Popen(command, **options)) for command in commands]
            assert [server.stdout.readline() for server in servers] == [b"listens\n"] * forks.SERVERS
            self._folders[imported] = folder
        return self._folders[imported]

    def end(self) -> None:
        self._stack.close()


def launch(shape: Shape, tests: list[str], servers: ForkServers) -> Outcomes:
    """Runs the tests in every worker of a new job."""
    with tempfile.TemporaryDirectory(prefix="gradlane-tests-") as results:
        run = ["run", "-n", str(shape.workers), "-s", str(shape.servers), "--"]
        worker = [sys.executable, "-m", "pytest"]
        env = {RESULTS: results, "OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": WORKER_OPTIONS, **dict(shape.env)}
        if is_forked(shape):
            worker, env[forks.SOCKETS] = [sys.executable, "-I", "-S", forks.__file__], servers.started(shape.module)
        command = [sys.executable, "-m", "gradlane", *run, *worker, "-q", *tests]
        [ended] = run_all([(command, env)], timeout=LAUNCH_TIMEOUT, cwd=ROOT)
        return Outcomes(shape.workers, [read(Path(results, f"{r}.jsonl")) for r in range(shape.workers)], ended.output)


def read(path: Path) -> dict[str, tuple[str, str]]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["test"]: (line["outcome"], line["text"]) for line in lines}
