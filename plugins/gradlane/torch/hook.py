"""Gradlane under PyTorch's own `DistributedDataParallel`: our servers average its buckets.

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    ddp.register_comm_hook(gl.State(model), gl.ddp_comm_hook)

PyTorch still wants a process group for its own control traffic; gloo will do. It checks the annotations of a hook as
objects, so this file cannot use `from __future__ import annotations`.
"""

from collections.abc import Mapping

import torch
from torch import distributed

from gradlane import _session
from gradlane._model_choice import codec_of_model, codecs_of_model
from gradlane._handle import Handle
from gradlane._reduction import AVERAGE
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane import _names
from gradlane.torch import _tensors
from gradlane.torch._futures import Completions, future_on
from gradlane.torch._lost_gradients import LostGradients
from gradlane.torch._sparse import SparseTransfer
from gradlane.torch.compression import Compressor
from gradlane.torch.groups import begin_in_place
from gradlane.torch.ops import reduce_in_place


class State:
    """The names of a model's parameters, for the hook.

    Buckets are named after the parameters in them. Their index will not do, because PyTorch rebuilds its buckets after
    the first iteration and reuses the indices.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        *,
        group: distributed.ProcessGroup | None = None,
        compression: Compressor | None = None,
        names: Mapping[torch.Tensor, str] | None = None,
        name: str | None = None,
    ) -> None:
        """Reads the names of a model.

        With `model`, backward passes raise if PyTorch's wrapper would leave out a gradient in silence: of a parameter
        that was added or unfrozen later, or one that another hook has cleared or used before it was averaged.

        Args:
            model: the module, wrapped or not.
            group: accepted if it spans all workers; averages over part of them are not supported.
            compression: one of `Compression`. `fp16` and `bf16` act on whole buckets, the others on the parameters in them
                as they do in `DistributedDataParallel`. None takes the setting `compression`.
            names: names by parameter, instead of `model`.
            name: a prefix of the tensors' names; needed only if workers make states in different orders.
        """
        if (model is None) == (names is None):
            raise InvalidArgumentError(
                "State needs either model= or names=, to name the parameters in errors and buckets"
            )
        if group is not None and group.size() != _session.first_size():
            raise UnsupportedError(
                f"group has {group.size()} of {_session.first_size()} workers; this version averages over all of them"
            )
        pairs = ((p, n) for n, p in model.named_parameters()) if model is not None else (names or {}).items()
        listed = list(pairs)
        codecs_of_model(compression, [(n, *_tensors.wire_form(p)) for p, n in listed if p.requires_grad])
        self._compression, self._codec = compression, codec_of_model(compression)
        self._namespace = _names.namespace("hook", name)
        self._names = {id(parameter): (position, n) for position, (parameter, n) in enumerate(listed)}
        self._buckets: dict[tuple[str, ...], str] = {}
        self._lost_gradients = None if model is None else LostGradients(model)

    def __getstate__(self) -> dict[str, object]:
        """The state of a copy, which PyTorch's wrapper makes and does not use."""
        return {**self.__dict__, "_lost_gradients": None}

    def begin(self, bucket: distributed.GradBucket) -> Handle[torch.Tensor]:
        """Begins to average a bucket that is not sparse, in place."""
        buffer = bucket.buffer()
        name, priority = self.bucket_name(bucket)
        reduction = AVERAGE.with_priority(priority).encoded(self._codec)
        if self._compression is None or self._compression.is_cast:
            return reduce_in_place(buffer, name, reduction)
        # One by one, because blocks and largest elements are those of a tensor.
        names = [f"{self._namespace}/{self._names[id(parameter)][1]}" for parameter in bucket.parameters()]
        return begin_in_place(False, bucket.gradients(), names, reduction).then(lambda _: buffer)

    def bucket_name(self, bucket: distributed.GradBucket) -> tuple[str, int]:
        """A name for the bucket, made of its parameters only, and the priority of the parameter needed first."""
        known = [self._names.get(id(parameter)) for parameter in bucket.parameters()]
        members = [member for member in known if member is not None]
        if len(members) < len(known):
            raise InvalidArgumentError(
                "a bucket holds a parameter that State does not know; make State from the same model"
            )
        names = tuple(name for _, name in members)
        if names not in self._buckets:
            label = f"{self._namespace}/{names[0]}+{len(names) - 1}"
            # PyTorch makes the same buckets on all workers, and sends them in one order.
            alike = sum(other.rpartition(" #")[0] == label for other in self._buckets.values())
            self._buckets[names] = f"{label} #{alike}"
        return self._buckets[names], -min(position for position, _ in members)

    def check(self, bucket: distributed.GradBucket) -> None:
        """Raises if PyTorch's wrapper leaves out the gradient of a parameter.

        Raises:
            InvalidArgumentError: a parameter was added, unfrozen or changed.
            FailedPreconditionError: another hook has cleared a gradient of the bucket, or changed a parameter.
        """
        if self._lost_gradients is not None:
            self._lost_gradients.check(bucket.parameters(), is_last=bucket.is_last())


def ddp_comm_hook(state: State, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over all workers; give it to `register_comm_hook`.

    `backward()` raises errors of the engine as RuntimeError; the text begins with the type of the original error.
    """
    state.check(bucket)
    buffer = bucket.buffer()
    if buffer.is_sparse:
        # Gathers the rows here and now, because their number is known only when all workers have told theirs.
        transfer = SparseTransfer(buffer, state.bucket_name(bucket)[0], AVERAGE)
        transfer.exchange()
        done: torch.futures.Future[torch.Tensor] = future_on(buffer.device)
        done.set_result(transfer.wait())
        return done
    completions = Completions.of_this_job()  # reports what begins from now on
    return completions.of(state.begin(bucket), buffer.device)
