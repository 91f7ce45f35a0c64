"""The exception classes.

Every class has `code`, a failure class shared with the Rust code, and `retryable`. The values in a message are also
attributes, so that programs need not parse it.

The native errors are one table, in `core/src/error/table.rs`, which names the class of each. A class is written here if
it has its own attributes or is raised from Python. The other classes of the table are made from their rows.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradlane import _core

if TYPE_CHECKING:
    from gradlane._core import _ErrorRow

__all__ = [
    "AbortedError",
    "AuthError",
    "CancelledError",
    "CertExpiredError",
    "ChecksumError",
    "ConfigError",
    "CorruptCheckpointError",
    "DeviceError",
    "DuplicateRankError",
    "Error",
    "FailedPreconditionError",
    "FencedError",
    "ForkedProcessError",
    "FullResyncNeededError",
    "IncompatibleError",
    "InternalError",
    "InvalidArgumentError",
    "MismatchError",
    "NotFiniteError",
    "NotFormedError",
    "NotFoundError",
    "NotInitializedError",
    "PeerLostError",
    "ProtocolError",
    "QuorumLostError",
    "ResourceExhaustedError",
    "RootLostError",
    "ServerUnreachableError",
    "StallError",
    "StateLostError",
    "StillRunningError",
    "TimeoutError",
    "TokenError",
    "UnavailableError",
    "UnresponsiveError",
    "UnsupportedError",
    "UnusedParametersError",
]


class Error(RuntimeError):
    """Base class of all exceptions of Gradlane.

    Attributes:
        code: the class of failure: `InvalidArgument`, `NotFound`, `AlreadyExists`, `FailedPrecondition`, `Aborted`,
            `DeadlineExceeded`, `Unavailable`, `ResourceExhausted`, `Cancelled`, `Fenced`, `Unauthenticated`,
            `DataLoss`, `Unimplemented` or `Internal`.
        retryable: whether the same call may succeed later without other changes.
        fields: the values in the message.
    """

    code: str = "Internal"
    retryable: bool = False

    ag_pass_through = True
    """Read by TensorFlow's AutoGraph: the exception keeps its class where it passes through a `tf.function`."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.fields: dict[str, Any] = fields
        self.code = fields.get("code", type(self).code)
        self.retryable = fields.get("retryable", type(self).retryable)

    # Exceptions pickle their positional arguments only; DataLoader workers and process pools send errors to their
    # parent.
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), str(self.args[0]), self.fields)


class InvalidArgumentError(Error, ValueError):
    """An argument has no meaning here; the message says what to give instead."""

    code = "InvalidArgument"


class ConfigError(InvalidArgumentError):
    """A setting is unknown, malformed, out of range or in conflict with another. `knob` is its name as written."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.knob: str | None = fields.get("knob")


class MismatchError(InvalidArgumentError):
    """Workers disagree about a tensor. Every worker gets this same error.

    Attributes:
        tensor: its name.
        field: what differs: `dtype`, `shape`, `op`, `length`, `name`, or the `tree` of a call of `gradlane.jax`.
        ranks: the worker that declared first, and the one that disagrees.
        expected: the value of the first worker.
        got: the value of the other worker.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        first, second = fields.get("first", (None, None)), fields.get("second", (None, None))
        self.tensor: str | None = fields.get("tensor")
        self.field: str | None = fields.get("field")
        self.ranks: tuple[int | None, int | None] = (first[0], second[0])
        self.expected: str | None = first[1]
        self.got: str | None = second[1]


class UnsupportedError(Error, NotImplementedError):
    """This version cannot do that; the message says what it can do."""

    code = "Unimplemented"


class FailedPreconditionError(Error):
    """The call does not fit the state; the message says what to call first."""

    code = "FailedPrecondition"


class NotInitializedError(FailedPreconditionError):
    """`gradlane.init()` has not been called, or `gradlane.shutdown()` was."""


class ForkedProcessError(FailedPreconditionError):
    """This process was forked from a member of a job; the engine's threads exist only in the parent."""


