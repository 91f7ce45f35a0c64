"""The native half: sessions, handles, embedded servers, launch detection.

Nothing here is public: `gradlane` and its framework modules are the interface. Blocking calls release the GIL. Failures
arrive as the classes of `gradlane.errors`. Times are in seconds; a timeout of None means the job's setting.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, Protocol, Self, TypedDict, final

__all__ = [
    "Batch",
    "Embedded",
    "Handle",
    "Rows",
    "SavedCheckpoint",
    "Session",
    "Stacks",
    "__version__",
    "answer_feedback",
    "cli_main",
    "codec_of",
    "config_report",
    "copy_seconds",
    "count_data_wait",
    "detect_launch",
    "engine_table",
    "error_table",
    "export_checkpoint",
    "find_join",
    "load_checkpoint",
    "metrics_table",
    "names_table",
    "operation_error",
    "read_join",
    "save_checkpoint",
    "serve",
    "set_answer_feedback",
    "step_timeout",
    "table_text",
    "unwrap_join",
    "use_rows",
    "wait_any",
    "wrap_join",
]

__version__: str

class _Set(Protocol):
    @property
    def ranks(self) -> tuple[int, ...]: ...

class _Reduction(Protocol):
    """What is read of a `gradlane._reduction.Reduction`, which says what the fields mean."""

    @property
    def op(self) -> str: ...
    @property
    def root(self) -> int: ...
    @property
    def weight(self) -> float: ...
    @property
    def priority(self) -> int: ...
    @property
    def codec(self) -> str: ...
    @property
    def process_set(self) -> _Set | None: ...
    @property
    def receiver(self) -> int | None: ...
    @property
    def timeout(self) -> float | None: ...

class _Alone(TypedDict):
    way: Literal["alone"]

class _Join(TypedDict):
    way: Literal["join"]
    join: str

class _Read(TypedDict):
    way: Literal["read"]
    path: Path

class _Find(TypedDict):
    way: Literal["find"]
    job: str

class _Embed(TypedDict):
    way: Literal["embed"]
    bind: str
    workers: int
    servers: int
    job: str
    coordinator_only: bool

_Entrance = _Alone | _Join | _Read | _Find | _Embed

class _Launch(TypedDict):
    source: Literal["gradlane", "dmlc", "torchrun", "tf_config", "mpi", "slurm", "single"]
    rank: int | None
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    num_nodes: int
    servers: int
    join_timeout: float
    compression: tuple[str, int, bool]
    """The codec where a call names none, the least bytes of a tensor that travels with a codec chosen for many, and whether
    elements that a codec does not encode may travel unchanged.
    """
    entrance: _Entrance | BaseException

class _ErrorRow(TypedDict):
    variant: str
    exception: str
    bases: list[str]
    code: str
    retryable: bool
    doc: str
    fields: list[tuple[str, str]]

class _Names(TypedDict):
    dtypes: dict[str, int]
    ops: list[str]
    accesses: list[str]
    codecs: list[str]

class _MetricRow(TypedDict):
    scope: Literal["worker", "server", "coordinator", "exporter"]
    name: str
    labels: list[str]
    kind: Literal["counter", "gauge", "histogram"]
    unit: Literal["bytes", "nanoseconds"] | None
    help: str

_Checkpointed = tuple[int, str, int, int, int, list[tuple[int, int]], str]
"""The number, the directory, the tensors, the bytes, the files, the steps of the clocks by key, and the notes."""

@final
class Stacks:
    """Brings the stacks of Python's threads into the dumps of a session's flight recorder, and dumps all members at a signal."""

    @staticmethod
    def of(settings: dict[str, str] | None, session: Session | None, embedded: list[Embedded]) -> Stacks | None:
        """`settings` are those given for the job that this process is in or joins. None if there is nothing to do: the session records
        nothing, and a signal is to dump nothing."""
    @property
    def requests(self) -> int:
        """The file descriptor with a byte `?` for each request, and another byte after `close`."""
    @property
    def signals(self) -> int | None:
        """The file descriptor to which a signal's handler writes; None if a signal is to dump nothing."""
    def answer(self, text: bytes) -> None:
        """Answers a request."""
    @staticmethod
    def warn(why: str) -> None:
        """Writes to the log that SIGUSR1 dumps nothing, and why."""
    def close(self) -> None:
        """Ends both; the handler must not write any more."""

