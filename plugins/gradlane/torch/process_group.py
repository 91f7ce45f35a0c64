"""Gradlane as a backend of `torch.distributed`.

    import gradlane.torch
    torch.distributed.init_process_group("gradlane")      # DDP, FSDP2, DTensor and functional collectives run on it

A group spans all workers of the job. PyTorch gives its calls no names, so they are told apart by the kind of the call,
element type and length: all workers must make calls that are alike in the same order, as with any process group.

What a call costs beyond its minimum: `reduce_scatter` and `reduce` bring the whole sum to every worker and keep a part
of it, `gather` and `scatter` bring everything to every worker. Calls that send from one worker to another are refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import distributed

from gradlane import _session
from gradlane._handle import Handle
from gradlane._operations import barrier
from gradlane._reduction import Average, Max, Min, ReduceOp, Sum
from gradlane.errors import InvalidArgumentError, UnsupportedError
from gradlane.torch import _tensors
from gradlane.torch._futures import Completions
from gradlane.torch.ops import reduce_in_place

BACKEND = "gradlane"
"""The name for `init_process_group`."""


class ProcessGroupGradlane(distributed.ProcessGroup):
    """All workers of the job, as a process group."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._rank, self._size = rank, size
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

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> _Work:  # type: ignore[override]
        """Reduces each tensor over all workers, in place."""
        op = _reduction(opts)
        return _Work(list(tensors), [self._sum(tensor, op, "all_reduce") for tensor in tensors])

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> _Work:
        """The same; the engine joins and cuts messages by itself."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> _Work:  # type: ignore[override]
        """Reduces each tensor over all workers; its new value is that of the root alone."""
        op, is_root = _reduction(opts), opts.rootRank == self._rank
        starts = []
        for tensor in tensors:
            whole = tensor if is_root else tensor.detach().clone()
            starts.append(self._sum(whole, op, "reduce"))
        return _Work(list(tensors), starts)

    def reduce_scatter(  # type: ignore[override]
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> _Work:
        """Reduces the tensors of each list, of which each worker keeps the one of its rank."""
        op = _reduction(opts)
        starts = []
        for output, inputs in zip(output_tensors, input_tensors, strict=True):
            self._check_count(len(inputs), "reduce_scatter")
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in inputs])
            begin = sum(tensor.numel() for tensor in inputs[: self._rank])
            starts.append(self._part_of_sum(output, flat, begin, op))
        return _Work(list(output_tensors), starts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        """Reduces `input`, of which each worker keeps the part of its rank."""
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> _Work:
        """The same for several pairs of tensors."""
        op = _reduction(opts)
        starts = []
        for output, whole in zip(outputs, inputs, strict=True):
            self._check_length(whole, output, "reduce_scatter")
            flat = whole.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
            starts.append(self._part_of_sum(output, flat, self._rank * output.numel(), op))
        return _Work(list(outputs), starts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # type: ignore[assignment]

    # Copies.

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> _Work:  # type: ignore[override]
        """Gives every worker the bits of the root's tensors, in place."""
        root = opts.rootRank
        return _Work(list(tensors), [self._copy(tensor, root, "broadcast") for tensor in tensors])

    def allgather(  # type: ignore[override]
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> _Work:
        """Gives every worker the tensors of all, in rank order; they may have different lengths."""
        starts = []
        for outputs, own in zip(output_tensors, input_tensors, strict=True):
            self._check_count(len(outputs), "all_gather")
            starts += self._gather(list(outputs), own, "all_gather")
        return _Work([list(outputs) for outputs in output_tensors], starts)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        """Gives every worker the tensors of all, one after the other in `output`."""
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> _Work:
        """The same for several pairs of tensors."""
        starts = []
        for output, own in zip(outputs, inputs, strict=True):
            self._check_length(output, own, "all_gather")
            if not output.is_contiguous():
                raise InvalidArgumentError("all_gather into a tensor that is not contiguous; give a contiguous one")
            parts = output.detach().view(-1).split(own.numel()) if own.numel() else [output.detach()] * self._size
            starts += self._gather(list(parts), own, "all_gather")
        return _Work(list(outputs), starts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]

    def gather(  # type: ignore[override]
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any
    ) -> _Work:
        """Gives the root the tensors of all, in rank order."""
        outputs = list(output_tensors) or [[torch.empty_like(own) for _ in range(self._size)] for own in input_tensors]
        return self.allgather(outputs, input_tensors)

    def scatter(  # type: ignore[override]
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> _Work:
        """Gives each worker the root's tensor for its rank."""
        starts = []
        for position, output in enumerate(output_tensors):
            given = list(input_tensors[position]) if opts.rootRank == self._rank else None
            parts = [output if rank == self._rank else torch.empty_like(output) for rank in range(self._size)]
            if given is not None:
                self._check_count(len(given), "scatter")
                for part, own in zip(parts, given, strict=True):
                    part.detach().copy_(own)
            starts += [self._copy(part, opts.rootRank, f"scatter{rank}") for rank, part in enumerate(parts)]
        return _Work(list(output_tensors), starts)

    def barrier(self, opts: Any = None) -> _Work:
        """Waits until every worker has come."""
        barrier(f"{self._name}/barrier", timeout=_seconds(getattr(opts, "timeout", None)))
        return _Work([], [])

    # What this backend does not do.

    def send(self, *arguments: object) -> NoReturn:
        """Refused."""
        _refuse("send")

    def recv(self, *arguments: object) -> NoReturn:
        """Refused."""
        _refuse("recv")

    def recv_anysource(self, *arguments: object) -> NoReturn:
        """Refused."""
        _refuse("recv")

    def alltoall(self, *arguments: object) -> NoReturn:
        """Refused."""
        _refuse("all_to_all")

    def alltoall_base(self, *arguments: object) -> NoReturn:
        """Refused."""
        _refuse("all_to_all")

    all_to_all_single = alltoall_base  # type: ignore[assignment]

    # Parts of the above.

    def _sum(self, tensor: torch.Tensor, op: ReduceOp, kind: str) -> _Start:
        if tensor.dtype == torch.bool:
            raise UnsupportedError("a reduction of bool; reduce tensor.to(torch.uint8) with MAX or MIN")
        name, flat = self._key(f"{kind}.{op.name}", tensor), _flat(tensor)
        return lambda: reduce_in_place(flat, name, op).then(lambda reduced: _back(reduced, tensor))

    def _part_of_sum(self, output: torch.Tensor, flat: torch.Tensor, begin: int, op: ReduceOp) -> _Start:
        """Reduces `flat`, which is this group's own, and keeps what belongs into `output`."""
        name = self._key(f"reduce_scatter.{op.name}", flat)
        part = flat[begin : begin + output.numel()]
        return lambda: reduce_in_place(flat, name, op).then(
            lambda _: _tensors.land(part.view(output.shape), output.detach())
        )

    def _copy(self, tensor: torch.Tensor, root: int, kind: str) -> _Start:
        name, flat = self._key(f"{kind}.{root}", tensor), _flat(tensor)
        return lambda: _tensors.submit_bits(flat, name, root).then(lambda copied: _back(copied, tensor))

    def _gather(self, outputs: list[torch.Tensor], own: torch.Tensor, kind: str) -> list[_Start]:
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


_Start = Callable[[], Handle[Any]]
"""Begins an operation."""


class _Work(distributed.Work):
    """The operations of one call."""

    def __init__(self, result: Any, starts: Sequence[_Start]) -> None:
        super().__init__()
        self._handles = [start() for start in starts]
        self._result = result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Makes the current streams wait for the results; on the CPU it waits itself.

        Raises the error of the first operation that failed, when all have ended.
        """
        first: BaseException | None = None
        for handle in self._handles:
            try:
                handle.wait(_seconds(timeout))
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
        return True

    def is_completed(self) -> bool:
        """Whether all operations have ended, well or not."""
        return all(handle.poll() for handle in self._handles)

    def is_success(self) -> bool:
        """Whether all operations have ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error of the first operation that failed, if one has."""
        return next((error for handle in self._handles if (error := handle.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        """The tensors of the call."""
        return self._result  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """The same as `wait()`."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors of the call."""
        completions, device, result = Completions.of_this_job(), _device(self._result), self._result
        futures = [completions.of(handle, device) for handle in self._handles]

        def all_landed(ended: torch.futures.Future[list[torch.futures.Future[Any]]]) -> Any:
            for future in ended.value():
                future.value()  # raises its error
            return result

        return torch.futures.collect_all(futures).then(all_landed)


def _device(result: Any) -> torch.device:
    """The device of the tensors of a call."""
    while isinstance(result, list) and result:
        result = result[0]
    return result.device if isinstance(result, torch.Tensor) else torch.device("cpu")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor as a vector, over its memory where that is possible: names know lengths, not shapes."""
    values = tensor.detach()
    return values.view(-1) if values.is_contiguous() else values.reshape(-1)


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


def _seconds(timeout: timedelta | None) -> float | None:
    """A time limit of PyTorch; None, and none or a negative one, leave it to the job's step timeout."""
    if timeout is None or timeout.total_seconds() <= 0:
        return None
    return timeout.total_seconds()


def _create(store: object, rank: int, size: int, timeout: timedelta) -> ProcessGroupGradlane:
    """Makes a group for `torch.distributed`, and joins the job if this process has not."""
    del store, timeout
    _session.init()
    workers = _session.size()
    if size != workers:
        raise UnsupportedError(
            f"a group of {size} of {workers} workers; groups of this backend span all of them. For a part of them, "
            'give backend="gloo"'
        )
    if rank != _session.rank():
        raise InvalidArgumentError(
            f"torch.distributed calls this worker rank {rank}, and its job calls it rank {_session.rank()}; start both "
            "with one launcher, or give init_process_group the rank and world_size of gradlane"
        )
    _hide_from_dynamo()
    Completions.of_this_job()  # reports what begins from now on
    return ProcessGroupGradlane(rank, size)


@functools.cache
def _hide_from_dynamo() -> None:
    """Keeps the compiler from tracing the group's methods, which compiled models call. Importing it takes a second."""
    for name, method in list(vars(ProcessGroupGradlane).items()):
        if inspect.isfunction(method) and name != "__init__":
            setattr(ProcessGroupGradlane, name, torch.compiler.disable(method))


def register_backend() -> None:
    """Makes `init_process_group("gradlane")` known to PyTorch; importing `gradlane.torch` does so."""
    if distributed.is_available() and BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])
