"""The process group that PyTorch's own wrapper wants for its control traffic."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gradlane.torch as gl
from torch import distributed


def gloo() -> distributed.ProcessGroup:
    """The default group, which is made at the first call. All workers must call it."""
    if not distributed.is_initialized():
        folder = gl.broadcast_object(tempfile.mkdtemp() if gl.rank() == 0 else None, 0, "gloo folder")
        store = distributed.FileStore(str(Path(folder, "store")), gl.size())
        distributed.init_process_group("gloo", store=store, rank=gl.rank(), world_size=gl.size())
    return distributed.group.WORLD
