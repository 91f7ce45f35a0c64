"""The README tells the truth: its programs run, its commands, settings and names exist."""

import re
import sys
from pathlib import Path

import gradlane
import pytest
from gradlane import _core, errors
from processes import run_all, run_python

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PROGRAMS = [text for language, text in BLOCKS if language == "python"]
LINES = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]

COMMANDS = sorted({name for line in LINES for name in re.findall(r"\bgradlane ([a-z]+)", line)})
SCRIPTS = sorted({path for line in LINES for path in re.findall(r"\b[\w/]+/\w+\.py\b", line)})


def test_it_has_programs_and_commands():
    assert len(PROGRAMS) >= 2 and len(COMMANDS) >= 6 and SCRIPTS


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.split("\n")[0])
def test_its_programs_run_alone(program):
    if "torch" in program:
        pytest.importorskip("torch")
    ended = run_python(program, env={"OMP_NUM_THREADS": "1"})
    assert ended.code == 0, ended.output


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_exist_with_their_flags(command):
    for line in LINES:
        arguments = re.search(rf"\bgradlane {command}\b([^#]*?)(?: -- |#|;|$)", line)
        if not arguments:
            continue
        # The word after `gradlane bench` and `gradlane ctl` says which of its commands.
        words = [command, *arguments[1].split()[: command in ("bench", "ctl")]]
        [help] = run_all([([sys.executable, "-m", "gradlane", *words, "--help"], {})], timeout=30.0)
        assert help.code == 0, help.output
        for flag in re.findall(r"(?<=\s)--?[a-z][a-z-]*", arguments[1]):
            assert re.search(rf"(^|\s|,){flag}\b", help.output), f"{flag} of: {line}"


@pytest.mark.parametrize("path", SCRIPTS)
def test_its_scripts_exist(path):
    assert (ROOT / path).is_file()


def test_its_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z-]+)", README.replace("SEEDS=20000 ", ""))) <= set(targets)


def test_its_settings_exist_and_have_these_defaults(monkeypatch):
    section = README.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.MULTILINE)
    assert rows
    lines = [line.split("  ") for line in _core.config_report({}).splitlines() if line.startswith("  ")]
    defaults = {line[1]: next(word for word in line[2:] if word).strip() for line in lines}
    for names, values in rows:
        for name, value in zip(re.findall(r"`(\w+)`", names), values.split(" / "), strict=True):
            assert defaults[name] == value, name


def test_its_exceptions_and_calls_exist():
    for name in set(re.findall(r"`(\w+Error)`", README)):
        assert issubclass(getattr(errors, name), errors.Error)
    for name in set(re.findall(r"\bgradlane\.(\w+)\(", README)):
        assert callable(getattr(gradlane, name))


def test_its_calls_of_the_torch_module_exist():
    pytest.importorskip("torch")
    import gradlane.torch

    for name in set(re.findall(r"\bgl\.(\w+)", README)):
        assert hasattr(gradlane.torch, name), name
