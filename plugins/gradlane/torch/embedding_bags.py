"""Bags of many embeddings whose rows live on the servers in one table, so that a batch is one exchange with each server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F

from gradlane import modes
from gradlane.errors import InvalidArgumentError
from gradlane.rules import Rule
from gradlane.tables import Group
from gradlane.torch.embedding import Init, _TableModule

Bags = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Ids of shape (bags, ids), or ids one after the other with the offsets of bags."""


class EmbeddingBagCollection(_TableModule):
    """An `EmbeddingBag` for each column of a model's input, of one dimension, with rows that live on the servers.

        embeddings = gl.EmbeddingBagCollection({"user": 10_000_000, "item": 500_000}, 16, name="columns", rule=gl.rules.Adagrad(lr=0.1))
        optimizer = gl.TableOptimizer(embeddings)
        bags = embeddings({"user": users, "item": (items, offsets)})
        model(torch.cat([bags["user"], bags["item"]], dim=1))

    All columns are read in one exchange with each server, and so their gradients are sent. See `Embedding` for all else.
    """

    def __init__(
        self,
        columns: Mapping[str, int],
        embedding_dim: int,
        *,
        mode: Literal["sum", "mean", "max"] = "sum",
        name: str,
        rule: Rule | str,
        init: Init = "normal",
        scale: float = 1.0,
        seed: int = 0,
        table_mode: modes.Mode = modes.Async(),
        **settings: Any,
    ) -> None:
        """Describes the group of tables.

        Args:
            columns: for each how many ids it has, which are below that; see `gradlane.tables.Group`.
            embedding_dim: elements of a row, from 1 to 16,384.
            mode: what a bag is of its rows.
            name: of the group; equal on all workers, as all that follows.
            rule: how gradients change rows, such as `rules.SparseAdam(lr=1e-3)`.
            init: what rows begin with; see `gradlane.tables.Table`, as for all that follows.
            scale: for `init`.
            seed: of the first values.
            table_mode: `mode=` of the table, because `mode` is that of the bags.
            settings: others of the table.
        Raises:
            InvalidArgumentError: an argument is not what it should be; it is named.
        """
        if mode not in ("sum", "mean", "max"):
            raise InvalidArgumentError(f'mode={mode!r}; give "sum", "mean" or "max"')
        settings |= {"rule": rule, "init": init, "scale": scale, "seed": seed, "mode": table_mode}
        group = Group(name, columns, embedding_dim, **settings)
        super().__init__(group.table, sum(map(len, group.ranges.values())), None)
        self.group, self.mode = group, mode

    def forward(self, columns: Mapping[str, Bags]) -> dict[str, torch.Tensor]:
        """The sum, mean or maximum of the rows of each bag.

        Args:
            columns: for each column ids of shape (bags, ids), or ids one after the other and where each bag begins; int64 or int32, on
                one device. An empty bag is zeros. Columns that are not named have no bags.
        Returns:
            For each column float32 of shape (bags, `embedding_dim`).
        Raises:
            InvalidArgumentError: there is no such column, or no such id in it; it is named.
            FailedPreconditionError: the table is full, or a server has no memory for more rows.
            MismatchError: a worker has made the table with other columns or arguments; both sides are named.
        """
        rows, places = self._read(self._joined(columns))
        found, at = {}, 0
        for column, given in columns.items():
            ids, offsets = _split(given)
            of_column, at = places[at : at + ids.numel()].reshape(ids.shape), at + ids.numel()
            found[column] = F.embedding_bag(of_column, rows, None if offsets is None else offsets.long(), mode=self.mode)
        return found

    def prefetch(self, columns: Mapping[str, Bags]) -> None:  # type: ignore[override]
        """Begins to fetch the rows of a batch to come; see `Embedding.prefetch`."""
        super().prefetch(self._joined(columns))

    def _joined(self, columns: Mapping[str, Bags]) -> torch.Tensor:
        """The ids of all columns, as the table has them."""
        if not isinstance(columns, Mapping) or not columns:
            raise InvalidArgumentError(f"{columns!r:.100}; give ids for each column, by its name")
        parts = []
        for column, given in columns.items():
            ids, _ = _split(given)
            count = len(self.group[column])
            if ids.dtype not in (torch.int32, torch.int64):
                raise InvalidArgumentError(f"column {column}: ids of {ids.dtype}; give int64 or int32")
            if ids.numel():
                least, most = (int(end) for end in ids.aminmax())
                if least < 0 or most >= count:
                    raise InvalidArgumentError(f"column {column}: ids from {least} to {most}; give ids from 0 to {count - 1}")
            parts.append(ids.reshape(-1).long() + self.group.ranges[column].start)
        return torch.cat(parts)


def _split(given: Bags) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The ids, and where each bag begins, if that is said."""
    return given if isinstance(given, tuple) else (given, None)
