"""The package as installed: what it imports, whether its stubs tell the truth."""

import ast
import importlib.metadata
import importlib.resources
import inspect
import sys
from pathlib import Path

import pytest
from gradlane import _core
from processes import run_all, run_python

FRAMEWORKS = ("torch", "numpy", "tensorflow", "jax")
SLOW_TO_IMPORT = ("asyncio", "concurrent.futures", "ssl", "subprocess", "json", "logging")
"""Modules of Python's own of which each would be a large part of what importing gradlane takes."""


@pytest.mark.parametrize("modules", [FRAMEWORKS, SLOW_TO_IMPORT])
def test_importing_gradlane_imports_neither_frameworks_nor_what_is_slow_to_import(modules):
    ended = run_python(f"import sys, gradlane; print([name for name in {modules} if name in sys.modules])")
    assert ended.output.strip() == "[]"


STANDARD_MAX = 80
"""How many modules of the standard library importing gradlane may load; on CPython 3.11 it loads 67.

This bounds the time without a clock. `bench/DECISIONS.md` has the time.
"""


def test_importing_gradlane_loads_nothing_else_and_a_bounded_part_of_the_standard_library():
    script = "import sys; before = {*sys.modules}; import gradlane; print(*sorted({*sys.modules} - before))"
    ended = run_python(script)
    assert ended.code == 0, ended.output
    loaded = ended.output.split()
    standard = [name for name in loaded if name.partition(".")[0] in sys.stdlib_module_names]
    assert {name.partition(".")[0] for name in {*loaded} - {*standard}} == {"gradlane"}
    assert len(standard) <= STANDARD_MAX, standard


def test_versions_are_shown_without_importing_anything():
    script = "import sys, gradlane; gradlane.show_versions(); print('torch' in sys.modules)"
    lines = run_python(script).output.splitlines()
    assert lines[0] == f"gradlane {_core.__version__}" and lines[1].startswith("CPython 3."), lines
    assert any(line.startswith("numpy ") for line in lines) and lines[-1] == "False", lines


def test_extras_bring_frameworks_and_nothing_else_is_required():
    required = importlib.metadata.requires("gradlane")
    assert required and all("extra ==" in requirement for requirement in required)
    for extra, framework in {"torch": "torch", "lightning": "lightning", "ray": "ray", "all": "gradlane"}.items():
        brought = [requirement for requirement in required if f"extra == '{extra}'" in requirement.replace('"', "'")]
        assert any(requirement.startswith(framework) for requirement in brought), (extra, required)


def test_the_command_line_runs_as_a_module():
    ended = run_python("import runpy, sys; sys.argv = ['gradlane', '--version']; runpy.run_module('gradlane')")
    assert ended.code == 0 and _core.__version__ in ended.output


def test_the_help_names_the_command_however_it_was_started():
    ended = run_python("import runpy, sys; sys.argv = ['__main__.py', '--help']; runpy.run_module('gradlane')")
    assert ended.code == 0 and "Usage: gradlane <COMMAND>" in ended.output


def test_the_package_is_marked_as_typed():
    assert importlib.resources.files("gradlane").joinpath("py.typed").is_file()


def test_every_name_in_the_stubs_exists_in_the_native_module():
    for path, _ in stub_names():
        found = _core
        for name in path:
            assert hasattr(found, name), f"_core.pyi promises {'.'.join(path)}"
            found = getattr(found, name)


def test_every_public_name_of_the_native_module_is_in_the_stubs():
    stubs = {path for path, _ in stub_names()}
    public = {name for name in vars(_core) if not name.startswith("_") and not inspect.ismodule(getattr(_core, name))}
    assert public <= {path[0] for path in stubs if len(path) == 1}
    for kind in ("Session", "Handle", "Embedded"):
        methods = {name for name in vars(getattr(_core, kind)) if not name.startswith("_")}
        assert methods <= {path[1] for path in stubs if path[0] == kind and len(path) == 2}


def test_native_functions_take_the_arguments_that_the_stubs_say():
    for path, arguments in stub_names():
        native = _core
        for name in path:
            native = getattr(native, name)
        if arguments is None or not callable(native):
            continue
        try:
            signature = inspect.signature(native)
        except ValueError:
            pytest.fail(f"{'.'.join(path)} tells no signature")
        assert [name for name in signature.parameters if name != "self"] == arguments, ".".join(path)


def test_stubtest_finds_no_difference_between_the_stubs_and_the_native_module(tmp_path):
    pytest.importorskip("mypy")
    # The stubs import the standard library alone. Without this, mypy also reads PyTorch, which takes half a minute.
    (tmp_path / "mypy.ini").write_text("[mypy]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy.stubtest", "gradlane._core", "--mypy-config-file", "mypy.ini"]
    [ended] = run_all([(command, {})], timeout=120, cwd=tmp_path)
    assert ended.code == 0, ended.output


def test_text_is_read_and_written_as_utf_8_whatever_the_locale():
    top = Path(__file__).parents[2]
    files = [file for folder in ("plugins", "python", "examples", "bench") for file in (top / folder).rglob("*.py")]
    assert len(files) > 50
    assert [f"{file.relative_to(top)}:{line}" for file in files for line in text_without_encoding(ast.parse(file.read_bytes()))] == []


@pytest.mark.parametrize("call", ["open(p)", "open(p, 'w')", "p.open()", "p.open('a')", "p.read_text()", "p.write_text(t)", "run(c, text=True)"])
def test_text_without_an_encoding_is_found(call):
    assert list(text_without_encoding(ast.parse(f"x = {call}"))) == [1]


@pytest.mark.parametrize("call", ["open(p, 'rb')", "p.open('wb')", "p.read_text(encoding='utf-8')", "os.open(p, O_RDONLY)", "run(c)"])
def test_bytes_and_text_with_an_encoding_are_fine(call):
    assert list(text_without_encoding(ast.parse(f"x = {call}"))) == []


def text_without_encoding(module):
    """The lines of calls that read or write text in the encoding of the locale."""
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        named = {word.arg for word in call.keywords}
        of_module = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id in ("os", "tarfile", "zipfile")
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        modes = [word.value for word in (*call.args, *(word.value for word in call.keywords if word.arg == "mode")) if isinstance(word, ast.Constant)]
        is_binary = any(isinstance(mode, str) and "b" in mode and len(mode) <= 3 for mode in modes)
        is_text = name in ("read_text", "write_text") or (name == "open" and not is_binary and not of_module) or named & {"text", "universal_newlines"}
        if is_text and "encoding" not in named:
            yield call.lineno


def stub_names():
    """Yields (path, argument names or None) of the public names in the stubs."""
    tree = ast.parse(importlib.resources.files("gradlane").joinpath("_core.pyi").read_text())
    for node in tree.body:
        match node:
            case ast.FunctionDef():
                yield (node.name,), argument_names(node)
            case ast.ClassDef() if not node.name.startswith("_"):
                yield (node.name,), None
                for member in node.body:
                    if isinstance(member, ast.FunctionDef) and not member.name.startswith("__"):
                        is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in member.decorator_list)
                        yield (node.name, member.name), None if is_property else argument_names(member)
            case ast.AnnAssign() if node.target.id == "__version__":
                yield ("__version__",), None


def argument_names(function):
    arguments = function.args
    return [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs if a.arg != "self"]
