"""The transfers of which the calls of a process group consist: sums, copies and messages under names of the group."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from gradlane import _session
from gradlane._handle import Handle, begin_all, joined
from gradlane._recent import PassingNames, RecentNames
from gradlane._reduction import Reduction, broadcast_of
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError
from gradlane.torch import _tensors
from gradlane.torch._reductions import GroupOp, flat, form_of, values_of
from gradlane.torch._works import Start
from gradlane.torch.ops import reduce_in_place

NAMES_MAX = 8192
"""The most names that a group of all workers keeps for its collectives, and again for its messages."""

TAGS_KEPT = 16
"""Messages with tags below it keep their names."""


class Transfers:
    """What a process group begins. Each method returns what starts a transfer, and makes no call by itself."""

    _rank: int
    """The rank of this worker in the group."""
    _size: int
    _ranks: tuple[int, ...]
    """The ranks of the members in the job."""
    _set: ProcessSet | None
    _name: str
    """What the names of its transfers begin with."""
    _names: RecentNames
    """Of the collectives."""
    _passing: PassingNames
    _messages: Counter[str]
    """How many messages with other tags each channel has had."""

    def _channel(self, channel: str) -> RecentNames:
        """The names of the messages of one channel."""
        raise NotImplementedError

    def _sum(self, tensor: torch.Tensor, op: GroupOp, kind: str, limit: float | None, codec: str = "none") -> Start:
        key, members = self._key(f"{kind}.{op.name}", tensor), self._set
        wire, op = form_of(tensor, op)
        if op.native is None:
            return self._combination(wire, tensor, op, key, limit)
        reduction = Reduction(op.native.native, codec=codec, process_set=members, timeout=limit)

        def submit(name: str) -> Handle[torch.Tensor]:
            if op.factor is not None:
                wire.mul_(op.factor)
            if members is None:
                return reduce_in_place(wire, name, reduction)
            return _tensors.submit_in_place(wire, name, reduction)

        return lambda: self._names.begin(key, submit, members=members).then(lambda sum: _back(sum, tensor))

    def _sum_to(
        self, receiver: int, tensor: torch.Tensor, output: torch.Tensor, op: GroupOp, kind: str, limit: float | None
    ) -> Start:
        """Reduces `tensor` into `output` on the worker `receiver`; on the others nothing changes."""
        key, members = self._key(f"{kind}{receiver}.{op.name}", tensor), self._set
        is_receiver, to = receiver == self._rank, self._ranks[receiver]
        flat, op = form_of(tensor, op)
        if op.native is None:
            return self._combination_at(receiver, flat, output, op, kind, limit)
        wire = _tensors.in_host_memory(flat)
        reduction = Reduction(op.native.native, process_set=members, receiver=to, timeout=limit)
        if op.factor is not None:
            wire = wire * op.factor
        elif is_receiver and tensor is not output and wire.data_ptr() == tensor.data_ptr():
            wire = wire.clone()  # the sum lands on the contribution, which is the caller's

        def submit(name: str) -> Handle[torch.Tensor]:
            return _tensors.submit_in_place(wire, name, reduction)

        return lambda: self._names.begin(key, submit, members=members).then(
            lambda sum: _back(sum, output) if is_receiver else output
        )

    def _scatter_sums(
        self, output: torch.Tensor, parts: Sequence[torch.Tensor], op: GroupOp, limit: float | None
    ) -> list[Start]:
        return [self._sum_to(rank, part, output, op, "reduce_scatter", limit) for rank, part in enumerate(parts)]

    def _combination(
        self, own: torch.Tensor, output: torch.Tensor, op: GroupOp, key: str, limit: float | None
    ) -> Start:
        """Brings the vectors of all workers to each, and combines them into `output`."""
        parts = [torch.empty_like(own, device="cpu") for _ in range(self._size)]
        starts = self._gather(parts, own, key.partition("/")[2], limit)
        return lambda: joined(begin_all(starts)).then(lambda _: _combined(parts, output, op))

    def _combination_at(
        self, receiver: int, own: torch.Tensor, output: torch.Tensor, op: GroupOp, kind: str, limit: float | None
    ) -> Start:
        """Brings the vectors of all workers to `receiver`, which combines them into `output`."""
        kind = f"{kind}.{op.name}"
        if receiver != self._rank:
            return self._message(own, self._rank, receiver, kind, limit)
        parts = [torch.empty_like(own, device="cpu") for _ in range(self._size)]
        parts[receiver].copy_(own)
        others = [rank for rank in range(self._size) if rank != receiver]
        starts = [self._message(parts[rank], rank, receiver, kind, limit) for rank in others]
        return lambda: joined(begin_all(starts)).then(lambda _: _combined(parts, output, op))

    def _copy(self, tensor: torch.Tensor, root: int, kind: str, limit: float | None) -> Start:
        key, members, wire = self._key(f"{kind}.{root}", tensor), self._set, flat(tensor)
        if members is not None:
            copied = broadcast_of(self._ranks[root], process_set=members, timeout=limit)
            return lambda: self._names.begin(key, _copying(tensor, copied), members=members)

        def submit(name: str) -> Handle[torch.Tensor]:
            return _tensors.submit_bits(wire, name, broadcast_of(self._ranks[root], timeout=limit))

        gets = root != self._rank
        return lambda: self._names.begin(key, submit).then(lambda copied: _back(copied, tensor) if gets else tensor)

    def _message(
        self, tensor: torch.Tensor, origin: int, to: int, kind: str, limit: float | None, tag: int = 0
    ) -> Start:
        """Copies a tensor from one worker of the group to another one; this worker is one of the two."""
        if origin == to:
            raise InvalidArgumentError("a message of a worker to itself; copy the tensor")
        pair = ProcessSet({self._ranks[origin], self._ranks[to]})
        copied = broadcast_of(self._ranks[origin], process_set=pair, receiver=self._ranks[to], timeout=limit)
        submit = _copying(tensor, copied)
        channel = f"{kind}{tag or ''}.{origin}>{to}"
        key = self._key(channel, tensor)
        if not 0 <= tag < TAGS_KEPT or pair_names(_session.first_size()) == 0:
            # The order of messages with different tags may differ between the two workers, and there may be any number
            # of tags. So the name for such a message ends with it, and every name where there are very many pairs.
            self._messages[channel] += 1
            name = f"{key}#{self._messages[channel]}"
            return lambda: self._passing.begin(name, submit, members=pair)
        recent = self._channel(channel)
        return lambda: recent.begin(key, submit, members=pair)

    def _exchange(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], limit: float | None
    ) -> list[Start]:
        starts = []
        for rank, (output, own) in enumerate(zip(outputs, inputs, strict=True)):
            if rank == self._rank:
                output.detach().copy_(own.detach().reshape(output.shape))
                continue
            starts.append(self._message(own, self._rank, rank, "all_to_all", limit))
            starts.append(self._message(output, rank, self._rank, "all_to_all", limit))
        return starts

    def _cut(self, tensor: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        """The parts of a tensor for the workers of the group."""
        lengths = list(sizes) or [tensor.shape[0] // self._size] * self._size
        if len(lengths) != self._size or sum(lengths) != tensor.shape[0]:
            raise InvalidArgumentError(
                f"all_to_all of a tensor of {tensor.shape[0]} rows in parts of {lengths} among {self._size} workers; "
                "give a part for each, which are the tensor together"
            )
        parts: Sequence[torch.Tensor] = tensor.split(lengths)
        return parts

    def _gather(
        self, outputs: list[torch.Tensor], own: torch.Tensor, kind: str, limit: float | None
    ) -> list[Start]:
        outputs[self._rank].detach().copy_(own.detach().reshape(outputs[self._rank].shape))
        return [self._copy(output, root, kind, limit) for root, output in enumerate(outputs)]

    def _key(self, kind: str, tensor: torch.Tensor) -> str:
        """A name that calls of one kind have on all workers; the engine keeps the rounds of a name in order."""
        return f"{self._name}/{kind}.{_tensors.dtype_name(tensor.dtype)}.{tensor.numel()}"

    def _check_count(self, count: int, call: str) -> None:
        if count != self._size:
            raise InvalidArgumentError(f"{call} with a list of {count} tensors in a group of {self._size} workers")

    def _check_length(self, whole: torch.Tensor, part: torch.Tensor, call: str) -> None:
        if whole.numel() != self._size * part.numel() or whole.dtype != part.dtype:
            raise InvalidArgumentError(
                f"{call} between {whole.numel()} elements of {whole.dtype} and {part.numel()} of {part.dtype} in a "
                f"group of {self._size} workers; the longer tensor has one part for each worker, of the same type"
            )


def pair_names(workers: int) -> int:
    """How many names each pair of workers keeps for its messages of a kind.

    All pairs of a job together keep about `NAMES_MAX`, and four times as many where each pair keeps one. With more workers
    none is kept: there are more pairs than a job has names.
    """
    return NAMES_MAX // workers**2 or int(workers**2 <= 4 * NAMES_MAX)


def _copying(tensor: torch.Tensor, reduction: Reduction) -> Callable[[str], Handle[torch.Tensor]]:
    """Begins the broadcast of a tensor's bits under a name."""
    wire, source, _ = _tensors.bits(_tensors.in_host_memory(flat(tensor)))
    gets = _session.rank() != reduction.root and reduction.receiver in (None, _session.rank())
    return lambda name: _tensors.submit_in_place(wire, name, reduction).then(
        lambda _: _back(source, tensor) if gets else tensor
    )


def place_of(output: torch.Tensor) -> torch.Tensor:
    """`output`, or where the result is made if its memory is not contiguous."""
    plain = output.detach()
    return plain if _tensors.is_dense(plain) else torch.empty_like(plain, memory_format=torch.contiguous_format)


def landing(starts: list[Start], place: torch.Tensor, output: torch.Tensor) -> list[Start]:
    """The same operations, after which what is in `place` is in `output`."""
    if place.data_ptr() == output.data_ptr() or not starts:
        return starts

    def landed(_: object) -> torch.Tensor:
        output.detach().copy_(place)
        return output

    return [lambda: joined(begin_all(starts)).then(landed)]


def _back(wire: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Brings a result into `tensor`, unless it has its memory."""
    if wire.data_ptr() != tensor.data_ptr():
        _tensors.land(values_of(wire, tensor), tensor.detach())
    return tensor


def _combined(parts: list[torch.Tensor], output: torch.Tensor, op: GroupOp) -> torch.Tensor:
    """Combines the vectors of the workers in the order of their ranks, so that the result is the same everywhere."""
    assert op.combine is not None, "operations of the engine combine nothing here"
    return _back(functools.reduce(op.combine, parts), output)
