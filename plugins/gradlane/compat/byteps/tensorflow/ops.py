"""`byteps.tensorflow.ops`: the operations, as BytePS's own modules import them."""

from __future__ import annotations

from typing import Any

from gradlane.compat.byteps.common import (
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from gradlane.compat.byteps.tensorflow import Average, Sum, broadcast, push_pull

__all__ = [
    "Average",
    "Sum",
    "broadcast",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]


def _push_pull(tensor: Any, scope: str = "", name: str | None = None) -> Any:
    """The sum of `tensor` over all workers; `name` is a part of its name."""
    return push_pull(tensor, f"{scope}{name or ''}", op=Sum)
