"""Checks of arguments that all operations have. Knows no engine."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from gradlane.errors import InvalidArgumentError

T = TypeVar("T")
P = ParamSpec("P")

PRIORITY_MAX = 2**30
"""The greatest priority, and the least one with its sign changed; a group counts down from the one that is given."""


def check_name(name: object) -> str:
    """Returns `name` if it can name a tensor.

    Raises:
        InvalidArgumentError: it is no text, or empty. A name is required: numbers in the order of calls would pair
            different tensors as soon as two workers call in different orders. Or it is no valid Unicode, or not in the
            normal form C. Other forms look the same, and would be other names.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"name={name!r} cannot name a tensor; give a text that is equal on all workers")
    if name.isascii():
        return name
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"name={name!r} cannot name a tensor: the character at {error.start} is half of a pair (a surrogate); give "
            "valid Unicode"
        ) from error
    if not unicodedata.is_normalized("NFC", name):
        raise InvalidArgumentError(
            f"name={ascii(name)} cannot name a tensor: it is not in Unicode's normal form C, so another worker may "
            f"write it differently; give unicodedata.normalize('NFC', name), which is {ascii(_normal(name))}"
        )
    return name


def check_timeout(timeout: object) -> None:
    """Raises unless `timeout` is None, or seconds: a number that is not negative."""
    if timeout is None:
        return
    try:
        seconds = float(timeout)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"timeout={timeout!r}; give seconds, or None for the job's setting") from error
    if isinstance(timeout, str) or math.isnan(seconds) or seconds < 0:
        raise InvalidArgumentError(
            f"timeout={timeout!r} is no time; give seconds, from 0, or None for the job's setting"
        )


def check_priority(priority: object) -> int:
    """Returns `priority` as a number; None is 0."""
    if priority is None:
        return 0
    try:
        number = operator.index(priority)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidArgumentError(f"priority={priority!r}; give an integer, of which only the order matters") from error
    if abs(number) > PRIORITY_MAX:
        raise InvalidArgumentError(
            f"priority={priority} is out of range; give -{PRIORITY_MAX} to {PRIORITY_MAX}, as only the order matters"
        )
    return number


def the_rest_by_name(call: Callable[P, T]) -> Callable[P, T]:
    """Makes a function say what its positional arguments are, if it gets too many of them."""
    kinds = inspect.signature(call).parameters.values()
    taken = [parameter.name for parameter in kinds if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    @functools.wraps(call)
    def checked(*positional: P.args, **named: P.kwargs) -> T:
        check_count(call.__name__, taken, len(positional))
        return call(*positional, **named)

    return checked


def check_count(call: str, taken: Sequence[str], count: int) -> None:
    """Refuses more positional arguments than the function `call` takes."""
    if count > len(taken):
        raise InvalidArgumentError(
            f"{call}() takes {', '.join(taken)} by position and got {count} arguments; give the rest by name, such as "
            "average=True. The order of BytePS, (tensor, average, name), is that of byteps.torch"
        )


def _normal(name: Any) -> str:
    return unicodedata.normalize("NFC", name)
