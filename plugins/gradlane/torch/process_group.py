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

With `pg_options=gl.ProcessGroupOptions(compression=gl.Compression.int8)`, also of `new_group`, sums and means of large
floating-point tensors in `all_reduce` travel with a codec. All other calls send tensors as they are.

A group keeps its ranks. So its calls raise FailedPreconditionError when an elastic job (`gradlane.elastic`) has formed
again, until the group is *reconfigured*, by the functions of PyTorch that are for that:

    handles = gl.allgather_object(torch.distributed._get_reconfigure_handle())
    torch.distributed._reconfigure(uuid=gl.elastic.report().steps, handles=handles).wait()

It has the workers of these handles from then on, in their order; a loss can be followed in the same way. Make the
wrappers of PyTorch (`DistributedDataParallel`, FSDP) again behind it if the group has got workers; if it has only lost
some, `DistributedDataParallel` goes on. Ranks of a group that `new_group` makes are those in the reconfigured group.
With `init_process_group("gradlane", enable_reconfigure=True)` the group makes no call before it is reconfigured, so the
ranks that PyTorch was given need not be those of the job.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import distributed

from gradlane import _session
from gradlane._operations import barrier
from gradlane._recent import PassingNames, RecentNames
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch._arrivals import meet
from gradlane.torch._futures import Completions
from gradlane.torch._group_options import AS_THEY_ARE, BACKEND, ProcessGroupOptions, own_options
from gradlane.torch._group_transfers import NAMES_MAX, Transfers, landing, pair_names, place_of
from gradlane.torch._reconfigure import Reconfigurable
from gradlane.torch._reductions import op_of
from gradlane.torch._works import Work, seconds

_GROUP_NAMES_MIN = 64

_codecs: dict[tuple[int, str], list[str]] = {}
"""By the generation of a session and the name of a group, the codecs that its groups of this name have had."""


