"""Reads checkpoints without a job: for other programs, and as tensors of PyTorch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlane import _core
from gradlane.errors import CorruptCheckpointError, InvalidArgumentError

if TYPE_CHECKING:
    import torch


def export(path: str | os.PathLike[str], file: str | os.PathLike[str], *, checkpoint: int | None = None) -> None:
    """Writes the values of a checkpoint to one file in the form of safetensors, which needs no job.

    Args:
        path: the directory to which the checkpoints were saved, as this process sees it.
        file: what to write. It is replaced when all of it is on the disk.
        checkpoint: the number of one of them; None for the latest.
    Raises:
        NotFoundError, CorruptCheckpointError, IncompatibleError: as `load`.
        UnavailableError: the file cannot be written.
    """
    _core.export_checkpoint(Path(path), number_of(checkpoint), Path(file))


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of a checkpoint."""

    name: str
    dtype: str
    """Such as `float32`."""
    shape: tuple[int, ...]
    rule: str | None
    """The rule that has changed it, as text."""


class Reader:
    """Reads a checkpoint without a job.

        reader = gl.checkpoint.Reader("runs/a")
        weights = {name: reader.read(name) for name in reader.tensors}
    """

    def __init__(self, path: str | os.PathLike[str], *, checkpoint: int | None = None) -> None:
        """
        Args:
            path: the directory to which the checkpoints were saved, as this process sees it.
            checkpoint: the number of one of them; None for the latest.
        Raises:
            NotFoundError, CorruptCheckpointError, IncompatibleError: as `load`.
        """
        import json

        self._saved = _core.SavedCheckpoint(Path(path), number_of(checkpoint))
        about = json.loads(self._saved.manifest())
        self.number: int = about["checkpoint"]
        self.directory: Path = self._saved.directory
        self.job: str = about["job"]
        self.extra: Any = extra_of(about["notes"])
        self.steps: dict[int, int] = {at["clock"]: at["step"] for at in about["clocks"]}
        self.tensors: dict[str, SavedTensor] = {
            of["name"]: SavedTensor(of["name"], of["dtype"], tuple(of["shape"]), of["rule"]) for of in about["tensors"]
        }

    def read(self, name: str) -> bytes:
        """The values of a tensor, in little-endian bytes of its dtype, in the order of its elements.

        Raises:
            NotFoundError: the checkpoint has no tensor of this name.
            CorruptCheckpointError: a file is not what it was; it is named.
        """
        return self._saved.read(name)


def state_dict(path: str | os.PathLike[str], *, prefix: str = "", checkpoint: int | None = None) -> dict[str, torch.Tensor]:
    """The values of a checkpoint as tensors of PyTorch, for `model.load_state_dict`; needs no job.

    Args:
        path: the directory to which the checkpoints were saved, as this process sees it.
        prefix: take only names that begin with it, and leave it out. A `ServerOptimizer` calls its parameters
            `<name>/<label>`, so that `optimizer.prefix + "/"` gives the labels of the model.
        checkpoint: the number of one of them; None for the latest.
    Raises:
        NotFoundError, CorruptCheckpointError, IncompatibleError: as `load`.
    """
    import torch

    reader = Reader(path, checkpoint=checkpoint)
    tensors = {}
    for name, tensor in reader.tensors.items():
        if name.startswith(prefix):
            values = torch.frombuffer(bytearray(reader.read(name)), dtype=getattr(torch, tensor.dtype))
            tensors[name.removeprefix(prefix)] = values.reshape(tensor.shape)
    return tensors


def to_dcp(
    path: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    prefix: str = "",
    checkpoint: int | None = None,
) -> None:
    """Writes the values of a checkpoint in the form of `torch.distributed.checkpoint`; needs no job.

    Args:
        directory: what to write; PyTorch makes it.
        path, prefix, checkpoint: as for `state_dict`.
    Raises:
        NotFoundError, CorruptCheckpointError, IncompatibleError: as `load`.
    """
    from torch.distributed import checkpoint as dcp

    dcp.save(state_dict(path, prefix=prefix, checkpoint=checkpoint), checkpoint_id=os.fspath(directory), no_dist=True)


def extra_of(notes: str) -> Any:
    """What was given to `save`, by its text in a checkpoint."""
    import json

    try:
        return json.loads(notes) if notes else None
    except ValueError as error:
        raise CorruptCheckpointError(f"the notes of a checkpoint: {error}", file="notes", problem=str(error)) from error


def number_of(checkpoint: int | None) -> int | None:
    """The number of a checkpoint, checked."""
    if checkpoint is not None and (not isinstance(checkpoint, int) or isinstance(checkpoint, bool) or checkpoint < 1):
        raise InvalidArgumentError(f"checkpoint={checkpoint!r}; give the number of one, or None for the latest")
    return checkpoint
