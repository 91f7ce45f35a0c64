"""`horovod.torch.elastic.sampler`: divides data among workers, and what is left of it anew when the workers change."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import torch.utils.data

from gradlane.compat.horovod.common import rank, size
from gradlane.errors import InvalidArgumentError

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals out the indices of a data set, each to one worker, without those that were processed in this epoch.

    Give it to a `TorchState`, call `record_batch` for each batch, and `set_epoch` at the end of an epoch.

    All workers have shares of the same length: if the indices do not divide, the first ones of the epoch come again. A
    worker that is lost takes with it what it had not finished of the batches that the others have recorded since. Those
    samples come again in the next epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Deals out `range(len(dataset))`.

        Args:
            dataset: of the same length on all workers and in all epochs.
            shuffle: whether each epoch has an order of its own, which is the same on all workers.
            seed: of that order.
        """
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        """Those of this epoch, as far as this worker knows."""
        self.num_replicas, self.rank = 1, 0
        self.remaining_indices: list[int] = []
        self.num_samples = self.total_size = 0
        self._dealt: list[int] = []
        """The indices of all shares in turn."""
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in which no index was processed. Call it at the end of the one before."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Says that this batch of the present share was processed, and by all other workers that of theirs.

        Args:
            batch_idx: counted from the beginning of the present iteration.
            batch_size: of each worker's batches, the same on all.
        """
        start = batch_idx * batch_size * self.num_replicas
        self.processed_indices.update(self._dealt[start : start + batch_size * self.num_replicas])

    def record_indices(self, indices: Iterable[int]) -> None:
        """Says that this worker has processed these indices. The others hear of it when the workers change."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The indices of a batch of this worker's present share."""
        share = self._share()
        return share[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and what was processed in it."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called, with the workers that there are now.

        Raises:
            InvalidArgumentError: it has another form.
        """
        if not {"epoch", "processed_indices"} <= state_dict.keys():
            raise InvalidArgumentError(
                f"the state of a sampler has the entries {', '.join(map(str, state_dict))}; give what state_dict() of an "
                "ElasticSampler returned, with epoch and processed_indices"
            )
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        """Divides what was not processed among the workers that there are now. It counts from the next iteration on."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = [index for index in order if index not in self.processed_indices]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self._dealt = list(itertools.islice(itertools.cycle(self.remaining_indices), self.total_size))

    def __iter__(self) -> Iterator[int]:
        return iter(self._share())

    def __len__(self) -> int:
        return self.num_samples

    def _share(self) -> list[int]:
        return self._dealt[self.rank :: self.num_replicas]
