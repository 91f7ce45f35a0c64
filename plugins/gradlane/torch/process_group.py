"""Gradlane as a backend of `torch.distributed`.

    import gradlane.torch
    torch.distributed.init_process_group("gradlane")      # DDP, FSDP2, DTensor and functional collectives run on it

A group has all workers of the job, or some of them (`new_group`). PyTorch gives its calls no names, so they are told
apart by the kind of the call, element type and length: all members must make calls that are alike in the same order, as
with any process group. The names for what was not called for longest end, so that any number of lengths may come.
`monitored_barrier` is a method of the group, `torch.distributed.group.WORLD.monitored_barrier()`, because PyTorch's
function of that name takes groups of Gloo only.

No call sends a worker more than its share. `reduce` and `reduce_scatter` bring a sum to the worker that keeps it.
`gather`, `scatter`, `all_to_all`, `send` and `recv` are messages from one worker to another. The exceptions are
products and operations on the bits of integers: each worker that gets the result receives the tensors of all for it.
Tensors on devices are reduced there by calls that give all workers of the job the whole result. For other calls they are copied to
the host and back, because the devices of a machine have one communicator, of all its workers.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import distributed

from gradlane import _session
from gradlane._handle import Handle, begin_all, joined
from gradlane._operations import barrier
from gradlane._recent import PassingNames, RecentNames
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch import _tensors
from gradlane.torch._arrivals import meet
from gradlane.torch._futures import Completions
from gradlane.torch._reductions import Reduction, flat, form_of, reduction_of, values_of
from gradlane.torch._works import Start, Work, seconds
from gradlane.torch.ops import reduce_in_place

BACKEND = "gradlane"
"""The name for `init_process_group`."""


NAMES_MAX = 8192
"""The most names that a group of all workers keeps for its collectives, and again for its messages."""

_GROUP_NAMES_MIN = 64

_TAGS_KEPT = 16
"""Messages with tags below it keep their names."""


class ProcessGroupGradlane(distributed.ProcessGroup):
    """Workers of the job, as a process group."""

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        process_set: ProcessSet | None = None,
        timeout: float | None = None,
    ) -> None:
        """A group of these `ranks` of the job, in the order of the group; this worker has the place `rank` in it.

        Args:
            process_set: the same ranks; None if they are all workers of the job.
            timeout: seconds for a call; None takes the job's step timeout, which also ends a wait if it is shorter.
        """
        super().__init__(rank, len(ranks))
        self._rank, self._size = rank, len(ranks)
        self._ranks, self._set = tuple(ranks), process_set
        self._timeout = timeout
        # The groups of one dimension of a mesh have together as many names as the group of all workers.
        self._names = RecentNames(max(_GROUP_NAMES_MIN, NAMES_MAX * len(ranks) // max(1, _session.size())))
        self._channels: dict[str, RecentNames] = {}
        self._passing, self._messages = PassingNames(), Counter[str]()
        self._name = self._description = ""

    # What PyTorch asks of a group.

    def rank(self) -> int:
        """The rank of this worker in the group."""
        return self._rank

    def size(self) -> int:
        """The number of workers in the group."""
        return self._size

    def getBackendName(self) -> str:
        """The name for `init_process_group`."""
        return BACKEND

    def _get_backend(self, device: torch.device) -> ProcessGroupGradlane:  # type: ignore[override]
        """The group itself, on every device. PyTorch asks it for what only some backends have."""
        del device
        return self

    get_backend = _get_backend  # type: ignore[assignment]

    supports_coalescing = supports_splitting = supports_shrinking = _supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether the backend allocates tensors for its collectives."""
        del device
        return False

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name that PyTorch gave the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """The description that PyTorch gave the group."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    # Reductions.

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        """Reduces each tensor over all workers, in place."""
        op, limit = reduction_of(opts), self._limit(opts)
        return Work(list(tensors), [self._sum(tensor, op, "all_reduce", limit) for tensor in tensors])

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """The same; the engine joins and cuts messages by itself."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]
        """Reduces each tensor over all workers; its new value is that of the root alone."""
        op, limit, root = reduction_of(opts), self._limit(opts), opts.rootRank
        starts = [self._sum_to(root, tensor, tensor, op, "reduce", limit) for tensor in tensors]
        return Work(list(tensors), starts, lands=root == self._rank)

    def reduce_scatter(  # type: ignore[override]
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        """Reduces the tensors of each list, of which each worker keeps the one of its rank."""
        op, limit, starts = reduction_of(opts), self._limit(opts), []
        for output, inputs in zip(output_tensors, input_tensors, strict=True):
            self._check_count(len(inputs), "reduce_scatter")
            starts += self._scatter_sums(output, inputs, op, limit)
        return Work(list(output_tensors), starts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Reduces `input`, of which each worker keeps the part of its rank."""
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """The same for several pairs of tensors."""
        op, limit, starts = reduction_of(opts), self._limit(opts), []
        for output, whole in zip(outputs, inputs, strict=True):
            self._check_length(whole, output, "reduce_scatter")
            parts = whole.detach().reshape(-1).split(output.numel()) if output.numel() else [output] * self._size
            starts += self._scatter_sums(output, parts, op, limit)
        return Work(list(outputs), starts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # type: ignore[assignment]

    # Copies.

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]
        """Gives every worker the bits of the root's tensors, in place."""
        root, limit = opts.rootRank, self._limit(opts)
        starts = [self._copy(tensor, root, "broadcast", limit) for tensor in tensors]
        return Work(list(tensors), starts, lands=root != self._rank)

    def allgather(  # type: ignore[override]
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Gives every worker the tensors of all, in rank order; they may have different lengths."""
        starts = []
        for outputs, own in zip(output_tensors, input_tensors, strict=True):
            self._check_count(len(outputs), "all_gather")
            starts += self._gather(list(outputs), own, "all_gather", self._limit(opts))
        return Work([list(outputs) for outputs in output_tensors], starts)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Gives every worker the tensors of all, one after the other in `output`."""
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """The same for several pairs of tensors."""
        starts = []
        for output, own in zip(outputs, inputs, strict=True):
            self._check_length(output, own, "all_gather")
            place = _place(output)
            parts = place.view(-1).split(own.numel()) if own.numel() else [place] * self._size
            starts += _landing(self._gather(list(parts), own, "all_gather", self._limit(opts)), place, output)
        return Work(list(outputs), starts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]

    def gather(  # type: ignore[override]
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any
    ) -> Work:
        """Gives the root the tensors of all, in rank order."""
        starts, root, limit = [], opts.rootRank, self._limit(opts)
        for position, own in enumerate(input_tensors):
            if self._rank != root:
                starts.append(self._message(own, self._rank, root, "gather", limit))
                continue
            outputs = list(output_tensors[position])
            self._check_count(len(outputs), "gather")
            outputs[root].detach().copy_(own.detach().reshape(outputs[root].shape))
            others = [rank for rank in range(self._size) if rank != root]
            starts += [self._message(outputs[rank], rank, root, "gather", limit) for rank in others]
        return Work([list(outputs) for outputs in output_tensors], starts)

    def scatter(  # type: ignore[override]
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Work:
        """Gives each worker the root's tensor for its rank."""
        starts, root, limit = [], opts.rootRank, self._limit(opts)
        for position, output in enumerate(output_tensors):
            if self._rank != root:
                starts.append(self._message(output, root, self._rank, "scatter", limit))
                continue
            given = list(input_tensors[position])
            self._check_count(len(given), "scatter")
            output.detach().copy_(given[root].detach().reshape(output.shape))
            others = [rank for rank in range(self._size) if rank != root]
            starts += [self._message(given[rank], root, rank, "scatter", limit) for rank in others]
        return Work(list(output_tensors), starts)

    def alltoall(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Sends a tensor to each worker and receives one from each; lengths may differ."""
        self._check_count(len(output_tensors), "all_to_all")
        self._check_count(len(input_tensors), "all_to_all")
        return Work(list(output_tensors), self._exchange(output_tensors, input_tensors, self._limit(opts)))

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """The same with tensors that are cut along their first dimension, evenly unless sizes are given."""
        place, limit = _place(output), self._limit(opts)
        into, given = self._cut(place, output_split_sizes), self._cut(input.detach(), input_split_sizes)
        return Work([output], _landing(self._exchange(into, given, limit), place, output))

    all_to_all_single = alltoall_base  # type: ignore[assignment]

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> Work:
        """Sends tensors to the worker `dst` of the group, which calls `recv` with the same tag."""
        return Work(list(tensors), [self._message(t, self._rank, dst, "send", self._timeout, tag) for t in tensors], lands=False)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> Work:
        """Receives tensors from the worker `src` of the group."""
        return Work(list(tensors), [self._message(t, src, self._rank, "send", self._timeout, tag) for t in tensors])

    def barrier(self, opts: Any = None) -> Work:
        """Waits until every member has come."""
        if self._set is not None:
            token = torch.zeros(1, dtype=torch.bool)
            return Work([], [self._sum(token, reduction_of(None), "barrier", self._limit(opts))])
        barrier(f"{self._name}/barrier", timeout=self._limit(opts))
        return Work([], [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits until every member has come; an error names the members that did not.

        Args:
            timeout: None takes that of the group, or the job's step timeout.
            wait_all_ranks: has no effect, because all missing ranks are named anyway.
        Raises:
            TimeoutError: some members did not come in time. They are named by their ranks in the job. In a group of some
                workers, but more than 32, they are named only if the job's step timeout has passed.
        """
        del wait_all_ranks
        name = f"{self._name}/monitored_barrier"
        if self._set is None:
            barrier(name, timeout=seconds(timeout) or self._timeout)
        else:
            meet(name, self._set, seconds(timeout) or self._timeout)

    # What this backend does not do.

    def recv_anysource(self, *arguments: object) -> NoReturn:
        """Refused."""
        _refuse("recv from any source")

    # Parts of the above.

    def _limit(self, opts: Any) -> float | None:
        """The seconds that a call may take: of its options, or of the group; None takes the job's step timeout."""
        return seconds(getattr(opts, "timeout", None)) or self._timeout

    def _sum(self, tensor: torch.Tensor, op: Reduction, kind: str, limit: float | None) -> Start:
        key, members = self._key(f"{kind}.{op.name}", tensor), self._set
        wire, op = form_of(tensor, op)
        if op.native is None:
            return self._combination(wire, tensor, op, key, limit)
        native = op.native

        def submit(name: str) -> Handle[torch.Tensor]:
            if op.factor is not None:
                wire.mul_(op.factor)
            if members is None:
                return reduce_in_place(wire, name, native, timeout=limit)
            return _tensors.submit_in_place(wire, name, native.native, process_set=members, timeout=limit)

        return lambda: self._names.begin(key, submit, members=members).then(lambda sum: _back(sum, tensor))

    def _sum_to(
        self, receiver: int, tensor: torch.Tensor, output: torch.Tensor, op: Reduction, kind: str, limit: float | None
    ) -> Start:
        """Reduces `tensor` into `output` on the worker `receiver`; on the others nothing changes."""
        key, members = self._key(f"{kind}{receiver}.{op.name}", tensor), self._set
        is_receiver, to = receiver == self._rank, self._ranks[receiver]
        flat, op = form_of(tensor, op)
        if op.native is None:
            return self._combination_at(receiver, flat, output, op, kind, limit)
        native, wire = op.native, _tensors.in_host_memory(flat)
        if op.factor is not None:
            wire = wire * op.factor
        elif is_receiver and tensor is not output and wire.data_ptr() == tensor.data_ptr():
            wire = wire.clone()  # the sum lands on the contribution, which is the caller's

        def submit(name: str) -> Handle[torch.Tensor]:
            return _tensors.submit_in_place(
                wire, name, native.native, process_set=members, receiver=to, timeout=limit
            )

        return lambda: self._names.begin(key, submit, members=members).then(
            lambda sum: _back(sum, output) if is_receiver else output
        )

    def _scatter_sums(
        self, output: torch.Tensor, parts: Sequence[torch.Tensor], op: Reduction, limit: float | None
    ) -> list[Start]:
        return [self._sum_to(rank, part, output, op, "reduce_scatter", limit) for rank, part in enumerate(parts)]

    def _combination(
        self, own: torch.Tensor, output: torch.Tensor, op: Reduction, key: str, limit: float | None
    ) -> Start:
        """Brings the vectors of all workers to each, and combines them into `output`."""
        parts = [torch.empty_like(own, device="cpu") for _ in range(self._size)]
        starts = self._gather(parts, own, key.partition("/")[2], limit)
        return lambda: joined(begin_all(starts)).then(lambda _: _combined(parts, output, op))

    def _combination_at(
        self, receiver: int, own: torch.Tensor, output: torch.Tensor, op: Reduction, kind: str, limit: float | None
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
            to = _Copy(members, self._ranks[root], None, limit)
            return lambda: self._names.begin(key, to.submit(tensor), members=members)

        def submit(name: str) -> Handle[torch.Tensor]:
            return _tensors.submit_bits(wire, name, root, timeout=limit)

        gets = root != self._rank
        return lambda: self._names.begin(key, submit).then(lambda copied: _back(copied, tensor) if gets else tensor)

    def _message(
        self, tensor: torch.Tensor, origin: int, to: int, kind: str, limit: float | None, tag: int = 0
    ) -> Start:
        """Copies a tensor from one worker of the group to another one; this worker is one of the two."""
        if origin == to:
            raise InvalidArgumentError("a message of a worker to itself; copy the tensor")
        pair = ProcessSet({self._ranks[origin], self._ranks[to]})
        submit = _Copy(pair, self._ranks[origin], self._ranks[to], limit).submit(tensor)
        channel = f"{kind}{tag or ''}.{origin}>{to}"
        key = self._key(channel, tensor)
        kept = pair_names(_session.size())
        if not 0 <= tag < _TAGS_KEPT or kept == 0:
            # The order of messages with different tags may differ between the two workers, and there may be any number
            # of tags. So the name for such a message ends with it, and every name where there are very many pairs.
            self._messages[channel] += 1
            name = f"{key}#{self._messages[channel]}"
            return lambda: self._passing.begin(name, submit, members=pair)
        names = self._channels.get(channel)
        if names is None:
            names = self._channels[channel] = RecentNames(kept)
        recent = names
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


@dataclass(frozen=True)
class _Copy:
    """The copy of the bits of `root` to the members of a set, or to the one that is `receiver`; ranks of the job."""

    members: ProcessSet
    root: int
    receiver: int | None
    limit: float | None

    def submit(self, tensor: torch.Tensor) -> Callable[[str], Handle[torch.Tensor]]:
        """Begins the copy of a tensor under a name."""
        wire, source, _ = _tensors.bits(_tensors.in_host_memory(flat(tensor)))
        gets = _session.rank() != self.root and self.receiver in (None, _session.rank())
        return lambda name: _tensors.submit_in_place(
            wire,
            name,
            "broadcast",
            root=self.root,
            process_set=self.members,
            receiver=self.receiver,
            timeout=self.limit,
        ).then(lambda _: _back(source, tensor) if gets else tensor)


def _place(output: torch.Tensor) -> torch.Tensor:
    """`output`, or where the result is made if its memory is not contiguous."""
    plain = output.detach()
    return plain if _tensors.is_dense(plain) else torch.empty_like(plain, memory_format=torch.contiguous_format)


def _landing(starts: list[Start], place: torch.Tensor, output: torch.Tensor) -> list[Start]:
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


def _combined(parts: list[torch.Tensor], output: torch.Tensor, op: Reduction) -> torch.Tensor:
    """Combines the vectors of the workers in the order of their ranks, so that the result is the same everywhere."""
    assert op.combine is not None, "operations of the engine combine nothing here"
    return _back(functools.reduce(op.combine, parts), output)


def _refuse(call: str) -> NoReturn:
    raise UnsupportedError(
        f'{call} does not exist on the backend "{BACKEND}"; make a second group for it: '
        'torch.distributed.new_group(backend="gloo")'
    )


_READ = ("global_ranks_in_group", "group_id", "group_rank", "group_size", "process_group", "store", "timeout")
"""The options of PyTorch for a new group that are heeded here."""


def _check_options(options: Any, backend_options: object) -> None:
    """Refuses options that would have no effect."""
    given = {} if backend_options is None else {"pg_options": backend_options}
    for name in dir(options):
        value = None if name.startswith("_") or name in _READ else getattr(options, name)
        if value and not callable(value):
            given[name] = value
    if given:
        listed = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise UnsupportedError(
            f'{listed} is an option of other backends and would have no effect on "{BACKEND}"; leave it out of '
            "init_process_group and new_group"
        )


def _create(options: Any, backend_options: object = None) -> ProcessGroupGradlane:
    """Makes a group for `torch.distributed`, and joins the job if this process has not.

    A timeout other than PyTorch's default is the limit of each call of the group. The job's step timeout ends a wait for
    other workers also if this one is longer.
    """
    _check_options(options, backend_options)
    _session.join_beside(options.store)
    workers, rank, size = _session.size(), options.group_rank, options.group_size
    # The first group, of all workers, names no ranks.
    ranks = list(options.global_ranks_in_group) or list(range(size))
    if max(ranks) >= workers or not options.global_ranks_in_group and size != workers:
        raise InvalidArgumentError(
            f"torch.distributed has {max(ranks) + 1} workers or more, and the job {workers}; start both with one "
            "launcher"
        )
    if ranks[rank] != _session.rank():
        raise InvalidArgumentError(
            f"torch.distributed calls this worker rank {ranks[rank]}, and its job calls it rank {_session.rank()}; "
            "start both with one launcher, or give init_process_group the rank and world_size of gradlane"
        )
    _hide_from_dynamo()
    Completions.of_this_job()  # reports what begins from now on
    limit = getattr(options, "timeout", None)
    if limit == distributed.constants.default_pg_timeout:
        limit = None
    return ProcessGroupGradlane(rank, ranks, None if size == workers else ProcessSet(ranks), seconds(limit))


@functools.cache
def _hide_from_dynamo() -> None:
    """Keeps the compiler from tracing the group's methods, which compiled models call. Importing it takes a second."""
    for name, method in list(vars(ProcessGroupGradlane).items()):
        if inspect.isfunction(method) and name != "__init__":
            setattr(ProcessGroupGradlane, name, torch.compiler.disable(method))


def register_backend() -> None:
    """Makes `init_process_group("gradlane")` known to PyTorch; importing `gradlane.torch` does so."""
    if distributed.is_available() and BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
