"""Plain values as bytes: None, booleans, numbers, texts, bytes, and lists, tuples and dictionaries of them.

Reading them runs no code that the sender chose, in contrast to unpickling. The format is JSON. What JSON lacks is an
object with one key, which says what it is.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

from gradlane.errors import InvalidArgumentError, ProtocolError


@dataclass(frozen=True)
class Position:
    """Stands for member number `index` of a list that is sent in another way."""

    index: int


def encode(value: Any) -> bytes:
    """The bytes of a plain value.

    Raises:
        InvalidArgumentError: there is something else in it; the message says where.
    """
    import json  # here, because importing gradlane has to be quick

    return json.dumps(_described(value, "value"), separators=(",", ":")).encode()


def decode(data: bytes | bytearray | memoryview) -> Any:
    """The value of these bytes.

    Raises:
        ProtocolError: they are not those of a plain value.
    """
    import json

    try:
        return _read(json.loads(bytes(data)))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"received bytes of no plain value ({error}); give plain= on all workers") from error


def _described(value: Any, where: str) -> Any:
    match value:
        case None | bool() | str():
            return value
        case bytes() | bytearray():
            return {"bytes": bytes(value).hex()}
        case Position():
            return {"position": value.index}
        case list():
            return [_described(item, f"{where}[{i}]") for i, item in enumerate(value)]
        case tuple():
            return {"tuple": [_described(item, f"{where}[{i}]") for i, item in enumerate(value)]}
        case dict():
            keys = [_described(key, f"a key of {where}") for key in value]
            items = [_described(item, f"{where}[{key!r}]") for key, item in value.items()]
            return {"dict": [list(pair) for pair in zip(keys, items, strict=True)]}
        case numbers.Integral():
            return int(value)
        case numbers.Real():
            return float(value)
        case _:
            raise InvalidArgumentError(
                f"{where} is {type(value).__name__}, which is not plain: send None, booleans, numbers, texts, bytes, "
                "lists, tuples and dictionaries, or tensors by themselves"
            )


def _read(described: Any) -> Any:
    match described:
        case None | bool() | str() | int() | float():
            return described
        case list():
            return [_read(item) for item in described]
        case {"bytes": str(digits), **rest} if not rest:
            return bytes.fromhex(digits)
        case {"position": int(index), **rest} if not rest:
            return Position(index)
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_read(item) for item in items)
        case {"dict": list(items), **rest} if not rest:
            return {_read(key): _read(item) for key, item in items}
        case _:
            raise ValueError(f"{str(described)[:40]!r} describes nothing")
