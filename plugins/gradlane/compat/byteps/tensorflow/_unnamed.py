"""Names for tensors that a script gives none."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import tensorflow as tf

_used: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()
"""By graph: how often each name was given."""


def name_of(tensor: Any, kind: str) -> str:
    """A name that is the same on workers that make the same calls in the same order.

    Eager calls end one by one, so their names may repeat. In a graph all calls run at once, and names are counted.
    """
    shape = "x".join(str(extent) for extent in (tensor.shape if tensor.shape is not None else ()))
    name = f"{kind}.{tensor.dtype.base_dtype.name if hasattr(tensor.dtype, 'base_dtype') else tensor.dtype}.{shape}"
    if tf.executing_eagerly():
        return name
    counts = _used.setdefault(tf.compat.v1.get_default_graph(), Counter())
    counts[name] += 1
    return f"{name}.{counts[name]}"