class UnusedParametersError(FailedPreconditionError):
    """Some parameters got no gradient in a backward pass. Every rank gets this same error.

    `parameters` maps the name of each to the ranks without a gradient.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.parameters: dict[str, list[int]] = fields.get("parameters", {})


class IncompatibleError(FailedPreconditionError):
    """A process of another job size, version or configuration tried to join. `field` is what differs."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.field: str | None = fields.get("field")


class DuplicateRankError(Error):
    """Two processes want one rank."""

    code = "AlreadyExists"


class FullResyncNeededError(FailedPreconditionError):
    """What has changed in a table since a version is not known any more. Read all of it, or save a full snapshot.

    Attributes:
        tensor: the table.
        why: why: too many rows were removed since, the table was cleared, or other servers keep it.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.tensor: str | None = fields.get("tensor")
        self.why: str | None = fields.get("why")


class NotFoundError(Error):
    """Something that was asked for by its name is not there, such as a checkpoint or one of its tensors."""

    code = "NotFound"


class CorruptCheckpointError(Error):
    """A file of a checkpoint is not what it was when it was saved. Nothing was loaded.

    Attributes:
        file: the file.
        problem: what is wrong with it.
    """

    code = "DataLoss"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.file: str | None = fields.get("file")
        self.problem: str | None = fields.get("problem")


class TimeoutError(Error, builtins.TimeoutError):  # the builtin's name on purpose: `except TimeoutError` catches both
    """A deadline of the caller passed.

    Attributes:
        tensor: the tensor that was waited for, where it was one.
        missing_ranks: the workers that did not contribute, as far as they are known.
        waited: seconds.
    """

    code = "DeadlineExceeded"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.tensor: str | None = fields.get("tensor")
        self.missing_ranks: list[int] = [rank for rank in fields.get("missing") or [] if isinstance(rank, int)]
        self.waited: float | None = fields.get("waited")


class StallError(TimeoutError):
    """Some workers did not contribute to a sum within the step timeout. `round` counts the sums of that tensor."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.round: int | None = fields.get("round")


class ServerUnreachableError(TimeoutError):
    """A server did not answer this worker for the step timeout, though the coordinator reaches both of them.

    Attributes:
        server: the server and where it says that it listens, such as `server 1 at node7:9000`.
        cause: how the last attempt to reach it failed.
        hint: what to check.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.server: str | None = fields.get("server")
        self.cause: str | None = fields.get("cause")
        self.hint: str | None = fields.get("hint")


class UnresponsiveError(TimeoutError):
    """The engine of this process did not end an operation, because its threads are stuck. Its memory stays in use.

    Attributes:
        what: the operation, such as `tensor grad`.
        hint: what to do.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.what: str | None = fields.get("what")
        self.hint: str | None = fields.get("hint")


class StillRunningError(TimeoutError):
    """A wait ended before the operation did. The operation goes on, and may be waited for again.

    Attributes:
        what: what was waited for.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.what: str | None = fields.get("what")


class NotFormedError(TimeoutError):
    """The job did not form in time. `missing` names the absent members, such as `worker 2` and `server 0`."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.missing: list[str] = [str(member) for member in fields.get("missing") or []]


class AbortedError(Error):
    """The job, or this process' part in it, ended."""

    code = "Aborted"


class PeerLostError(AbortedError):
    """A member of the job died or cannot be reached.

    Attributes:
        member: `worker 2`, `server 0` or `coordinator`.
        rank: the worker's rank, if it was a worker.
        server: the server's index, if it was a server.
        host: its host and process.
        cause: the first evidence of the loss.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.member: str | None = fields.get("member")
        self.host: str | None = fields.get("host")
        self.cause: str | None = fields.get("cause")
        role, _, index = (self.member or "").partition(" ")
        self.rank = int(index) if role == "worker" and index.isdecimal() else None
        self.server = int(index) if role == "server" and index.isdecimal() else None


class StateLostError(PeerLostError):
    """A server was lost, and with it what it kept (`on_server_loss=restore`). The job forms again.

    `gradlane.checkpoint.run` joins it again and begins the training anew, from the latest checkpoint.
    """


class QuorumLostError(AbortedError):
    """Workers were lost, and no others came in their place within `rejoin_timeout` (`on_worker_loss=wait`).

    Attributes:
        there: how many workers are there.
        needed: how many the job needs.
        lost: those that were lost, with the evidence, such as `worker 2 on host (pid 77): killed by signal 9`.
        waited: how long the others held, in seconds.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.there: int | None = fields.get("there")
        self.needed: int | None = fields.get("needed")
        self.lost: list[str] = [str(member) for member in fields.get("lost") or []]
        self.waited: float | None = fields.get("waited")


