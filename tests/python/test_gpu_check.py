"""The checks for machines with a GPU, where there is none: their short form over stand-ins, and faults they find."""

import json
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import gradlane
import pytest
from processes import run_all

torch = pytest.importorskip("torch")

SCRIPTS = Path(__file__).parents[1] / "gpu"
SHARED = Path(__file__).with_name("training.py")
ALL_SECONDS_MAX = 900.0
"""For all checks in their short form, which take a minute on two idle cores: only a hang of the runner takes longer."""

sys.path.append(str(SCRIPTS))
import running  # noqa: E402
from catalogue import CHECKS  # noqa: E402

WRONG_SUM = """
import gradlane.torch as gl

def wrong(tensor, *rest, right=gl.push_pull_, **options):
    right(tensor, *rest, **options)
    tensor[-1] += 1
    return tensor

gl.push_pull_ = wrong
"""

ANOTHER_ROUNDING = """
exact = texts

def texts():
    return [text.replace(b", 32767;", b", 32766;") for text in exact()]
"""

PLANTED_CATALOGUE = """
NAMES = ("right", "wrong", "slow", "crash", "hang", "silent", "last")
CHECKS = {name: Check("planted", name) for name in NAMES}
CHECKS["hang"] = Check("planted", "hang", seconds_max=4.0)
"""

PLANTED = """
import os, threading
from telling import failed, figure, passed, skipped

def right():
    passed("it holds")
    figure("a figure", 2.0, "s", at_most=3.0)

def wrong():
    passed("this holds")
    failed("that does not")

def slow():
    passed("it holds too")
    figure("a figure", 2.0, "s", at_most=1.0)

def crash():
    passed("so far")
    os.abort()

def hang():
    passed("so far")
    threading.Event().wait()

def silent():
    pass

def last():
    skipped("it needs what is not here")
"""


@dataclass(frozen=True)
class Run:
    """How the runner ended, and what its file says."""

    code: int
    output: str
    machine: dict
    checks: dict

    def told(self):
        """Result and reason of each check."""
        return {name: (check["result"], check["reason"]) for name, check in self.checks.items()}


def run(folder, *arguments, scripts=SCRIPTS, env=None, timeout=120.0):
    """Runs `check.py` with this folder as the current one."""
    command = [sys.executable, scripts / "check.py", *arguments]
    [ended] = run_all([(command, env or {})], timeout=timeout, cwd=folder)
    file = folder / "gpu-check.json"
    content = json.loads(file.read_text()) if file.exists() else {"machine": {}, "checks": []}
    return Run(ended.code, ended.output, content["machine"], {check["name"]: check for check in content["checks"]})


def copied(folder):
    """The scripts alone, as a bundle has them, in a folder of their own."""
    bundle = folder / "tests" / "gpu"
    shutil.copytree(SCRIPTS, bundle, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    shutil.copy(SHARED, bundle)
    return bundle


def pack_wheel(folder):
    """A wheel of this package as it is built here, without its records of digests."""
    package, version = Path(gradlane.__file__).parent, gradlane.__version__
    about = f"gradlane-{version}.dist-info"
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    with zipfile.ZipFile(folder / f"gradlane-{version}-py3-none-any.whl", "w") as archive:
        for path in files:
            archive.write(path, path.relative_to(package.parent))
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: gradlane\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        names = [*archive.namelist(), f"{about}/RECORD"]
        archive.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in names))


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """All checks over the stand-ins, each in its short form."""
    arguments = ["--on", "stand-ins", "--short", "--together", "--installed"]
    return run(tmp_path_factory.mktemp("short"), *arguments, timeout=ALL_SECONDS_MAX)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_they_say_so_and_pass(tmp_path):
    ended = run(tmp_path)
    assert (ended.code, ended.output) == (0, "SKIP: no CUDA device\n")


@pytest.mark.parametrize("name", CHECKS)
def test_over_stand_ins_a_check_passes_or_says_what_they_lack(name, short):
    reason = CHECKS[name].cannot.get("stand-ins", "")
    assert short.told().get(name) == (("SKIP", reason) if reason else ("PASS", "")), short.output


def test_every_check_is_in_the_table_and_none_may_take_ten_minutes(short):
    assert short.code == 0 and list(short.checks) == list(CHECKS), short.output
    table = short.output[short.output.index("\ncheck ") :]
    assert all(f"\n{name} " in table for name in CHECKS)
    assert all(check.seconds_max < 600 for check in CHECKS.values())


def test_the_file_has_the_machine_and_all_figures(short):
    facts = {"cores", "cpu", "kernel", "python", "gradlane", "package", "pytorch", "gpus", "nvidia-smi", "doctor"}
    assert facts <= short.machine.keys()
    for name in ("copies", "waking", "timings", "group_issue", "reduce_2", "step_servers", "step_nccl", "quic"):
        figures = [record for record in short.checks[name]["records"] if record["kind"] == "FIGURE"]
        assert figures and all(record["value"] >= 0 for record in figures), name


