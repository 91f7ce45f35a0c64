"""Parameters: tensors that servers keep, and that each worker changes and reads by itself, at any time.

    from gradlane import parameters

    parameters.init("w", weights)            # the first value; the first worker that calls it wins
    parameters.pull("w", weights)            # reads it
    parameters.push("w", -0.1 * gradients)   # adds to it

A reduction has rounds: it waits for the contributions of all workers. A parameter has none, and no call here waits for
another worker. This is what asynchronous training and counters need.

Values are what `gradlane.push_pull` takes, and tensors of PyTorch: contiguous, on the CPU or one CUDA device, with at
least one element. The first use of a name on any worker fixes its dtype and shape on all workers. Each call returns the
*version* of the parameter: 1 after its first value, and one more after each change.

A large tensor is cut into parts, which may lie on several servers. Each part is changed and read as a whole, and has a
version of its own; a call returns the lowest. A change is made exactly once, also if a connection breaks meanwhile. The
uses of one parameter by one worker come one after the other, in the order of the calls, so a worker reads what it wrote.

With a *rule*, an optimizer of `gradlane.rules`, a change can be a gradient: `update="step"`. Each gradient is applied when
it comes, with what the rule keeps of the parameter on the servers. This is asynchronous training:

    parameters.init("w", weights, rule=rules.AdamW(lr=1e-3))
    parameters.push_pull("w", gradients, out=weights, update="step")

The rule is given to `init`, which every worker calls before it uses the parameter otherwise, with the same rule. So is the
*mode*, one of `gradlane.modes`: it bounds how old the values may be from which changes are computed, or lets workers wait for
each other by a `Clock`. Each change tells what became of it, by the version that its call returns.

In a job of one worker without servers, the worker keeps the parameters itself, in host memory.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal, cast

from gradlane import _buffers, _core, _session, modes, rules
from gradlane._arguments import check_name, check_priority, check_timeout
from gradlane._buffers import Buffer
from gradlane._clock import Clock, Fate, Tick
from gradlane._groups import located
from gradlane._handle import Handle
from gradlane._operations import check_out
from gradlane._overlaps import check_apart, uses_of
from gradlane.errors import InvalidArgumentError

__all__ = [
    "Clock",
    "Fate",
    "Tick",
    "Version",
    "init", "init_async", "pull", "pull_async", "push", "push_async", "push_pull", "push_pull_async"]

Update = Literal["add", "assign", "step"]
"""How a push changes a parameter: it adds to it, element by element; it takes its place; or it is a gradient for its rule."""

Kind = Literal["value", "ema", "window"]
"""What a pull reads: the value, or an average of its values that its rule keeps."""


class Version(int):
    """The version of a parameter that a call has made or read, and what became of the change. It is an `int`."""

    fate: Fate
    """Of several parts, the worst."""
    lag: int
    """The versions that came between the one from which the change was computed and the one to which it came; of several
    parts, the most."""

    @property
    def factor(self) -> float:
        """By what the change was multiplied: 1 if it was done as it is or is kept, 0 if it was not done."""
        match self.fate:
            case "accepted" | "kept":
                return 1.0
            case "scaled":
                return 1.0 / (1.0 + self.lag)
            case _:
                return 0.0

    @classmethod
    def of(cls, version: int, fate: str, lag: int) -> Version:
        """A version with what became of its change."""
        made = cls(version)
        made.fate, made.lag = cast("Fate", fate), lag
        return made


@dataclass(frozen=True, slots=True)
class _Said:
    """What this worker has said of a parameter when it gave it its first value."""

    rule: str | None
    mode: str | None
    clock: Clock | None

    def clock_at(self, access: str) -> tuple[str | None, int]:
        """The name of its clock, and where that stands for this use."""
        if self.clock is None:
            return None, 0
        return self.clock.name, self.clock.stands_at(is_gradient=access.endswith("step"))


_UNSAID = _Said(None, None, None)
_said: dict[str, _Said] = {}
"""What this worker has said of the parameters of its session that have a rule or a mode."""


def init(
    name: str,
    value: Any,
    *,
    rule: rules.Rule | str | None = None,
    mode: modes.Async | Clock | None = None,
    timeout: float | None = None,
) -> Version:
    """Give a parameter its first value, unless it has one.

    If several workers call it, the first one wins, and the values of the others are not used. That holds for each part of
    a large tensor by itself. So let all give the same value, or only one of them, and pull the parameter afterwards.

    Args:
        name: equal on all workers; its first use fixes dtype, shape, rule and mode.
        value: a tensor; it is only read.
        rule: how gradients change it, such as `rules.SGD(lr=0.1)`, for parameters of floats; None if they do not.
        mode: when changes are done: `modes.Async(...)`, or for the other modes the clock that all its workers tick. None is
            for `modes.Async()`.
        timeout: seconds for the whole operation; None takes the job's step timeout, which is also the upper bound.
    Returns:
        The present version.
    Raises:
        MismatchError: `name` is in use with another dtype, shape, rule or mode, or is that of a sum (both sides are named).
        FailedPreconditionError: the job has no server.
        InvalidArgumentError: an argument is not what it should be; it is named.
    """
    _keep_said(name, rule, mode)
    return _begin("init", name, value, None, _options(0, timeout), waits=True).wait()


def init_async(
    name: str,
    value: Any,
    *,
    rule: rules.Rule | str | None = None,
    mode: modes.Async | Clock | None = None,
    timeout: float | None = None,
) -> Handle[Version]:
    """Like `init`, but returns at once. Do not change `value` until the handle is done, nor resize it."""
    _keep_said(name, rule, mode)
    return _begin("init", name, value, None, _options(0, timeout), waits=False)


def push(
    name: str, value: Any, *, update: Update = "add", priority: int = 0, timeout: float | None = None
) -> Version:
    """Change a parameter.

    Args:
        name: that of a parameter that has a value.
        value: what is added to it, its new value, or a gradient; of its dtype and shape. It is only read.
        update: "add", "assign" or "step". Types of two bytes are added in float32. Sums of integers wrap.
        priority: higher goes first; only the order matters.
        timeout: as for `init`. A change that was given up may have been made.
    Returns:
        The version that the change has made, and what became of it: a change that was discarded has made none.
    Raises:
        FailedPreconditionError: the parameter has no value yet, or the job has no server.
        MismatchError: as `init`.
        InvalidArgumentError: an argument is not what it should be, a gradient for a parameter to which this worker gave no
            rule, or a push_pull of one in a mode with rounds; it is named.
    """
    return _begin(_pushing("push", update), name, value, None, _options(priority, timeout), waits=True).wait()


def push_async(
    name: str, value: Any, *, update: Update = "add", priority: int = 0, timeout: float | None = None
) -> Handle[Version]:
    """Like `push`, but returns at once. Do not change `value` until the handle is done, nor resize it."""
    return _begin(_pushing("push", update), name, value, None, _options(priority, timeout), waits=False)


def pull(
    name: str, out: Any, *, kind: Kind = "value", priority: int = 0, timeout: float | None = None
) -> Version:
    """Read a parameter into `out`.

    Args:
        name: that of a parameter that has a value.
        out: a writable tensor of its dtype and shape. On a device the value is complete when the call returns.
        kind: "value"; or "ema" or "window" for that average of its values, if its rule keeps it: see `gradlane.rules`.
        priority: higher goes first; only the order matters.
        timeout: as for `init`.
    Returns:
        The version that was read.
    Raises:
        FailedPreconditionError: the parameter has no value yet, or the job has no server.
        MismatchError: as `init`.
        InvalidArgumentError: an argument is not what it should be, or an average that the rule which this worker gave to
            the parameter does not keep; it is named.
    """
    return _begin(_pulling(kind), name, None, out, _options(priority, timeout), waits=True).wait()


def pull_async(
    name: str, out: Any, *, kind: Kind = "value", priority: int = 0, timeout: float | None = None
) -> Handle[Version]:
    """Like `pull`, but returns at once. Do not use `out` until the handle is done, nor resize it."""
    return _begin(_pulling(kind), name, None, out, _options(priority, timeout), waits=False)


def push_pull(
    name: str,
    value: Any,
    out: Any = None,
    *,
    update: Update = "add",
    priority: int = 0,
    timeout: float | None = None,
) -> Version:
    """Change a parameter and read it, in one exchange: no other change of a part comes between the two.

    Args:
        name: that of a parameter that has a value.
        value: what is added to it, its new value, or a gradient; of its dtype and shape. Without `out` it must be
            writable, and the parameter's value replaces it.
        out: a writable tensor for the parameter's value, of its dtype and shape, and on the same device as `value`.
        update: as for `push`.
        priority: higher goes first; only the order matters.
        timeout: as for `push`.
    Returns:
        The version that the change has made, and that was read.
    Raises:
        FailedPreconditionError: the parameter has no value yet, or the job has no server.
        MismatchError: as `init`.
        InvalidArgumentError: an argument is not what it should be; it is named.
    """
    return _begin(_pushing("push_pull", update), name, value, out, _options(priority, timeout), waits=True).wait()


def push_pull_async(
    name: str,
    value: Any,
    out: Any = None,
    *,
    update: Update = "add",
    priority: int = 0,
    timeout: float | None = None,
) -> Handle[Version]:
    """Like `push_pull`, but returns at once. Do not use `value` or `out` until the handle is done, nor resize them."""
    return _begin(_pushing("push_pull", update), name, value, out, _options(priority, timeout), waits=False)


@dataclass(frozen=True, slots=True)
class _Options:
    """How a parameter is used: all that a call says, except for its name, its memory and what to do."""

    priority: int
    timeout: float | None


def _options(priority: object, timeout: float | None) -> _Options:
    check_timeout(timeout)
    return _Options(check_priority(priority), timeout)


def _pushing(call: str, update: object) -> str:
    """The native module's name of a push or push_pull that changes the parameter in this way."""
    if update not in ("add", "assign", "step"):
        raise InvalidArgumentError(f'update={update!r}; give "add", "assign" or "step"')
    return f"{call}_{update}"