class ProcessGroupGradlane(Reconfigurable, distributed.ProcessGroup):
    """Workers of the job, as a process group."""

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        process_set: ProcessSet | None = None,
        timeout: float | None = None,
        *,
        options: ProcessGroupOptions = AS_THEY_ARE,
        scope: str = "",
        is_complete: bool = True,
    ) -> None:
        """A group of these `ranks` of the job, in the order of the group; this worker has the place `rank` in it.

        Args:
            process_set: the same ranks; None if they are all workers of the job.
            timeout: seconds for a call; None takes the job's step timeout, which also ends a wait if it is shorter.
            options: what travels with which codec.
            scope: put before its name in the job.
            is_complete: whether it makes calls. If not, its members are not known before `reconfigure`.
        """
        super().__init__(rank, len(ranks))
        self._rank, self._size = rank, len(ranks)
        self._ranks, self._set = tuple(ranks), process_set
        self._timeout, self._options, self._is_complete = timeout, options, is_complete
        self._generation = _session.generation()
        # The groups of one dimension of a mesh have together as many names as the group of all workers.
        self._names = RecentNames(max(_GROUP_NAMES_MIN, NAMES_MAX * len(ranks) // max(1, _session.first_size())))
        self._channels: dict[str, RecentNames] = {}
        self._passing, self._messages = PassingNames(), Counter[str]()
        self._scope = self._first_name = self._name = scope
        self._group_name = self._description = ""

    # What PyTorch asks of a group.

    def rank(self) -> int:
        """The rank of this worker in the group."""
        return self._rank

    def size(self) -> int:
        """The number of workers in the group."""
        return self._size

    # What C++ code calls, such as the reducer of DDP.
    getRank, getSize = rank, size

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
        return self._group_name

    def _set_group_name(self, name: str) -> None:
        self._group_name = name
        # A name in the job has one codec. A later group, after `destroy_process_group`, may have the same name and another codec.
        # All workers make groups in one order, so those with different codecs for one group find each other, and are told.
        codecs = _codecs.setdefault((_session.generation(), self._scope + name), [])
        if self._options.compression.codec not in codecs:
            codecs.append(self._options.compression.codec)
        number = codecs.index(self._options.compression.codec)
        self._first_name = self._name = f"{self._scope}{name}~{number}" if number else self._scope + name

    @property
    def group_desc(self) -> str:
        """The description that PyTorch gave the group."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    # Reductions.

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        """Reduces each tensor over all workers, in place."""
        op, limit = op_of(opts), self._limit(opts)
        codecs = [self._options.codec_of(tensor, op) for tensor in tensors]
        starts = [self._sum(one, op, "all_reduce", limit, codec) for one, codec in zip(tensors, codecs, strict=True)]
        return Work(list(tensors), starts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """The same; the engine joins and cuts messages by itself."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]
        """Reduces each tensor over all workers; its new value is that of the root alone."""
        op, limit, root = op_of(opts), self._limit(opts), opts.rootRank
        starts = [self._sum_to(root, tensor, tensor, op, "reduce", limit) for tensor in tensors]
        return Work(list(tensors), starts, lands=root == self._rank)

    def reduce_scatter(  # type: ignore[override]
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        """Reduces the tensors of each list, of which each worker keeps the one of its rank."""
        op, limit, starts = op_of(opts), self._limit(opts), []
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
        op, limit, starts = op_of(opts), self._limit(opts), []
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
            place = place_of(output)
            parts = place.view(-1).split(own.numel()) if own.numel() else [place] * self._size
            starts += landing(self._gather(list(parts), own, "all_gather", self._limit(opts)), place, output)
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
        place, limit = place_of(output), self._limit(opts)
        into, given = self._cut(place, output_split_sizes), self._cut(input.detach(), input_split_sizes)
        return Work([output], landing(self._exchange(into, given, limit), place, output))

    all_to_all_single = alltoall_base  # type: ignore[assignment]

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> Work:
        """Sends tensors to the worker `dst` of the group, which calls `recv` with the same tag."""
        starts = [self._message(tensor, self._rank, dst, "send", self._timeout, tag) for tensor in tensors]
        return Work(list(tensors), starts, lands=False)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> Work:
        """Receives tensors from the worker `src` of the group."""
        return Work(list(tensors), [self._message(t, src, self._rank, "send", self._timeout, tag) for t in tensors])

    def barrier(self, opts: Any = None) -> Work:
        """Waits until every member has come."""
        self._refuse_other_formation()
        if self._set is not None:
            token = torch.zeros(1, dtype=torch.bool)
            return Work([], [self._sum(token, op_of(None), "barrier", self._limit(opts))])
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
        self._refuse_other_formation()
        name = f"{self._name}/monitored_barrier"
        if self._set is None:
            barrier(name, timeout=seconds(timeout) or self._timeout)
        else:
            meet(name, self._set, seconds(timeout) or self._timeout)

    # What this backend does not do.

    def recv_anysource(self, *arguments: object) -> NoReturn:
        """Refused."""
        _refuse("recv from any source")

    def _limit(self, opts: Any) -> float | None:
        """The seconds that a call may take: of its options, or of the group; None takes the job's step timeout."""
        self._refuse_other_formation()
        return seconds(getattr(opts, "timeout", None)) or self._timeout

    def _channel(self, channel: str) -> RecentNames:
        names = self._channels.get(channel)
        if names is None:
            names = self._channels[channel] = RecentNames(pair_names(_session.first_size()))
        return names


def _refuse(call: str) -> NoReturn:
    raise UnsupportedError(
        f'{call} does not exist on the backend "{BACKEND}"; make a second group for it: '
        'torch.distributed.new_group(backend="gloo")'
    )


def _create(options: Any, backend_options: object = None) -> ProcessGroupGradlane:
    """Makes a group for `torch.distributed`, and joins the job if this process has not.

    A timeout other than PyTorch's default is the limit of each call of the group. The job's step timeout ends a wait for
    other workers also if this one is longer.
    """
    own = own_options(options, backend_options)
    _session.join_beside(options.store)
    workers, rank, size = _session.first_size(), options.group_rank, options.group_size
    # The first group, of all workers, names no ranks.
    ranks = list(options.global_ranks_in_group) or list(range(size))
    limit = getattr(options, "timeout", None)
    if limit == distributed.constants.default_pg_timeout:
        limit = None
    if getattr(options, "enable_reconfigure", False):
        _hide_from_dynamo()
        return ProcessGroupGradlane(rank, ranks, None, seconds(limit), options=own, is_complete=False)
    scope, whole = "", distributed.group.WORLD
    if options.global_ranks_in_group and isinstance(whole, ProcessGroupGradlane) and whole.was_reconfigured:
        whole._refuse_other_formation()
        # Ranks of PyTorch are those in the group of all workers, which are others in the job since it was reconfigured.
        ranks, scope = [whole._ranks[place] for place in ranks], f"{whole._name}/"
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
    members = None if size == workers else ProcessSet(ranks)
    return ProcessGroupGradlane(rank, ranks, members, seconds(limit), options=own, scope=scope)


@functools.cache
def _hide_from_dynamo() -> None:
    """Keeps the compiler from tracing the group's methods, which compiled models call. Importing it takes a second."""
    for kind in (ProcessGroupGradlane, Reconfigurable, Transfers):
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and name != "__init__":
                setattr(kind, name, torch.compiler.disable(method))


def register_backend() -> None:
    """Makes `init_process_group("gradlane")` known to PyTorch; importing `gradlane.torch` does so."""
    if distributed.is_available() and BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
