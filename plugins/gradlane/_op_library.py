"""The op libraries: small native libraries that a framework loads, and that submit to the engine without Python.

The native module hands them the address of its functions, and the integer of the session of this process. They lie in
`bin` beside this file, where `make` puts them.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from gradlane import _core, _session
from gradlane.errors import (
    AbortedError,
    AuthError,
    CancelledError,
    DuplicateRankError,
    Error,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotInitializedError,
    ResourceExhaustedError,
    TimeoutError,
    UnavailableError,
    UnsupportedError,
)

_FAILURES_MAX = 16
"""How many failed operations a library remembers."""

_FORKED = "was forked from"
"""In the error of every operation in a forked child."""

_ATTACHED = 0
_OTHER_VERSION = 2

_OF_CODE: dict[int, type[Error]] = {
    1: CancelledError,
    3: InvalidArgumentError,
    4: TimeoutError,
    6: DuplicateRankError,
    8: ResourceExhaustedError,
    9: FailedPreconditionError,
    10: AbortedError,
    12: UnsupportedError,
    14: UnavailableError,
    16: AuthError,
}
"""Exceptions by the canonical status codes, which TensorFlow and XLA share with gRPC."""


class OpLibrary:
    """An op library of this package."""

    def __init__(self, file: str) -> None:
        """Names the library; nothing is loaded yet."""
        self.path = Path(__file__).with_name("bin") / file
        self._library: Any = None

    def check_present(self) -> None:
        """Raises if the file is missing.

        Raises:
            UnsupportedError: this installation has no such library.
        """
        if not self.path.is_file():
            raise UnsupportedError(f"{self.path} is missing; `make` builds it, and the wheels for Linux contain it")

    def attach(self) -> Any:
        """Opens the library, and leads its ops to the session of this process from now on. Returns it for `ctypes`.

        Raises:
            UnsupportedError: the file is missing, or is no op library of this version of Gradlane.
        """
        if self._library is not None:
            return self._library
        self.check_present()
        try:
            library = ctypes.CDLL(str(self.path))
            attach, failures = library.gradlane_op_attach, library.gradlane_op_failures
        except (OSError, AttributeError) as error:
            raise UnsupportedError(f"{self.path} is no op library of Gradlane: {error}") from error
        attach.argtypes, attach.restype = [ctypes.c_void_p, ctypes.c_uint64], ctypes.c_int32
        failures.argtypes, failures.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_size_t
        answer = attach(_core.engine_table(), 0)
        if answer != _ATTACHED:
            other = "is of another version" if answer == _OTHER_VERSION else "does not know the engine"
            raise UnsupportedError(f"{self.path} {other}; install gradlane again, as one package")
        self._library = library
        _session.whenever_joined(lambda session: attach(_core.engine_table(), 0 if session is None else session.lend()))
        return library

    def error_of(self, text: str) -> Error | None:
        """The exception of the operation whose error a framework has put into `text`; None if it is of none of ours."""
        if self._library is None:
            return None
        if _FORKED in text:
            return _session.fork_error()
        operations = (ctypes.c_uint64 * _FAILURES_MAX)()
        for operation in operations[: self._library.gradlane_op_failures(operations, _FAILURES_MAX)]:
            error = _core.operation_error(operation)
            if isinstance(error, Error) and str(error) in text:
                return error
        return None


def error_of_code(code: int, message: str) -> Error:
    """The exception for an error of an op library that no operation had, by its canonical status code."""
    if "gradlane.init()" in message:
        return NotInitializedError(message)
    return _OF_CODE.get(code, InternalError)(message)
