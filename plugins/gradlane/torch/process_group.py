"""Gradlane as a backend of `torch.distributed`.

    import gradlane.torch
    torch.distributed.init_process_group("gradlane")      # DDP, FSDP2, DTensor and functional collectives run on it

A group has all workers of the job, or some of them (`new_group`). PyTorch gives its calls no names, so they are told
apart by the kind of the call, element type and length: all members must make calls that are alike in the same order, as
with any process group. `monitored_barrier` is a method of the group, `torch.distributed.group.WORLD.monitored_barrier()`,
because PyTorch's function of that name takes groups of Gloo only.

No call sends a worker more than its share. `reduce` and `reduce_scatter` bring a sum to the worker that keeps it.
`gather`, `scatter`, `all_to_all`, `send` and `recv` are messages from one worker to another. Tensors on devices are
reduced there by calls that give all workers of the job the whole result. For other calls they are copied to the host
and back, because the devices of a machine have one communicator, of all its workers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import distributed

from gradlane import _session
from gradlane._operations import barrier
from gradlane._reduction import Average, Max, Min, ReduceOp, Sum
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch import _tensors
from gradlane.torch._arrivals import meet
from gradlane.torch._futures import Completions
from gradlane.torch._works import Start, Work, seconds
from gradlane.torch.ops import reduce_in_place

BACKEND = "gradlane"
"""The name for `init_process_group`."""


class ProcessGroupGradlane(distributed.ProcessGroup):
    """Workers of the job, as a process group."""

    def __init__(self, rank: int, ranks: Sequence[int], process_set: ProcessSet | None = None) -> None:
        """A group of these `ranks` of the job, in the order of the group; this worker has the place `rank` in it.

        Args:
            process_set: the same ranks; None if they are all workers of the job.
        """
        super().__init__(rank, len(ranks))
        self._rank, self._size = rank, len(ranks)
        self._ranks, self._set = tuple(ranks), process_set
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
        op = _reduction(opts)
        return Work(list(tensors), [self._sum(tensor, op, "all_reduce") for tensor in tensors])

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """The same; the engine joins and cuts messages by itself."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]
        """Reduces each tensor over all workers; its new value is that of the root alone."""
        op = _reduction(opts)
        return Work(list(tensors), [self._sum_to(opts.rootRank, tensor, tensor, op, "reduce") for tensor in tensors])

    def reduce_scatter(  # type: ignore[override]
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        """Reduces the tensors of each list, of which each worker keeps the one of its rank."""
        op = _reduction(opts)
        starts = []
        for output, inputs in zip(output_tensors, input_tensors, strict=True):
            self._check_count(len(inputs), "reduce_scatter")
            starts += self._scatter_sums(output, inputs, op)
        return Work(list(output_tensors), starts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Reduces `input`, of which each worker keeps the part of its rank."""
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """The same for several pairs of tensors."""
        op = _reduction(opts)
        starts = []
        for output, whole in zip(outputs, inputs, strict=True):
            self._check_length(whole, output, "reduce_scatter")
            parts = whole.detach().reshape(-1).split(output.numel()) if output.numel() else [output] * self._size
            starts += self._scatter_sums(output, parts, op)
        return Work(list(outputs), starts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # type: ignore[assignment]

    # Copies.

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]
        """Gives every worker the bits of the root's tensors, in place."""
        root = opts.rootRank
        return Work(list(tensors), [self._copy(tensor, root, "broadcast") for tensor in tensors])

    def allgather(  # type: ignore[override]
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Gives every worker the tensors of all, in rank order; they may have different lengths."""
        starts = []
        for outputs, own in zip(output_tensors, input_tensors, strict=True):
            self._check_count(len(outputs), "all_gather")
            starts += self._gather(list(outputs), own, "all_gather")
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
            if not output.is_contiguous():
                raise InvalidArgumentError("all_gather into a tensor that is not contiguous; give a contiguous one")
            parts = output.detach().view(-1).split(own.numel()) if own.numel() else [output.detach()] * self._size
            starts += self._gather(list(parts), own, "all_gather")
        return Work(list(outputs), starts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]

    def gather(  # type: ignore[override]
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any
    ) -> Work:
        """Gives the root the tensors of all, in rank order."""
        starts, root = [], opts.rootRank
        for position, own in enumerate(input_tensors):
            if self._rank != root:
                starts.append(self._message(own, self._rank, root, "gather"))
                continue
            outputs = list(output_tensors[position])
            self._check_count(len(outputs), "gather")
            outputs[root].detach().copy_(own.detach().view(outputs[root].shape))
            others = [rank for rank in range(self._size) if rank != root]
            starts += [self._message(outputs[rank], rank, root, "gather") for rank in others]
        return Work([list(outputs) for outputs in output_tensors], starts)

    def scatter(  # type: ignore[override]
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Work:
        """Gives each worker the root's tensor for its rank."""
        starts, root = [], opts.rootRank
        for position, output in enumerate(output_tensors):
            if self._rank != root:
                starts.append(self._message(output, root, self._rank, "scatter"))
                continue
            given = list(input_tensors[position])
            self._check_count(len(given), "scatter")
            output.detach().copy_(given[root].detach().view(output.shape))
            others = [rank for rank in range(self._size) if rank != root]
            starts += [self._message(given[rank], root, rank, "scatter") for rank in others]
        return Work(list(output_tensors), starts)

    def alltoall(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Sends a tensor to each worker and receives one from each; lengths may differ."""
        self._check_count(len(output_tensors), "all_to_all")
        self._check_count(len(input_tensors), "all_to_all")
        return Work(list(output_tensors), self._exchange(output_tensors, input_tensors))

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """The same with tensors that are cut along their first dimension, evenly unless sizes are given."""
        if not output.is_contiguous():
            raise InvalidArgumentError("all_to_all into a tensor that is not contiguous; give a contiguous one")
        into = self._cut(output.detach(), output_split_sizes)
        return Work([output], self._exchange(into, self._cut(input.detach(), input_split_sizes)))

    all_to_all_single = alltoall_base  # type: ignore[assignment]

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> Work:
        """Sends tensors to the worker `dst` of the group, which calls `recv` with the same tag."""
        return Work(list(tensors), [self._message(tensor, self._rank, dst, f"send{tag}") for tensor in tensors])

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> Work:
        """Receives tensors from the worker `src` of the group."""
        return Work(list(tensors), [self._message(tensor, src, self._rank, f"send{tag}") for tensor in tensors])

    def barrier(self, opts: Any = None) -> Work:
        """Waits until every member has come."""
        if self._set is not None:
            return Work([], [self._sum(torch.zeros(1, dtype=torch.uint8), Max, "barrier")])
        barrier(f"{self._name}/barrier", timeout=seconds(getattr(opts, "timeout", None)))
        return Work([], [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits until every member has come; an error names the members that did not.

        Args:
            timeout: None takes the job's step timeout.
            wait_all_ranks: has no effect, because all missing ranks are named anyway.
        Raises:
            TimeoutError: some members did not come in time. They are named by their ranks in the job. In a group of some
                workers, but more than 32, they are named only if the job's step timeout has passed.
        """
        del wait_all_ranks
        name = f"{self._name}/monitored_barrier"
        if self._set is None:
            barrier(name, timeout=seconds(timeout))
        else:
            meet(name, self._set, seconds(timeout))

    # What this backend does not do.

    def recv_anysource(self, *arguments: object) -> NoReturn:
        """Refused."""
        _refuse("recv from any source")

    # Parts of the above.

    def _sum(self, tensor: torch.Tensor, op: ReduceOp, kind: str) -> Start:
        _check_reducible(tensor)
        name, flat = self._key(f"{kind}.{op.name}", tensor), _flat(tensor)
        if self._set is None:
            return lambda: reduce_in_place(flat, name, op).then(lambda reduced: _back(reduced, tensor))
        wire, members = _tensors.in_host_memory(flat), self._set
        return lambda: _tensors.submit_in_place(wire, name, op.native, process_set=members).then(
            lambda reduced: _back(reduced, tensor)
        )

    def _sum_to(self, receiver: int, tensor: torch.Tensor, output: torch.Tensor, op: ReduceOp, kind: str) -> Start:
        """Reduces `tensor` into `output` on the worker `receiver`; on the others nothing changes."""
        _check_reducible(tensor)
        name, flat, members = self._key(f"{kind}{receiver}.{op.name}", tensor), _flat(tensor), self._set
        is_receiver, to = receiver == self._rank, self._ranks[receiver]
        # The sum lands on the contribution, which is the caller's.
        wire = _tensors.in_host_memory(flat)
        if is_receiver and tensor is not output and wire.data_ptr() == flat.data_ptr():
            wire = wire.clone()
        return lambda: _tensors.submit_in_place(wire, name, op.native, process_set=members, receiver=to).then(
            lambda reduced: _back(reduced, output) if is_receiver else output
        )

    def _scatter_sums(self, output: torch.Tensor, parts: Sequence[torch.Tensor], op: ReduceOp) -> list[Start]:
        return [self._sum_to(rank, part, output, op, "reduce_scatter") for rank, part in enumerate(parts)]

    def _copy(self, tensor: torch.Tensor, root: int, kind: str) -> Start:
        name, flat = self._key(f"{kind}.{root}", tensor), _flat(tensor)
        if self._set is None:
            return lambda: _tensors.submit_bits(flat, name, root).then(lambda copied: _back(copied, tensor))
        return self._copy_among(self._set, tensor, self._ranks[root], name, receiver=None)

    def _message(self, tensor: torch.Tensor, origin: int, to: int, kind: str) -> Start:
        """Copies a tensor from one worker of the group to another one; this worker is one of the two."""
        if origin == to:
            raise InvalidArgumentError("a message of a worker to itself; copy the tensor")
        pair = ProcessSet({self._ranks[origin], self._ranks[to]})
        name = self._key(f"{kind}.{origin}>{to}", tensor)
        return self._copy_among(pair, tensor, self._ranks[origin], name, receiver=self._ranks[to])

    def _copy_among(
        self, members: ProcessSet, tensor: torch.Tensor, root: int, name: str, *, receiver: int | None
    ) -> Start:
        """Copies the bits of `root`, a rank of the job, to the members, or to one of them."""
        wire, source, _ = _tensors.bits(_tensors.in_host_memory(_flat(tensor)))
        gets = _session.rank() != root and receiver in (None, _session.rank())
        return lambda: _tensors.submit_in_place(
            wire, name, "broadcast", root=root, process_set=members, receiver=receiver
        ).then(lambda _: _back(source, tensor) if gets else tensor)

    def _exchange(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[Start]:
        starts = []
        for rank, (output, own) in enumerate(zip(outputs, inputs, strict=True)):
            if rank == self._rank:
                output.detach().copy_(own.detach().view(output.shape))
                continue
            starts.append(self._message(own, self._rank, rank, "all_to_all"))
            starts.append(self._message(output, rank, self._rank, "all_to_all"))
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

    def _gather(self, outputs: list[torch.Tensor], own: torch.Tensor, kind: str) -> list[Start]:
        outputs[self._rank].detach().copy_(own.detach().view(outputs[self._rank].shape))
        return [self._copy(output, root, kind) for root, output in enumerate(outputs)]

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


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor as a vector, over its memory where that is possible: names know lengths, not shapes."""
    values = tensor.detach()
    return values.view(-1) if values.is_contiguous() else values.reshape(-1)


def _check_reducible(tensor: torch.Tensor) -> None:
    if tensor.dtype == torch.bool:
        raise UnsupportedError("a reduction of bool; reduce tensor.to(torch.uint8) with MAX or MIN")


def _back(reduced: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if reduced.data_ptr() != tensor.data_ptr():
        _tensors.land(reduced.view(tensor.shape), tensor.detach())
    return tensor


def _reduction(opts: Any) -> ReduceOp:
    """The engine's operation for that of a call."""
    if opts is None:
        return Sum
    # The option stands on the left, because only its class knows how to compare.
    for theirs, ours in (
        (distributed.ReduceOp.SUM, Sum),
        (distributed.ReduceOp.AVG, Average),
        (distributed.ReduceOp.MIN, Min),
        (distributed.ReduceOp.MAX, Max),
    ):
        if opts.reduceOp == theirs:
            return ours
    raise UnsupportedError(
        f"the reduction {opts.reduceOp} does not exist here; SUM, AVG, MIN and MAX do. For others, make a second "
        'group: torch.distributed.new_group(backend="gloo")'
    )


def _refuse(call: str) -> NoReturn:
    raise UnsupportedError(
        f'{call} does not exist on the backend "{BACKEND}"; make a second group for it: '
        'torch.distributed.new_group(backend="gloo")'
    )


def _create(options: Any, backend_options: object = None) -> ProcessGroupGradlane:
    """Makes a group for `torch.distributed`, and joins the job if this process has not."""
    del backend_options
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
    return ProcessGroupGradlane(rank, ranks, None if size == workers else ProcessSet(ranks))


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