def _pulling(kind: object) -> str:
    """The native module's name of a pull that reads this."""
    if kind not in ("value", "ema", "window"):
        raise InvalidArgumentError(f'kind={kind!r}; give "value", "ema" or "window"')
    return "pull" if kind == "value" else f"pull_{kind}"


def _keep_said(name: str, rule: object, mode: object) -> None:
    """Notes what this worker says of a parameter of its session."""
    text = rules.text_of(rule)
    check_name(name)
    if mode is not None and not isinstance(mode, modes.Async | Clock):
        if isinstance(mode, modes.Mode):
            raise InvalidArgumentError(f'mode={mode!r}; give the clock of its workers, such as parameters.Clock("train", {mode!r})')
        raise InvalidArgumentError(f"mode={mode!r}; give modes.Async(...), or a parameters.Clock")
    clock = mode if isinstance(mode, Clock) else None
    said = _Said(text, None if mode is None else str(mode if clock is None else clock.mode), clock)
    if said == _UNSAID:
        _said.pop(name, None)
        return
    if not _said:
        _session.after_leaving(_said.clear)
    _said[name] = said


def _begin(access: str, name: str, value: Any, out: Any, options: _Options, *, waits: bool) -> Handle[Version]:
    """Starts a use; the handle yields the version. What the call does not have is None, of value and out."""
    check_name(name)
    sends, receives = not access.startswith("pull"), access.startswith(("pull", "push_pull"))
    in_place = receives and sends and out is None
    target = located_argument("out", out, writable=True) if receives and not in_place else None
    source = located_argument("value", value, writable=in_place) if sends else target
    assert source is not None, "it sends or receives"
    if target is not None and source is not target:
        check_out(source, target, "value")
        check_apart("push_pull", uses_of(source, "value", target, "out"))
    return begin_at(access, name, source, target, options.priority, options.timeout, waits=waits)


