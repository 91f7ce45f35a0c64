"""The options of a process group: what travels with which codec. All other options of PyTorch are heeded, or refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradlane import _core, _session
from gradlane._choice import codec_of_call
from gradlane._compression import AutoCompressor, Compressor, check_compression
from gradlane._reduction import Average, Sum
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch import _tensors
from gradlane.torch._reductions import GroupOp
from gradlane.torch.compression import Compression

BACKEND = "gradlane"
"""The name for `init_process_group`."""


@dataclass(frozen=True)
class ProcessGroupOptions:
    """How the tensors of a process group travel: `init_process_group("gradlane", pg_options=ProcessGroupOptions(...))`.

    `new_group` takes such options, too. A group without them sends tensors as they are, also a group of a part of the workers
    of one with them. Equal on all members.
    """

    compression: Compressor = Compression.none
    """The codec of sums and means of floating-point and complex tensors in `all_reduce`, also of its coalesced forms, and so of the
    buckets of PyTorch's `DistributedDataParallel`. Everything else travels as it is. A tensor with elements that the codec
    does not encode, such as bfloat16 with `int8`, is an error where there is no setting `compression_fallback`.

    A group knows no names of tensors, only lengths. Therefore error feedback and momentum are refused: what one tensor has
    lost would come back in another one of its length. `DistributedDataParallel` of `gradlane.torch`, `DistributedOptimizer`
    and `ddp_comm_hook` have them.
    """
    min_compress_bytes: int | None = None
    """Tensors with fewer bytes travel as they are; None takes the setting of that name. In a group this alone decides, for every
    codec: buckets have one dimension, so that the rule for parameters of a model, to compress only those with two or more, has
    no meaning. With `compress_all=True` of the compressor, the size does not matter either.
    """

    def __post_init__(self) -> None:
        """Checks what the group could not do.

        Raises:
            InvalidArgumentError: it is no compressor, it is `Compression.auto`, or a parameter is wrong.
            UnsupportedError: the compressor has error feedback.
        """
        codec = check_compression(self.compression).codec
        if isinstance(self.compression, AutoCompressor):
            raise InvalidArgumentError(
                "compression=Compression.auto chooses for the parameters of a model, which a process group does not know; "
                "give one of the others"
            )
        if codec != "none" and "feedback=1" in _core.codec_of(codec, "a tensor of the group", "float32", (1,)):
            raise UnsupportedError(
                f"compression={codec}: a process group tells tensors apart by their lengths, so that what one has lost would "
                "come back in another; leave out feedback and momentum, or average gradients with "
                "gradlane.torch.DistributedDataParallel, DistributedOptimizer or ddp_comm_hook"
            )
        least = self.min_compress_bytes
        if least is not None and (not isinstance(least, int) or isinstance(least, bool) or least < 0):
            raise InvalidArgumentError(f"min_compress_bytes={least!r}; give a number of bytes, or None for the setting")

    @property
    def _timeout(self) -> None:
        """The limit of calls, which a mesh of PyTorch reads here: that of groups without options."""
        return None

    def codec_of(self, tensor: torch.Tensor, op: GroupOp) -> str:
        """The codec of a tensor in `all_reduce`.

        Raises:
            InvalidArgumentError: the codec does not encode its elements.
        """
        if self.compression.codec == "none" or op.native not in (Sum, Average):
            return "none"
        # Complex numbers are added as pairs of real ones, as which PyTorch gives them to most calls.
        dtype, count = (tensor.dtype.to_real(), 2) if tensor.is_complex() else (tensor.dtype, 1)
        least = _session.compression().min_bytes if self.min_compress_bytes is None else self.min_compress_bytes
        is_small = tensor.numel() * tensor.element_size() < least and not self.compression.compress_all
        if is_small or not dtype.is_floating_point:
            return "none"
        shape = (tensor.numel() * count,)
        return _core.codec_of(codec_of_call(self.compression), "a tensor of all_reduce", _tensors.dtype_name(dtype), shape)


AS_THEY_ARE = ProcessGroupOptions()
"""Those of a group without options."""

_READ = (
    "enable_reconfigure", "global_ranks_in_group", "group_id", "group_rank", "group_size", "process_group", "store", "timeout"
)
"""The options of PyTorch for a new group that are heeded here."""


def own_options(options: Any, backend_options: object) -> ProcessGroupOptions:
    """Those of this backend.

    Raises:
        UnsupportedError: an option would have no effect.
    """
    own = isinstance(backend_options, ProcessGroupOptions)
    given = {} if own or backend_options is None else {"pg_options": backend_options}
    for name in dir(options):
        value = None if name.startswith("_") or name in _READ else getattr(options, name)
        if value and not callable(value):
            given[name] = value
    if given:
        listed = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise UnsupportedError(
            f'{listed} is an option of other backends and would have no effect on "{BACKEND}"; leave it out of '
            "init_process_group and new_group, whose pg_options are gradlane.torch.ProcessGroupOptions"
        )
    return backend_options if isinstance(backend_options, ProcessGroupOptions) else AS_THEY_ARE