@final
class Session:
    """This process' membership in a job."""

    @staticmethod
    def join(
        join: str,
        *,
        rank: int | None,
        size: int,
        servers: int,
        local_rank: int,
        local_size: int,
        node_rank: int,
        num_nodes: int,
        settings: dict[str, str],
        timeout: float,
        software: dict[str, str],
        file: Path | None = None,
        job: str | None = None,
        embedded: Embedded | None = None,
    ) -> Session:
        """Joins the job that `join` names and waits until it has formed.

        Args:
            file, job: the file, or the job of this user's state directory, where `join` was found. If its coordinator
                does not answer, a newer one is looked for there.
            software: versions of what this process runs, for the report of the job.
            embedded: the coordinator in this process, whose exporter shows this worker too.
        """
    @staticmethod
    def local(settings: dict[str, str]) -> Session:
        """A job of one: no server, and every reduction is a copy."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first_size(self) -> int:
        """How many workers the job began with."""
    @property
    def ranks(self) -> list[int]:
        """The ranks of the workers that the job has, in their order."""
    @property
    def workers_key(self) -> bytes:
        """The key that only the coordinator and the workers of the job have."""
    def declare(
        self,
        tensors: list[tuple[str, str, tuple[int, ...]]],
        fuse: bool,
        timeout: float | None,
        codec: str = "none",
    ) -> None:
        """Fixes dtype, shape and codec of names ahead of their first use; with `fuse`, small ones may share a part.

        `codec` is that of all, or has a line for each.
        """
    def undeclare(self, names: list[str], timeout: float | None) -> None:
        """Says that this worker uses these names no more."""
    def submit(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        source: int,
        destination: int,
        reduction: _Reduction,
        owner: object,
        waits: bool = False,
        device: int | None = None,
        streams: tuple[int | None, int | None] = ...,
    ) -> Handle:
        """Starts a reduction from the memory at `source` into that at `destination`; the two may be equal.

        `owner` is kept alive until the memory is no longer used. With `waits` the caller waits next, and this thread
        does a part of the work, but only for a moment. The memory is on `device`, or on the host if that is None.
        `streams` are driver handles of the streams whose work so far must end before the source and the destination
        are used.
        """
    def submit_all(
        self,
        batch: Batch,
        sources: list[int],
        destinations: list[int] | None,
        reduction: _Reduction,
        owner: object,
        waits: bool = False,
        device: int | None = None,
        streams: list[int | None] = ...,
    ) -> Handle:
        """Starts the reduction of all tensors of a batch, from and into the memory at these addresses, in its order.

        Without `destinations` it is in place. The first tensor has the priority of `reduction`, each further one has
        one less than the one before. The codec is that of the batch, and all workers take part. `streams` are those of
        the sources, followed by those of the destinations if there are any; or none. The other arguments are as for
        `submit`.
        """
    def access(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        address: int,
        into: int | None,
        access: str,
        priority: int,
        timeout: float | None,
        owner: object,
        waits: bool = False,
        device: int | None = None,
        streams: tuple[int | None, int | None] = ...,
        kind: tuple[str | None, str | None, str | None, int] = ...,
    ) -> Handle:
        """Starts a use of a parameter: `access` is one of the names in `names_table()`.

        At `address` is the value or the change, or there is the memory for the value. `into` is the address of the memory
        for the value of a push_pull that is not in place. `kind` is its rule, its mode, the name of its clock, and where that
        stands. The other arguments are as for `submit`.
        """
    def tick(
        self, clock: tuple[str, str], round: tuple[int, int], how: tuple[bool, bool, float | None]
    ) -> tuple[int, int, int, str]:
        """Finishes a round, given with its samples, of a clock, given with its mode. `how`: whether it waits until this worker may begin its next one,
        whether this worker leaves the clock instead, and the timeout.

        Returns the round, the global step, how many rounds the slowest worker is behind, and the fate of the round.
        """
    def barrier(self, name: str, timeout: float | None) -> None: ...
    def begin_step(self) -> tuple[Literal["begun", "left", "forms again"], tuple[int, list[int]] | None]:
        """Begins a step of the training.

        Returns what this worker does and, if the workers may be others than in the step before, the number of that step
        and their ranks. `left`: it is in the job no more. `forms again`: the job takes in other workers, no step has begun,
        and `join_again` comes next; then there are always the number of steps that were done and the ranks of the workers
        that go on, as they were until now.
        """
    def join_again(self) -> Session:
        """Leaves this session, after `forms again`, and returns that of this process in the job as it forms again.

        Blocks until the job has formed, at most for `reform_timeout` and what joining takes. Ranks are given anew.
        """
    @property
    def times_formed(self) -> int:
        """How often the job had formed before it formed with this session; 0 for the first time."""
    @property
    def local_place(self) -> tuple[int, int, int, int]:
        """Local rank, local size, node rank and number of nodes, as the hosts of the workers say."""
    def end_steps(self) -> None:
        """The loop over the steps has ended, so that no boundary waits for this worker."""
    @property
    def may_leave(self) -> bool:
        """Whether the others go on if this worker leaves."""
    def ask_to_leave(self) -> None:
        """Asks to leave the job at the next boundary between two steps."""
    def store_put(
        self, key: str, value: bytes, expected: bytes | None = None, timeout: float | None = None
    ) -> tuple[bool, bytes | None]:
        """Gives a key of the job's store a value, if it has the `expected` one, or any if that is None.

        Returns whether it did, and if not the present value; None if the key is absent, which counts as empty.
        """
    def store_add(self, key: str, amount: int, timeout: float | None) -> int:
        """Adds to a number, which the store keeps as decimal digits and which is 0 at first; returns the sum."""
    def store_append(self, key: str, value: bytes, timeout: float | None) -> None:
        """Puts bytes behind a value, which is empty at first."""
    def store_get(self, key: str, waits: bool, timeout: float | None) -> bytes | None:
        """The value of a key. If it is absent: None, or with `waits` an error after `timeout`."""
    def store_delete(self, key: str, is_prefix: bool, timeout: float | None) -> int:
        """Removes a key, or all keys that begin with it; returns how many there were."""
    def store_keys(self, prefix: str, timeout: float | None) -> list[str]:
        """The keys that begin with `prefix`, in the order of their bytes."""
    def lend(self) -> int:
        """The integer by which op libraries submit to this session, with the functions at `engine_table()`."""
    def metrics(self) -> dict[str, int | float]: ...
    def metrics_text(self) -> str:
        """The same in Prometheus' text format."""
    def layout(self) -> str: ...
    def companions(self) -> list[list[str]]: ...
    def feedback(self, name: str) -> tuple[bytes, bytes]:
        """What error feedback keeps of a tensor on this worker: its residual and its velocity, as bytes of float32.

        The velocity is empty without momentum. In a job of one worker both are empty.
        """
    def set_feedback(self, name: str, residual: bytes, velocity: bytes) -> None:
        """Puts that back."""
    def hold_feedback(self, name: str) -> None:
        """Keeps, from the next round on, also what error feedback of a tensor had before each round."""
    def take_back_feedback(self, name: str) -> None:
        """Takes back what the latest round has changed; does nothing if that was not held.

        The servers follow with the next round, if all workers do it for all tensors of a part.
        """
    def start_timeline(self, place: str | PathLike[str]) -> Path:
        """Records from now on what this worker does, and returns the path of the file."""
    def stop_timeline(self) -> None:
        """Completes the file; does nothing if no timeline is being recorded."""
    def record_span(self, thread: int, thread_name: str, name: str, start_ns: int, end_ns: int) -> None:
        """Adds a span of a thread, in nanoseconds of `time.monotonic_ns()`; does nothing if no timeline is being recorded."""
    def clock_offset(self) -> tuple[float, float] | None:
        """What to add to `time.time()` for the coordinator's clock, and the error, in seconds; None if not known."""
    def next_ready(self, timeout: float) -> list[int]:
        """Ids of handles that `is_issued` became true for; waits for the first one, and is empty after `timeout`."""
    def agree_on_empty(self, name: str, dtype: str, shape: tuple[int, ...], reduction: _Reduction) -> Handle:
        """Begins the first reduction of a tensor without elements, of which nothing is sent."""
    def settle(self, timeout: float | None) -> None:
        """Returns when all operations have ended for which streams wait; raises an error that nobody was told of."""
    def give_up(self, cause: str, timeout: float) -> None:
        """Ends this process's work; every member gets `cause`. Waits for the coordinator's answer."""
    def shutdown(self, timeout: float) -> None:
        """Leaves the job; pending handles fail. Repeating it does nothing."""

