"""Op libraries of frameworks: what is missing, foreign or of another version is a typed error, and never a crash."""

import ctypes

import gradlane
import pytest
from gradlane import _core
from gradlane._op_library import OpLibrary, error_of_code
from gradlane.errors import FailedPreconditionError, InternalError, NotInitializedError, UnsupportedError

LIBRARIES = ["libgradlane_tensorflow_op.so", "libgradlane_xla_ffi.so"]
MAGIC = int.from_bytes(b"gradlane", "little")


@pytest.mark.parametrize("file", LIBRARIES)
def test_the_libraries_of_this_build_know_its_engine(file):
    assert OpLibrary(file).attach().gradlane_op_attach(_core.engine_table(), 0) == 0


def test_a_missing_library_is_named():
    with pytest.raises(UnsupportedError, match=r"bin/libnone\.so is missing"):
        OpLibrary("libnone.so").attach()


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF" + bytes(200)])
def test_a_file_that_is_no_library_is_refused(content, tmp_path):
    library = OpLibrary("other.so")
    library.path = tmp_path / "other.so"
    library.path.write_bytes(content)
    with pytest.raises(UnsupportedError, match=r"other\.so is no op library of Gradlane"):
        library.attach()


def test_a_foreign_library_is_refused():
    library = OpLibrary("foreign.so")
    library.path = type(library.path)(_core.__file__)
    with pytest.raises(UnsupportedError, match="is no op library of Gradlane"):
        library.attach()


@pytest.mark.parametrize("file", LIBRARIES)
@pytest.mark.parametrize(
    ("magic", "version", "words"),
    [(MAGIC, 0, "is of another version"), (MAGIC, 2, "is of another version"), (7, 1, "does not know the engine")],
)
def test_an_engine_of_another_version_is_refused(file, magic, version, words, monkeypatch):
    table = (ctypes.c_uint64 * 8)(magic, version | 64 << 32)
    monkeypatch.setattr(_core, "engine_table", lambda: ctypes.addressof(table))
    with pytest.raises(UnsupportedError, match=words):
        OpLibrary(file).attach()


def test_a_lent_session_has_one_number_until_it_ends():
    gradlane.init()
    session = gradlane._session.session()
    assert session.lend() == session.lend() != 0
    gradlane.shutdown()


def test_errors_without_an_operation_have_the_class_of_their_code():
    assert type(error_of_code(9, "handle 1 was waited for already")) is FailedPreconditionError
    assert type(error_of_code(9, "no job; call gradlane.init() first")) is NotInitializedError
    assert type(error_of_code(99, "unknown")) is InternalError
    assert _core.operation_error(12345) is None
