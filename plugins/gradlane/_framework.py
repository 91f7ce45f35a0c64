"""What the doors for TensorFlow, Keras and JAX share. Knows none of them.

A door checks the release of its framework when it is imported, chooses who runs operations inside compiled graphs, and
turns the exceptions that the framework makes of ours back into ours.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gradlane.errors import ConfigError, Error, UnavailableError, UnsupportedError

_FAILURES_MAX = 16


@dataclass(frozen=True)
class Framework:
    """A framework that a door needs. The door, its package and its extra have the same name."""

    title: str
    name: str
    oldest: tuple[int, int]
    """The oldest release, major and minor."""
    otherwise: str = ""
    """What to do where the framework cannot be upgraded."""

    def check(self) -> None:
        """Raises unless the framework is installed, in a release that is supported.

        Raises:
            ModuleNotFoundError: it is not installed.
            UnsupportedError: it is too old.
        """
        try:
            module = importlib.import_module(self.name)
        except ModuleNotFoundError as error:
            if error.name != self.name:
                raise
            raise ModuleNotFoundError(
                f"gradlane.{self.name} needs {self.title}; run pip install 'gradlane[{self.name}]'", name=self.name
            ) from error
        self.check_release(module.__version__)

    def check_release(self, version: str) -> None:
        """Raises unless the release `version` is supported.

        Raises:
            UnsupportedError: it is too old.
        """
        major, minor = (int(number) for number in version.split(".")[:2])
        if (major, minor) < self.oldest:
            raise UnsupportedError(
                f"{self.title} {version} is installed, and gradlane.{self.name} needs {self.oldest[0]}."
                f"{self.oldest[1]} or later; run pip install --upgrade {self.name}{self.otherwise}"
            )


def is_native(setting: str, load: Callable[[], object]) -> bool:
    """Whether native operations run in graphs, and not Python functions: as the environment variable `setting` says.

    Args:
        setting: its value is `auto`, `native` or `fallback`. With `auto`, or without a value, the native operations
            run if they load.
        load: loads the native operations; raises `UnsupportedError` if they do not load.
    Raises:
        ConfigError: the value is none of these.
        UnavailableError: the native operations are asked for and do not load; the message says why.
    """
    return _is_native(setting, os.environ.get(setting) or "auto", load)


@functools.cache
def _is_native(setting: str, asked: str, load: Callable[[], object]) -> bool:
    if asked not in ("auto", "native", "fallback"):
        raise ConfigError(f"setting {setting}: {asked!r} is none of auto, native and fallback", knob=setting)
    if asked == "fallback":
        return False
    try:
        load()
    except UnsupportedError as error:
        if asked == "native":
            raise UnavailableError(f"{setting}=native, but it does not load: {error}; unset it") from error
        return False
    return True


class Failures:
    """Keeps the errors that Python functions raise inside a framework, which raises exceptions of its own for them."""

    def __init__(self) -> None:
        """Keeps the newest errors only."""
        self._errors: collections.deque[Error] = collections.deque(maxlen=_FAILURES_MAX)

    def keep(self, error: Error) -> None:
        """Keeps an error for `find`."""
        self._errors.append(error)

    def find(self, text: str) -> Error | None:
        """The newest error whose message a framework has put into `text`."""
        return next((error for error in reversed(self._errors) if str(error) in text), None)


@contextlib.contextmanager
def translated(foreign: type[Exception], typed: Callable[[Any], Error | None]) -> Iterator[None]:
    """Inside, a `foreign` exception is raised as the error that `typed` finds for it, if it finds one."""
    try:
        yield
    except foreign as error:
        ours = typed(error)
        if ours is None:
            raise
        raise ours from error
