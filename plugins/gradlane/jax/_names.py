"""Names for the leaves of a tree, from their paths. So they do not depend on the order in which leaves come."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import jax

from gradlane._operations import check_name
from gradlane.errors import InvalidArgumentError

_BYTES_MAX = 240
"""The longest name, below the engine's limit of 256, so that `.backward` fits behind it."""

STRUCTURE = ": the tree, whose length here is a checksum of its paths"
"""Ends the name of the array that stands for the paths of a tree."""

_STRUCTURES = 1021
"""How many structures of trees are told apart, and the most bytes that stand for one."""


def names_of(name: str, paths: Sequence[Any]) -> tuple[str, ...]:
    """A name for each leaf: `name`, and the path to it as JAX writes it, such as `gradients['dense']['kernel']`.

    Raises:
        InvalidArgumentError: `name` cannot name arrays.
    """
    if "\n" in check_name(name):
        raise InvalidArgumentError(f"name={name!r} has several lines; give one that has none")
    return tuple(_shortened(name + jax.tree_util.keystr(path)) for path in paths)


def structure_of(name: str, names: Sequence[str]) -> tuple[str, int]:
    """A name, and a number of bytes that stands for the paths of a tree.

    An array of so many bytes is reduced beside the leaves. If the tree of another worker has other leaves, the arrays
    have different lengths, which is an error on every worker at once. Otherwise a worker would wait until the step
    timeout for a leaf that the others do not have.
    """
    length = 1 + zlib.crc32("\n".join(names).encode()) % _STRUCTURES
    return f"{_shortened(name, _BYTES_MAX - len(STRUCTURE))}{STRUCTURE}", length


def _shortened(name: str, bytes_max: int = _BYTES_MAX) -> str:
    name = name.replace("\n", " ").replace("\0", " ")
    encoded = name.encode()
    if len(encoded) <= bytes_max:
        return name
    return f"{encoded[:150].decode(errors='ignore')}~{hashlib.sha256(encoded).hexdigest()[:32]}"