@final
class Rows:
    """A use of a table under way."""

    @property
    def version(self) -> int | None:
        """The lowest version of the parts that were used, once it has ended well."""
    def wait(self, timeout: float | None) -> None:
        """Waits for the end, at most `timeout` seconds, and raises its error."""
    def poll(self) -> bool:
        """Whether it has ended."""
    def read_rows(self, address: int) -> None:
        """Writes the rows of a pull that has ended well to this address, in the order of the ids."""
    def pages(self) -> tuple[list[tuple[int, int, int, int]], bytes, bytes, bytes, bytes]:
        """Of a scan that has ended well: where it stands, and the ids, the marks and the numbers of rows, and the removed ids."""
    def counts(self) -> list[int]:
        """Sums over all servers: rows looked at, rows removed, rows, ids that wait, bytes, ids whose gradients were dropped."""

@final
class Batch:
    """Tensors that are submitted together, round after round."""

    def __new__(cls, tensors: list[tuple[str, str, tuple[int, ...]]], codec: str = "none") -> Self:
        """(name, dtype, shape) triples; at least one, and each name once.

        `codec` encodes them between machines; it is one for all, or has a line for each.
        """
    def __len__(self) -> int: ...

@final
class Handle:
    """An operation under way."""

    @property
    def id(self) -> int: ...
    @property
    def effect(self) -> tuple[int, str, int] | None:
        """What a use of a parameter has come to, once it has ended well: its version, fate and lag; None of a reduction."""
    def wait(self, timeout: float | None) -> None:
        """Returns when the result has landed. If `timeout` passes first, the operation goes on."""
    def follow(self, timeout: float | None, streams: list[tuple[int, int]]) -> None:
        """Returns when all work is on its devices; for each `(device, stream)` the stream waits for the result."""
    def is_issued(self) -> bool:
        """Whether `follow` returns at once."""
    def poll(self) -> bool: ...
    def cancel(self) -> None: ...
    def error(self) -> BaseException | None: ...

