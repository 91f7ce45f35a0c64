"""Names for tensors that a script gives none."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from gradlane._handle import Handle
from gradlane._recent import RecentNames

T = TypeVar("T")

NAMES_MAX = 4096
"""How many names of eager calls are kept. Those for shapes that came long ago end."""

_recent = RecentNames(NAMES_MAX)

_used: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()
"""By graph: how often each name was given."""


def under_a_name(tensor: Any, kind: str, call: Callable[[str], T]) -> T:
    """Makes a call with a name that is the same on workers that make the same calls in the same order.

    Eager calls end one by one, so their names may repeat. In a graph all calls run at once, and names are counted. A
    graph keeps its names, because it may run again.
    """
    dtype = getattr(tensor.dtype, "base_dtype", tensor.dtype)
    name = f"{kind}.{dtype.name if hasattr(dtype, 'name') else dtype}"
    is_sparse = isinstance(tensor, tf.IndexedSlices)
    # What is gathered may have any number of rows under one name.
    key = name if is_sparse else f"{name}.{_extents(tensor)}"
    if tf.executing_eagerly():

        def called(chosen: str) -> Handle[T]:
            result = call(chosen)
            return Handle(None, lambda: result)

        return _recent.begin(key, called, parts=_no_names if is_sparse else _names).wait()
    counts = _used.setdefault(tf.compat.v1.get_default_graph(), Counter())
    counts[key] += 1
    return call(f"{key}.{counts[key]}")


def _extents(tensor: Any) -> str:
    return "?" if getattr(tensor.shape, "rank", 0) is None else "x".join(str(extent) for extent in tensor.shape)


def _names(name: str) -> list[str]:
    return [name, f"{name}.backward"]


def _no_names(_: str) -> list[str]:
    return []
