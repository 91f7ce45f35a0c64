"""The rows of a sparse tensor as bytes: of what kind they are, then their indices and their values.

The kind travels with the rows, because no declaration fixes it: to the engine they are bytes, whose number may differ
between workers. Rows of another kind would be read as wrong numbers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gradlane.errors import MismatchError

_HEAD = struct.Struct("<q")
_ALIGNMENT = 16
"""Of the longest element."""


@dataclass(frozen=True)
class RowKind:
    """What the rows of all workers must have in common."""

    dtype: str
    """Of the values."""
    shape: str
    """Of a row, or of the dense tensor; for people."""

    def pack(self, indices: bytes, values: bytes) -> bytes:
        """The contribution of a worker to a `Gathering`."""
        kind = json.dumps([self.dtype, self.shape]).encode()
        kind += b" " * (-(_HEAD.size + len(kind)) % _ALIGNMENT)
        return b"".join([_HEAD.pack(len(kind)), kind, indices, values])


def unpack(gathered: Sequence[memoryview], name: str, members: Sequence[int]) -> list[memoryview]:
    """The indices and values of each worker, from the contributions of `members`.

    Raises:
        MismatchError: two of them are of different kinds. All workers get the same error.
    """
    kinds, contents = [], []
    for packed in gathered:
        (length,) = _HEAD.unpack_from(packed)
        kinds.append(RowKind(*json.loads(bytes(packed[_HEAD.size : _HEAD.size + length]))))
        contents.append(packed[_HEAD.size + length :])
    for rank, kind in zip(members, kinds, strict=True):
        for field in ("dtype", "shape"):
            expected, got = getattr(kinds[0], field), getattr(kind, field)
            if expected != got:
                raise MismatchError(
                    f"sparse tensor {name}: {field} is {expected} on rank {members[0]} and {got} on rank {rank}; "
                    "all workers must use the same",
                    tensor=name,
                    field=field,
                    first=(members[0], expected),
                    second=(rank, got),
                )
    return contents
