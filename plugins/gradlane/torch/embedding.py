"""Embeddings whose rows live on the servers, in a table, and the optimizer that sends their gradients there."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from gradlane import modes
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.rules import Rule
from gradlane.tables import Pending, Table
from gradlane.torch._tensors import kind_of

Init = Literal["zero", "uniform", "normal"]

AHEAD_MAX = 8
"""Batches of which a module keeps prefetched rows; the oldest go first."""


class _TableModule(torch.nn.Module):
    """What all these modules are: a table, and the rows of it that passes have read or left gradients for."""

    def __init__(self, table: Table, num_embeddings: int, padding_idx: int | None) -> None:
        super().__init__()
        _hide_from_dynamo()
        if not 0 < num_embeddings < 1 << 63:
            raise InvalidArgumentError(f"num_embeddings={num_embeddings}; give a number of ids above 0 and below 2**63")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise InvalidArgumentError(f"padding_idx={padding_idx}; give an id below num_embeddings={num_embeddings}")
        self.num_embeddings, self.embedding_dim = num_embeddings, table.dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.table = table
        self._left: dict[torch.Tensor, torch.Tensor] = {}
        """Rows with the gradients that backward passes have left, and their ids."""
        self._ahead: deque[_Reading] = deque(maxlen=AHEAD_MAX)

    def prefetch(self, ids: torch.Tensor) -> None:
        """Begins to fetch the rows of a batch to come. The next forward pass for training with the same ids takes them.

        The rows have all that this worker pushed before this call, and perhaps more of other workers. So a call before `step()`
        hides the fetching behind the computation, and gives rows without that step. In eval mode it does nothing.

        Args:
            ids: as for the forward pass, on the same device. They may change after the call. The rows of the last 8 calls are
                kept until they are used.
        Raises:
            InvalidArgumentError: as the forward pass.
        """
        if self.training:
            self._ahead.append(self._begun(ids.clone()))

    def extra_repr(self) -> str:
        """What stands between the parentheses of its text."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, {self.table!r}"

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy: it uses the same table, and has none of the gradients and rows that are under way."""
        return {**self.__dict__, "_left": {}, "_ahead": deque(maxlen=AHEAD_MAX)}

    def _read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Reads the rows of the distinct ids, and says for each id the place of its row.

        In training the rows are a part of the graph, and a backward pass leaves their gradients in `_left`. With a padding, row 0 is
        zeros, and stands for it.
        """
        if not (self.training and torch.is_grad_enabled()):
            distinct, places = self._distinct(ids)
            return self._padded(self.table.look(distinct).to(ids.device)), places
        reading = self._taken(ids) or self._begun(ids)
        distinct, places, rows = reading.distinct, reading.places, reading.rows.wait().to(ids.device)
        # Python does not find circles of references through a hook, so nothing that it names may lead back to the rows.
        module = weakref.ref(self)

        def leave(rows: torch.Tensor) -> None:
            if (there := module()) is not None:
                there._left[rows] = distinct

        rows.requires_grad_().register_post_accumulate_grad_hook(leave)
        return self._padded(rows), places

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        """Puts the row of the padding before the others."""
        return rows if self.padding_idx is None else F.pad(rows, (0, 0, 1, 0))

    def _begun(self, ids: torch.Tensor) -> _Reading:
        distinct, places = self._distinct(ids)
        return _Reading(ids, distinct, places, self.table.pull_async(distinct))

    def _taken(self, ids: torch.Tensor) -> _Reading | None:
        """The oldest rows that were prefetched for these ids."""
        for reading in tuple(self._ahead):
            if kind_of(reading.ids) == kind_of(ids) and torch.equal(reading.ids, ids):
                # Only one of several threads removes it, and the others fetch anew.
                with contextlib.suppress(ValueError):
                    self._ahead.remove(reading)
                    return reading
        return None

    def _distinct(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids that have rows, each once, on the CPU, and for each id the place of its row."""
        if ids.dtype not in (torch.int32, torch.int64):
            raise InvalidArgumentError(f"table {self.table.name}: ids of {ids.dtype}; give int64 or int32")
        found, places = torch.unique(ids.long(), return_inverse=True)
        distinct = found.cpu()
        for end in distinct[:1].tolist() + distinct[-1:].tolist():  # they are in order
            if not 0 <= end < self.num_embeddings:
                raise InvalidArgumentError(f"table {self.table.name}: there is no id {end}; give ids from 0 to {self.num_embeddings - 1}")
        if self.padding_idx is not None:
            has_row = distinct != self.padding_idx
            distinct, places = distinct[has_row], (has_row.cumsum(0) * has_row).to(places.device)[places]
        return distinct, places


class Embedding(_TableModule):
    """What `torch.nn.Embedding(sparse=True)` is, with rows that live on the servers.

        embedding = gl.Embedding(10_000_000, 16, name="items", rule=gl.rules.Adagrad(lr=0.1))
        optimizer = gl.TableOptimizer(embedding)
        for ids, targets in loader:
            optimizer.zero_grad()
            loss(embedding(ids), targets).backward()
            optimizer.step()

    In training, a forward pass pulls the row of each distinct id, and the backward pass leaves one gradient for each, which
    `TableOptimizer.step()` sends. In eval mode and under `torch.no_grad()` it only looks, so it makes no rows and leaves no gradients.
    Workers train asynchronously, unless the table's mode says otherwise: rows have what others have sent so far.

    The rows are no parameter. `parameters()` does not list them, so that other optimizers and wrappers leave them alone;
    `state_dict()` has nothing of them, and `half()` and `to()` change nothing: they come as float32, on the device of the ids, and
    `dtype=` says how servers keep them. A copy (`copy.deepcopy`, `pickle`) reads and trains the rows of the same table. A compiled model
    has a break of its graph here.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = True,
        *,
        name: str,
        rule: Rule | str,
        init: Init = "normal",
        scale: float = 1.0,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        """Describes the table. Servers hear of it with its first use.

        Args:
            num_embeddings: ids are below it. It takes no memory: only ids that were used have rows.
            embedding_dim: elements of a row, from 1 to 16,384.
            padding_idx: this id reads as zeros, and has neither a row nor a gradient.
            max_norm: has to be None, because a forward pass changes no rows.
            norm_type: that of `max_norm`; without effect.
            scale_grad_by_freq: has to be False.
            sparse: without effect: only rows that were used have gradients.
            name: of the table; equal on all workers, as all that follows. Modules of one name have the same rows.
            rule: how gradients change rows, such as `rules.SparseAdam(lr=1e-3)`.
            init: what rows begin with; see `gradlane.tables.Table`, as for all that follows.
            scale: for `init`.
            seed: of the first values.
            settings: others of the table, such as `rows=`, `compression=`, and `dtype="bfloat16"`, with which servers keep rows in half
                of the memory. What a forward pass returns stays float32.
        Raises:
            UnsupportedError: `max_norm` or `scale_grad_by_freq` is given.
            InvalidArgumentError: another argument is not what it should be; it is named.
        """
        del norm_type, sparse
        settings |= {"rule": rule, "init": init, "scale": scale, "seed": seed}
        _refuse(max_norm, scale_grad_by_freq)
        super().__init__(Table(name, embedding_dim, **settings), num_embeddings, padding_idx)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids.

        Args:
            ids: int64 or int32, of any shape, on the CPU or a CUDA device; at most 1,048,576 distinct ones.
        Returns:
            float32, of the shape of the ids and `embedding_dim`.
        Raises:
            InvalidArgumentError: an id is below 0 or not below `num_embeddings`; it is named.
            FailedPreconditionError: the table is full, or a server has no memory for more rows.
            MismatchError: a worker has made the table with other arguments; both sides are named.
        """
        rows, places = self._read(ids)
        return F.embedding(places, rows)


class EmbeddingBag(_TableModule):
    """What `torch.nn.EmbeddingBag(sparse=True)` is, with rows that live on the servers; see `Embedding`."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: Literal["sum", "mean", "max"] = "mean",
        sparse: bool = True,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        name: str,
        rule: Rule | str,
        init: Init = "normal",
        scale: float = 1.0,
        seed: int = 0,
        table_mode: modes.Mode = modes.Async(),
        **settings: Any,
    ) -> None:
        """Describes the table.

        Args:
            num_embeddings: as for `Embedding`, like all that is not named here.
            mode: what a bag is of its rows.
            include_last_offset: whether the last offset is the end of the last bag.
            padding_idx: an id that bags leave out, also from their mean and maximum.
            table_mode: `mode=` of the table, because `mode` is that of the bags.
        Raises:
            UnsupportedError: as `Embedding`.
            InvalidArgumentError: as `Embedding`.
        """
        del norm_type, sparse
        if mode not in ("sum", "mean", "max"):
            raise InvalidArgumentError(f'mode={mode!r}; give "sum", "mean" or "max"')
        settings |= {"rule": rule, "init": init, "scale": scale, "seed": seed, "mode": table_mode}
        _refuse(max_norm, scale_grad_by_freq)
        super().__init__(Table(name, embedding_dim, **settings), num_embeddings, padding_idx)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self, input: torch.Tensor, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The sum, mean or maximum of the rows of each bag.

        Args:
            input: ids as for `Embedding`: of shape (bags, ids), or one after the other with `offsets`.
            offsets: where each bag begins; int64 or int32. An empty bag is zeros.
            per_sample_weights: float32 of the shape of `input`, for `mode="sum"`: each row is multiplied by its weight.
        Returns:
            float32 of shape (bags, `embedding_dim`).
        Raises:
            The errors of `Embedding.forward` and of `torch.nn.functional.embedding_bag`.
        """
        rows, places = self._read(input)
        return F.embedding_bag(
            places,
            rows,
            None if offsets is None else offsets.long(),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=None if self.padding_idx is None else 0,
        )


class TableOptimizer:
    """Sends the gradients of embeddings to the servers, which change the rows by the rules of the tables.

        optimizer, of_tables = torch.optim.Adam(model.parameters()), gl.TableOptimizer(model)

    It stands beside an optimizer of the parameters. Gradients of several backward passes before one `step()` add up. Nothing is
    averaged: the servers apply what each worker sends when it comes, and nobody waits. With `mode=modes.Sync()` of a table, rows make
    one step by the mean of all workers, and each `step()` waits for theirs. The learning rate is in the rule.

    With `torch.amp.GradScaler`, call `scaler.unscale_(of_tables)` and `scaler.step(of_tables)` as for any optimizer. A step whose
    gradients are not finite is left out, on this worker alone. Then call `zero_grad()`. Where workers wait for each other, all of them
    have to leave it out: reduce the scaler's finding first, or the others wait until their step times out.
    """

    def __init__(self, modules: torch.nn.Module | Iterable[torch.nn.Module], step: int | None = None) -> None:
        """Finds embeddings.

        Args:
            modules: a model, or several; their `Embedding`, `EmbeddingBag` and `EmbeddingBagCollection` modules are found at any depth.
            step: the steps of the training before, from 0, for rules that follow them; each step counts for all tables then.
                With None, each table counts the steps that had gradients for it.
        Raises:
            InvalidArgumentError: they have no such module.
        """
        given = [modules] if isinstance(modules, torch.nn.Module) else modules
        found = dict.fromkeys(one for module in given for one in module.modules() if isinstance(one, _TableModule))
        if not found:
            raise InvalidArgumentError("the model has no gl.Embedding, gl.EmbeddingBag or gl.EmbeddingBagCollection; give one that has")
        self._step = step
        # Modules of one name have one table, so each of its rows makes one step by the gradients of them all.
        self._sharing: dict[str, list[_TableModule]] = {}
        for module in found:
            self._sharing.setdefault(module.table.name, []).append(module)

    @property
    def param_groups(self) -> list[dict[str, list[torch.Tensor]]]:
        """The rows that have gradients, for a GradScaler, and for `clip_grad_norm_`, which may change the gradients."""
        return [{"params": [rows for modules in self._sharing.values() for module in modules for rows in module._left]}]

    @torch.no_grad()
    def step(self) -> None:
        """Sends what backward passes have left, and waits until the rows are changed.

        After an error, a further call sends only what was not sent yet.

        Raises:
            NotFiniteError: a gradient is infinite or not a number. It stays; tables before this one have changed.
            FailedPreconditionError: a table is full, or a server has no memory for more rows.
            InvalidArgumentError: the passes since the last step have left gradients for more than 1,048,576 ids in one table.
            PeerLostError: a member of the job died.
        """
        with contextlib.ExitStack() as sent:
            for modules in self._sharing.values():
                left = [(one, rows, rows.grad) for one in modules for rows in tuple(one._left) if rows.grad is not None]
                table = modules[0].table
                # Where others wait for this worker, it sends something at each step.
                if left or table.waits:
                    nothing = [(torch.empty(0, dtype=torch.int64), torch.empty(0, table.dim))] if not left else []
                    found = [(module._left[rows], gradient.cpu()) for module, rows, gradient in left] + nothing
                    ids, gradients = (torch.cat(tensors) for tensors in zip(*found, strict=True))
                    sent.callback(table.push_async(ids, gradients, step=self._step).wait)
                for module, rows, _ in left:
                    _drop(module, rows)
        if self._step is not None:
            self._step += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops what backward passes have left; `set_to_none` is without effect."""
        del set_to_none
        for modules in self._sharing.values():
            for module in modules:
                for rows in tuple(module._left):
                    _drop(module, rows)


@dataclass(eq=False)
class _Reading:
    """Rows that are pulled."""

    ids: torch.Tensor
    """As they were given."""
    distinct: torch.Tensor
    places: torch.Tensor
    rows: Pending[torch.Tensor]


def _refuse(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    """Refuses what a table does not do."""
    if max_norm is not None:
        raise UnsupportedError(f"max_norm={max_norm}: a forward pass changes no rows; leave it out, or give the table a bound=")
    if scale_grad_by_freq:
        raise UnsupportedError("scale_grad_by_freq=True: gradients of an id are added up as they are; leave it out")


def _drop(module: _TableModule, rows: torch.Tensor) -> None:
    """Drops the gradients of rows. A graph that is kept may leave further ones."""
    del module._left[rows]
    rows.grad = None


@functools.cache
def _hide_from_dynamo() -> None:
    """Keeps the compiler from tracing uses of servers, which models call. Importing it takes a second."""
    _TableModule._read = torch.compiler.disable(_TableModule._read)  # type: ignore[method-assign]
