"""The documents beside the README tell the truth: their commands have these flags, and what they name exists.

`test_readme.py` runs the README's programs. A record of what was done (CHANGELOG.md, bench/results) may name what is gone.
"""

import os
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from gradlane import _core, errors
from processes import run_all

ROOT = Path(__file__).parents[2]
RECORDS = ("CHANGELOG.md", "bench/results/")
BUILT = ("target/", "dist/", "fuzz/found", "fuzz/corpus", "fuzz/artifacts")
"""Places that a build or a run fills."""
OPERATORS = ("server/deploy/", "examples/kubernetes/", "examples/spot/")
"""Where the pages for operators are."""


def tree():
    """All files of the repository, by their paths in it."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ("target", "dist", "__pycache__") and name[0] != "."]
        yield from (Path(folder, name).relative_to(ROOT).as_posix() for name in names)


FILES = frozenset(tree())
NAMES = frozenset(Path(path).name for path in FILES)
DOCS = sorted(path for path in FILES if path.endswith(".md") and not path.startswith(RECORDS))


def code(text):
    """The lines of blocks for a shell, and what stands between backticks in running text."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for language, block in blocks if language == "sh" for line in block.splitlines()]
    return lines, re.findall(r"`([^`\n]+)`", prose)


CODE = {path: code((ROOT / path).read_text()) for path in DOCS}


def commands():
    """Yields (document, program, its words) of every command line of Gradlane, in blocks and in running text."""
    for path, (lines, inline) in CODE.items():
        for text in [*lines, *inline]:
            for part in re.split(r"\s#\s|;|&&|\|", text):
                words = part.split()
                while words and (re.fullmatch(r"[A-Z_]+=\S*", words[0]) or words[0] == "sudo"):
                    words.pop(0)
                if "-- gradlane-server " in part:  # within a container
                    words = part.split("-- ")[1].split()
                if words[:2] == ["podman", "run"] and "gradlane-server" in words:
                    words = words[words.index("gradlane-server") :]
                if len(words) > 1 and words[0] in ("gradlane", "gradlane-server", "gradlane-bench"):
                    yield path, words[0], tuple(words[1:])


COMMANDS = sorted(set(commands()))


def targets():
    """Yields (document, target) of every `make` that a document names."""
    for path, (lines, inline) in CODE.items():
        for text in [*lines, *inline]:
            for target in re.findall(r"\bmake (?:[A-Z]+=\S+ )*([a-z][a-z-]*[a-z])(?![\w.-])", text.partition(" # ")[0]):
                yield path, target


def test_there_are_documents_commands_and_targets():
    assert {"README.md", "tests/gpu/README.md", "fuzz/README.md", "server/deploy/README.md"} <= set(DOCS)
    assert len(COMMANDS) > 20 and len(set(targets())) > 10


@pytest.mark.parametrize(("path", "target"), sorted(set(targets())))
def test_a_target_of_make_exists(path, target):
    assert target in re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE), path


@pytest.mark.parametrize(("path", "program", "words"), COMMANDS)
def test_a_command_exists_with_these_flags(path, program, words):
    words = words[: words.index("--")] if "--" in words else words
    depth = 2 if words[0] in ("bench", "ctl", "token") else 1
    known = help_of(program, *[word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)][:depth])
    for flag in (word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", word)):
        assert re.search(rf"(^|[\s,]){flag}\b", known), f"{path}: {flag} of {program} {' '.join(words)}"


@cache
def help_of(program, *subcommands):
    # The server has the commands of `gradlane` that need no Python, from the same table.
    start = ["bench"] if program == "gradlane-bench" else []
    [help] = run_all([([sys.executable, "-m", "gradlane", *start, *subcommands, "--help"], {})], timeout=30.0)
    assert help.code == 0, help.output
    return help.output


@pytest.mark.parametrize("path", [path for path in DOCS if path.startswith(OPERATORS)])
def test_the_errors_and_the_settings_with_values_that_a_page_for_operators_names_exist(path):
    for word in CODE[path][1]:
        if re.fullmatch(r"[A-Z]\w+Error", word):
            assert issubclass(getattr(errors, word), errors.Error)
        if setting := re.fullmatch(r"([a-z_]{6,})=([\w:]+)", word):
            assert _core.config_report({setting[1]: setting[2]}), "refuses a setting or a value that does not exist"


@pytest.mark.parametrize("path", DOCS)
def test_files_and_folders_that_it_names_exist(path):
    text, (lines, inline) = (ROOT / path).read_text(), CODE[path]
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / path).parent.joinpath(link).exists()] == []
    words = [word for line in lines for word in line.partition(" # ")[0].split()] + inline
    assert [word for word in words if is_missing(word.rstrip(".,:"), (ROOT / path).parent)] == []


def is_missing(word, home):
    """Whether a word is the path of a file or folder of the repository that does not exist; it may contain `*`."""
    if word.startswith(BUILT) or not re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", word):
        return False
    first, *more = word.rstrip("/").split("/")
    if more:
        bases = [base for base in (home, ROOT) if (base / first).is_dir()]
        return bool(bases) and not any(next(base.glob(word.rstrip("/")), None) for base in bases)
    return re.fullmatch(r"(test_\w+|\w+_actor)\.(py|rs)", word) is not None and word not in NAMES
