"""The wheel alone, in an empty environment: no framework, no compiler, no repository, and everything is there."""

import json
import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from gradlane import _core
from processes import Running, run_all

ROOT = Path(__file__).parents[2]
SUM_OF_RANKS = """
import array, gradlane
gradlane.init()
values = array.array("d", [gradlane.rank() + 1.0])
gradlane.push_pull(values, "ranks", op=gradlane.Sum)
assert values[0] == gradlane.size() * (gradlane.size() + 1) / 2
gradlane.shutdown()
"""
END_SECONDS_MAX = 2.0 + 3.0
"""A process ends within two seconds of a signal; the cores may be shared."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of these sources: that in dist if it is newer than the native module, else made from what is built."""
    native = Path(_core.__file__)
    made = [path for path in ROOT.glob("dist/*.whl") if path.stat().st_mtime >= native.stat().st_mtime]
    if made:
        return max(made, key=lambda path: path.stat().st_mtime)
    maturin = Path(sys.executable).with_name("maturin")
    if not maturin.exists():
        pytest.skip("no wheel in dist, and no maturin to make one")
    into = tmp_path_factory.mktemp("dist")
    # The same profile and features as `maturin develop` had the last time, so that nothing is compiled again.
    built = max(ROOT.glob("target/*/lib_core.so"), key=lambda path: path.stat().st_mtime)
    options = ["--release"] if built.parent.name == "release" else ["--features", f"extension-module,{features_as_tested()}"]
    command = [maturin, "build", *options, "--quiet", "--interpreter", sys.executable, "--out", into]
    [ended] = run_all([(command, {})], timeout=600.0, cwd=ROOT)
    assert ended.code == 0, ended.output
    return next(into.glob("*.whl"))


def features_as_tested():
    """Those of the package that tests load, as the Makefile says them."""
    return re.search(r"^AS_TESTED := (\S+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[1]


@pytest.fixture(scope="module")
def place(wheel, tmp_path_factory):
    """A directory outside of the repository with an environment in which there is nothing but the wheel."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place / "venv", with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", place / "venv/bin/python"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel], check=True)
    return place


@pytest.fixture
def env(tmp_path):
    # Without PYTHONPATH, as what is found through it is not the wheel's; and away from the user's own state.
    return {"PYTHONPATH": "", "GRADLANE_STATE_DIR": str(tmp_path)}


def test_the_wheel_serves_every_python_from_3_11(wheel):
    assert "-cp311-abi3-" in wheel.name


def test_it_brings_no_dependency(place):
    packages = {path.name for path in place.glob("venv/lib/python*/site-packages/*")}
    assert {name for name in packages if not name.startswith("gradlane")} <= {"__pycache__"}


def test_a_job_of_one_needs_nothing_else(place, env):
    script = """
import array, sys, gradlane
assert gradlane.__file__.startswith(sys.prefix), gradlane.__file__
gradlane.init()
assert gradlane.push_pull(bytearray(b"abc"), "bytes") == b"abc"
assert gradlane.push_pull(array.array("f", [1.5]), "floats")[0] == 1.5
assert gradlane.allgather({"loss": 0.5}) == [{"loss": 0.5}]
"""
    ended = run(place, env, "python", "-c", script)
    assert ended.code == 0, ended.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--version"], f"gradlane {_core.__version__}"),
        (["--help"], "Usage: gradlane <COMMAND>"),
        (["doctor"], "sum kernels"),
        (["doctor", "--json"], '"'),
        (["config"], "step_timeout"),
        (["config", "--toml"], "step_timeout"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_reports(place, env, arguments, said):
    ended = run(place, env, "gradlane", *arguments)
    assert ended.code == 0 and said in ended.output, ended.output


def test_one_command_runs_a_whole_job(place, env):
    python = place / "venv/bin/python"
    ended = run(place, env, "gradlane", "run", "-n", "2", "-s", "1", "--", python, "-c", SUM_OF_RANKS)
    assert ended.code == 0, ended.output


def test_a_pool_of_servers_is_there_for_one_job_and_then_ends(place, env):
    with coordinator(place, env) as pool:
        env |= {"GRADLANE_JOIN_FILE": pool.line("GRADLANE_JOIN_FILE=").partition("=")[2]}
        with Running([place / "venv/bin/gradlane", "server"], env=env, cwd=place) as server:
            ended = run(place, env | {"GRADLANE_RANK": "0", "GRADLANE_SIZE": "1"}, "python", "-c", SUM_OF_RANKS)
            assert ended.code == 0, ended.output
            for process in (server, pool):
                assert process.end(10.0).code == 0, process.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_and_a_coordinator_end_at_a_signal(place, env, number):
    with coordinator(place, env) as pool:
        env |= {"GRADLANE_JOIN_FILE": pool.line("GRADLANE_JOIN_FILE=").partition("=")[2]}
        with Running([place / "venv/bin/gradlane", "server"], env=env, cwd=place) as server:
            wait_for_a_server(place, env)
            for process in (server, pool):
                os.kill(process.pid, number)
                assert process.end(END_SECONDS_MAX).code == 128 + number, process.output


def coordinator(place, env):
    command = [place / "venv/bin/gradlane", "coordinator", "-n", "1", "-s", "1", "--bind", "127.0.0.1:0"]
    return Running(command, env=env, cwd=place)


def wait_for_a_server(place, env):
    for _ in range(50):
        status = run(place, env, "gradlane", "status", "--json")
        assert status.code == 0, status.output
        if any(member["role"] == "server" for member in json.loads(status.output)["members"]):
            return
    pytest.fail(f"no server came:\n{status.output}")


def run(place, env, program, *arguments):
    return run_all([([place / "venv/bin" / program, *arguments], env)], timeout=60.0, cwd=place)[0]


def test_the_native_module_looks_for_nccl_in_nvidia_s_wheel_beside_it(place):
    native = next((place / "venv").glob("lib/python*/site-packages/gradlane/_core*.so"))
    assert b"$ORIGIN/../nvidia/nccl/lib" in native.read_bytes()


def test_the_package_that_tests_load_is_made_of_what_cargo_test_builds():
    """A dependency with other features would be compiled once more, and all that depends on it: minutes."""
    sources = ["session", "bench"]
    package = packages(*(f"-pgradlane-{name}" for name in sources), "-enormal,build", "--features", features_as_tested())
    assert package - packages("-enormal,build,dev") == set()


def packages(*selected):
    """The packages that cargo compiles for a selection, with their features."""
    command = ["cargo", "tree", "--offline", "--quiet", "--prefix=none", "--no-dedupe", "-f{p} {f}", *selected]
    [ended] = run_all([(command, {})], timeout=60.0, cwd=ROOT)
    assert ended.code == 0, ended.output
    return set(ended.output.splitlines())