class FencedError(AbortedError):
    """This process belongs to a past membership: the others declared it dead and went on without it."""

    code = "Fenced"


class ProtocolError(AbortedError):
    """A peer broke the protocol; its connection is closed."""


class AuthError(Error):
    """The peer could not prove its identity, or may not do this."""

    code = "Unauthenticated"


class CertExpiredError(AuthError):
    """A certificate has expired, or is not good yet by the clock of the host that looked at it."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.holder: str | None = fields.get("holder")
        self.times: str | None = fields.get("times")


class TokenError(AuthError):
    """The token in the join string is one of this job, but it is not good for this. `problem` says why."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.problem: str | None = fields.get("problem")


class ChecksumError(Error):
    """Bytes changed on their way."""

    code = "DataLoss"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.tensor: str | None = fields.get("tensor")
        self.round: int | None = fields.get("round")


class NotFiniteError(InvalidArgumentError, builtins.ArithmeticError):
    """A contribution has a NaN or an infinity, and the setting `nan_check` makes that an error; in `LocalSGD` it always is one."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.tensor: str | None = fields.get("tensor")
        self.round: int | None = fields.get("round")
        self.worker: str | None = fields.get("from")


class RootLostError(InvalidArgumentError):
    """The worker from which a tensor comes, or to which its sum goes, has left the job or was lost; raised on every worker."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.tensor: str | None = fields.get("tensor")
        self.root: str | None = fields.get("root")


class ResourceExhaustedError(Error):
    """A limit would be exceeded; nothing was changed."""

    code = "ResourceExhausted"
    retryable = True


class UnavailableError(Error):
    """The peer, or the operating system, cannot answer now; the same call may succeed later."""

    code = "Unavailable"
    retryable = True


class DeviceError(AbortedError):
    """A device, or a library that drives it, failed. This process cannot use the device any more.

    Attributes:
        device: its name, such as `cuda:0`.
        what: the operation that failed.
        tensor: the tensors of the operation; None if it had none.
        cause: the fault in words, with the library's code.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.device: str | None = fields.get("device")
        self.what: str | None = fields.get("what")
        self.tensor: str | None = fields.get("tensor")
        self.cause: str | None = fields.get("cause")


class CancelledError(Error):
    """The caller cancelled the operation."""

    code = "Cancelled"


class InternalError(Error):
    """A defect of Gradlane itself; please report it."""


def _build(variant: str, message: str, fields: Mapping[str, Any]) -> Error:
    """Makes the exception for a native failure.

    Args:
        variant: the name of the variant of the native error type.
        message: its text.
        fields: its fields by their native names, with `code` and `retryable` added.
    """
    return _OF_VARIANT.get(variant, InternalError)(message, **fields)


def _restore(kind: type[Error], message: str, fields: Mapping[str, Any]) -> Error:
    return kind(message, **fields)


def _class_of(row: _ErrorRow, module: dict[str, Any]) -> type[Error]:
    """The class that `row` names: that of `module`, or else a new one with an attribute for each field of the error."""
    if row["exception"] not in module:
        bases = tuple(_base(name, module) for name in row["bases"])
        fields = {name: _field(name, doc) for name, doc in row["fields"]}
        about = {"code": row["code"], "retryable": row["retryable"], "__doc__": row["doc"], "__module__": __name__}
        module[row["exception"]] = type(row["exception"], bases, fields | about)
        module["__all__"].append(row["exception"])
    kind: type[Error] = module[row["exception"]]
    return kind


def _base(name: str, module: dict[str, Any]) -> type:
    kind: type = getattr(builtins, name.removeprefix("builtins.")) if name.startswith("builtins.") else module[name]
    return kind


def _field(name: str, doc: str) -> property:
    return property(lambda error: error.fields.get(name), doc=doc)


_OF_VARIANT = {row["variant"]: _class_of(row, globals()) for row in _core.error_table()}