@final
class Embedded:
    """A coordinator and servers in this process."""

    def __new__(
        cls,
        *,
        bind: str,
        workers: int,
        servers: int,
        job: str,
        settings: dict[str, str],
        coordinator_only: bool = False,
    ) -> Self:
        """With `coordinator_only` the servers are separate processes."""
    @property
    def join(self) -> str: ...
    def publish(self, job: str) -> None:
        """Leaves the join string in this user's state directory for processes that look for `job`, until `stop`."""
    def stop(self, timeout: float) -> None:
        """Waits up to `timeout` for the members to leave, then stops."""

def engine_table() -> int:
    """The address of the engine's functions for op libraries; see `plugins/abi`."""

def operation_error(operation: int) -> BaseException | None:
    """The exception for an operation of an op library that has failed; None if it is not known any more."""

def wait_any(groups: list[list[Handle]], timeout: float | None) -> int:
    """Waits until one of the groups has ended, with all of its operations; returns the position of the first that has."""

def copy_seconds(
    settings: dict[str, str],
    device: int,
    address: int,
    bytes: int,
    chunk_bytes: int,
    in_flight: int,
    direction: Literal["out", "in", "both"],
) -> float:
    """Seconds to copy memory of a device to pinned host memory, back, or half of it each way at the same time."""

def names_table() -> _Names:
    """The names of element types, with the bytes of one element, of reductions, of uses of parameters and of codecs."""