@pytest.mark.parametrize(
    ("setting", "reasons"),
    [
        (
            "FAKECUDA_REGISTER_SHARED=0",
            {"probe": "the driver does not pin such memory", "sums": "the log has 'cannot pin memory that servers"},
        ),
        (
            "FAKECUDA_FAIL=cuMemHostRegister_v2=2,cuMemHostAlloc=2",
            {"sums": "the log has 'no more memory can be pinned"},
        ),
        ("FAKENCCL_FAIL=AllReduce=6", {"ranks_on_one_gpu": "rank "}),
    ],
    ids=["registering", "pinning", "NCCL"],
)
def test_a_fault_below_the_engine_is_found(setting, reasons, tmp_path):
    env = dict([setting.split("=", 1)])
    ended = run(tmp_path, "--on", "stand-ins", "--short", "--installed", *reasons, env=env)
    assert ended.code == 1 and ended.checks.keys() == reasons.keys(), ended.output
    for name, reason in reasons.items():
        result, because = ended.told()[name]
        assert result == "FAIL" and because.startswith(reason), ended.output


def test_a_wrong_sum_is_found(tmp_path):
    scripts = copied(tmp_path)
    body = scripts / "sums.py"
    body.write_text(body.read_text().replace("import gradlane.torch as gl\n", WRONG_SUM))
    ended = run(tmp_path, "--on", "cpu", "--short", "--installed", "sums", scripts=scripts)
    assert ended.code == 1 and "sums of torch.float32 are wrong" in ended.checks["sums"]["reason"], ended.output


def test_a_kernel_that_rounds_otherwise_is_found(tmp_path):
    scripts = copied(tmp_path)
    (scripts.parent / "python").symlink_to(Path(__file__).parent)
    (tmp_path / "target").symlink_to(Path(__file__).parents[2] / "target")
    with (scripts / "kernels.py").open("a") as body:
        body.write(ANOTHER_ROUNDING)
    ended = run(tmp_path, "--on", "stand-ins", "--short", "--installed", "kernels", scripts=scripts)
    assert ended.code == 1 and "bf16" in ended.checks["kernels"]["reason"], ended.output


def test_what_crashes_hangs_or_says_nothing_fails_and_the_next_one_runs(tmp_path):
    scripts = copied(tmp_path)
    with (scripts / "catalogue.py").open("a") as catalogue:
        catalogue.write(PLANTED_CATALOGUE)
    (scripts / "planted.py").write_text(PLANTED)
    ended = run(tmp_path, "--on", "cpu", "--installed", "--targets", scripts=scripts)
    assert ended.code == 1 and ended.told() == {
        "right": ("PASS", ""),
        "wrong": ("FAIL", "that does not"),
        "slow": ("FAIL", "a figure: 2 s (target: at most 1, missed)"),
        "crash": ("FAIL", "1 of 1 processes did not come to its end; code -6"),
        "hang": ("FAIL", "not done within 4 s"),
        "silent": ("FAIL", "it told nothing"),
        "last": ("SKIP", "it needs what is not here"),
    }, ended.output
    assert "1 of 7 checks passed, 1 skipped, 5 failed: wrong, slow, crash, hang, silent" in ended.output


def test_a_figure_that_misses_its_target_is_a_failure_only_if_targets_are_asked_for():
    missed = {"check": "a", "kind": "FIGURE", "name": "f", "value": 2.0, "unit": "s", "at_most": 1.0, "is_met": False}
    ended = running.Ended(0, "", [missed, {"check": "a", "kind": "END", "seconds": 1.0}], 1.0, 60.0)
    check = running.Check("planted", "a")
    options = [running.Options("cpu", is_short=True, has_targets=asked, env={}) for asked in (False, True)]
    results = [running.judged("a", check, True, True, ended, option).result for option in options]
    assert results == ["PASS", "FAIL"]


def test_the_bundle_checks_the_wheel_that_it_carries(tmp_path):
    bundle = copied(tmp_path)
    pack_wheel(bundle)
    ended = run(tmp_path, "--on", "cpu", "--short", "quic", "fork", scripts=bundle)
    assert ended.code == 0, ended.output
    assert ended.told() == {"fork": ("PASS", ""), "quic": ("PASS", "")}
    assert Path(ended.machine["package"]) != Path(gradlane.__file__).parent


def test_without_wheel_and_package_it_says_what_to_install(tmp_path):
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text("import sys\nsys.modules['gradlane'] = None\n")
    ended = run(tmp_path, "--on", "cpu", scripts=copied(tmp_path), env={"PYTHONPATH": str(hiding)})
    assert ended.code == 2 and "pip install --no-deps gradlane-*.whl" in ended.output, ended.output