def begin_at(
    access: str, name: str, source: Buffer, target: Buffer | None, priority: int, timeout: float | None, *, waits: bool = False
) -> Handle[Version]:
    """Starts a use of checked arguments; the handle yields the version.

    Args:
        access: what to do, as the native module names it: `init`, `pull`, or `push` or `push_pull` with how it changes.
        source: the memory of what is sent; of a pull, that for the value.
        target: the memory for the value; None if there is none, or if it replaces what is sent.
        waits: whether the caller waits for it next.
    """
    _session.passes_over(name)
    said = _said.get(name, _UNSAID)
    if said.clock is not None:
        said.clock.joined()
    native = _session.session().access(
        name,
        source.dtype,
        source.shape,
        source.address,
        None if target is None else target.address,
        access,
        priority,
        timeout,
        (source.owner, None if target is None else target.owner),
        waits,
        source.device,
        (source.stream, None if target is None else target.stream),
        (said.rule, said.mode, *said.clock_at(access)),
    )
    return Handle(native, lambda: _version_of(native))


def _version_of(native: _core.Handle) -> Version:
    effect = native.effect
    assert effect is not None, "a use that has ended well tells what it has come to"
    return Version.of(*effect)


def located_argument(argument: str, value: Any, *, writable: bool) -> Buffer:
    """Finds the memory of an argument, which is named in errors."""
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    place = located(argument, _of_tensor if is_tensor else _buffers.locate, value, writable=writable)
    if place.len == 0:
        raise InvalidArgumentError(
            f"{argument}: its shape {list(place.shape)} has no elements; a parameter has at least one"
        )
    return place


def _of_tensor(tensor: Any, *, writable: bool) -> Buffer:
    """Finds the memory of a tensor of PyTorch. Only a caller that has one imports `gradlane.torch`."""
    from gradlane.torch import _tensors

    if tensor.is_neg() or tensor.is_conj():
        raise InvalidArgumentError(
            "the tensor is a view that negates or conjugates its memory; give tensor.resolve_neg().resolve_conj()"
        )
    place = _tensors.locate(tensor)
    if writable:
        _tensors.note_changed([tensor])
    return place