def count_data_wait(session: Session, nanoseconds: int) -> None:
    """The training has waited for its data for so long; does nothing in a forked child."""

def metrics_table() -> list[_MetricRow]:
    """What workers and servers count about themselves."""

def error_table() -> list[_ErrorRow]:
    """The native errors: their Python classes, and their fields with their meanings."""

def detect_launch(arguments: dict[str, str], generation: int = 0) -> _Launch: ...
def find_join(job: str, timeout: float) -> str: ...
def read_join(path: Path, timeout: float) -> str: ...
def wrap_join(settings: dict[str, str], job: str, join: str) -> str:
    """What rank 0 of `job` puts into a store that others can read.

    It is the join string, sealed if the settings have a secret.
    """

def unwrap_join(settings: dict[str, str], job: str, text: str) -> str:
    """The join string that rank 0 of `job` has wrapped."""

def save_checkpoint(
    session: Session, path: str, keep: int | None, notes: str, tables_apart: bool, timeout: float
) -> _Checkpointed:
    """Saves the parameters of the job, and waits until they are on the disk."""

def load_checkpoint(
    session: Session, path: str, checkpoint: int | None, missing: str, what: tuple[bool, bool, bool], timeout: float
) -> _Checkpointed:
    """Loads them.

    `what`: whether the checkpoint may have more tensors, whether what the rules keep is loaded too, and whether a directory
    without any checkpoint is no error; the number is 0 then.
    """

def export_checkpoint(path: Path, checkpoint: int | None, file: Path) -> None:
    """Writes the values of a checkpoint to one file in the form of safetensors."""

@final
class SavedCheckpoint:
    """The files of a checkpoint, open to be read."""

    def __new__(cls, path: Path, checkpoint: int | None) -> SavedCheckpoint: ...
    @property
    def directory(self) -> Path:
        """Its own directory."""

    def manifest(self) -> str:
        """The manifest as JSON."""

    def read(self, name: str) -> bytes:
        """The values of a tensor, in little-endian bytes."""

def use_rows(
    session: Session,
    asked: tuple[str, str, str, int, tuple[float, float, int, int], int, float | None],
    ids: tuple[int, int],
    gradients: tuple[int, int],
    marks: tuple[int, int],
    scan: tuple[int, bool, list[tuple[int, int, int, int]]],
) -> Rows:
    """Starts a use of rows of a table.

    `asked`: the table's name and its text, what to do ("pull", "look", "push", "shrink", "stats", "clear", "changed", "page",
    "restore" or "push with scores"), the steps before, of a shrink its decay, its least score, its most idle steps and the rows that stay, then the
    priority and the timeout. `ids` and `gradients` are an address and a number of elements, uint64 and float32, or (0, 0); of a
    restore, `gradients` are all numbers of the rows, and `marks` is an address of as many uint64 as rows: the step of the last use,
    and the bits of the score in the highest half. All are read during the call.
    `scan`: a random number from 1, whether there is state, and where the scan stands, of each part: the first shard, the life, the
    version and the cursor.
    """

def answer_feedback(session: Session, names: list[str]) -> list[bytes]:
    """What servers keep of the answers to these tensors, of each as bytes of float32; empty where answers lose nothing.

    Tensors that share a part are read in one call, between two rounds.
    """

def set_answer_feedback(session: Session, given: list[tuple[str, bytes]]) -> None:
    """Gives that back, by the names of tensors, so that the next averages go on with it; the same on all workers."""

def table_text(text: str) -> tuple[str, int]:
    """The text of a table as workers compare it, from one that names its rule and its settings, and all numbers of a row."""

def config_report(arguments: dict[str, str]) -> str: ...
def step_timeout(arguments: dict[str, str]) -> float:
    """The setting `step_timeout`, in seconds."""

def codec_of(choice: str, name: str, dtype: str, shape: Sequence[int]) -> str:
    """The codec with which a tensor travels, of those that this text chooses for it."""

def serve(settings: dict[str, str]) -> int:
    """Runs a server of a job until the job ends; 0, or the exit code of a signal, or of a failure that the launcher tells."""

def cli_main(argv: list[str]) -> int: ...
