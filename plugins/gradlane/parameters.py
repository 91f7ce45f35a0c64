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

The rule is given to `init`, which every worker calls before it uses the parameter otherwise, with the same rule.

In a job of one worker without servers, the worker keeps the parameters itself, in host memory.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

from gradlane import _buffers, _core, _session, rules
from gradlane._arguments import check_name, check_priority, check_timeout
from gradlane._buffers import Buffer
from gradlane._groups import located
from gradlane._handle import Handle
from gradlane._operations import check_out
from gradlane._overlaps import check_apart, uses_of
from gradlane.errors import InvalidArgumentError

__all__ = ["init", "init_async", "pull", "pull_async", "push", "push_async", "push_pull", "push_pull_async"]

Update = Literal["add", "assign", "step"]
"""How a push changes a parameter: it adds to it, element by element; it takes its place; or it is a gradient for its rule."""

Kind = Literal["value", "ema", "window"]
"""What a pull reads: the value, or an average of its values that its rule keeps."""

_rules: dict[str, str] = {}
"""The rules that this worker has given to parameters of its session."""


def init(name: str, value: Any, *, rule: rules.Rule | str | None = None, timeout: float | None = None) -> int:
    """Give a parameter its first value, unless it has one.

    If several workers call it, the first one wins, and the values of the others are not used. That holds for each part of
    a large tensor by itself. So let all give the same value, or only one of them, and pull the parameter afterwards.

    Args:
        name: equal on all workers; its first use fixes dtype, shape and rule.
        value: a tensor; it is only read.
        rule: how gradients change it, such as `rules.SGD(lr=0.1)`, for parameters of floats; None if they do not.
        timeout: seconds for the whole operation; None takes the job's step timeout, which is also the upper bound.
    Returns:
        The present version.
    Raises:
        MismatchError: `name` is in use with another dtype, shape or rule, or is that of a sum (both sides are named).
        FailedPreconditionError: the job has no server.
        InvalidArgumentError: an argument is not what it should be; it is named.
    """
    _keep_rule(name, rule)
    return _begin("init", name, value, None, _options(0, timeout), waits=True).wait()


def init_async(
    name: str, value: Any, *, rule: rules.Rule | str | None = None, timeout: float | None = None
) -> Handle[int]:
    """Like `init`, but returns at once. Do not change `value` until the handle is done, nor resize it."""
    _keep_rule(name, rule)
    return _begin("init", name, value, None, _options(0, timeout), waits=False)


def push(
    name: str, value: Any, *, update: Update = "add", priority: int = 0, timeout: float | None = None
) -> int:
    """Change a parameter.

    Args:
        name: that of a parameter that has a value.
        value: what is added to it, its new value, or a gradient; of its dtype and shape. It is only read.
        update: "add", "assign" or "step". Types of two bytes are added in float32. Sums of integers wrap.
        priority: higher goes first; only the order matters.
        timeout: as for `init`. A change that was given up may have been made.
    Returns:
        The version that the change has made.
    Raises:
        FailedPreconditionError: the parameter has no value yet, or the job has no server.
        MismatchError: as `init`.
        InvalidArgumentError: an argument is not what it should be, or a gradient for a parameter to which this worker
            gave no rule; it is named.
    """
    return _begin(_pushing("push", update), name, value, None, _options(priority, timeout), waits=True).wait()


def push_async(
    name: str, value: Any, *, update: Update = "add", priority: int = 0, timeout: float | None = None
) -> Handle[int]:
    """Like `push`, but returns at once. Do not change `value` until the handle is done, nor resize it."""
    return _begin(_pushing("push", update), name, value, None, _options(priority, timeout), waits=False)


def pull(
    name: str, out: Any, *, kind: Kind = "value", priority: int = 0, timeout: float | None = None
) -> int:
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
) -> Handle[int]:
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
) -> int:
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
) -> Handle[int]:
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


def _keep_rule(name: str, rule: object) -> None:
    """Notes the rule that this worker gives to a parameter of its session."""
    text = rules.text_of(rule)
    check_name(name)
    if text is None:
        _rules.pop(name, None)
        return
    if not _rules:
        _session.after_leaving(_rules.clear)
    _rules[name] = text


def _begin(access: str, name: str, value: Any, out: Any, options: _Options, *, waits: bool) -> Handle[int]:
    """Starts a use; the handle yields the version. What the call does not have is None, of value and out."""
    check_name(name)
    sends, receives = not access.startswith("pull"), access.startswith(("pull", "push_pull"))
    in_place = receives and sends and out is None
    target = _located("out", out, writable=True) if receives and not in_place else None
    source = _located("value", value, writable=in_place) if sends else target
    assert source is not None, "it sends or receives"
    if target is not None and source is not target:
        check_out(source, target, "value")
        check_apart("push_pull", uses_of(source, "value", target, "out"))
    _session.passes_over(name)
    native = _session.session().access(
        name,
        source.dtype,
        source.shape,
        source.address,
        None if target is None else target.address,
        access,
        options.priority,
        options.timeout,
        (source.owner, None if target is None else target.owner),
        waits,
        source.device,
        (source.stream, None if target is None else target.stream),
        _rules.get(name),
    )
    return Handle(native, lambda: _version_of(native))


def _version_of(native: _core.Handle) -> int:
    version = native.version
    assert version is not None, "a use that has ended well tells its version"
    return version


def _located(argument: str, value: Any, *, writable: bool) -> Buffer:
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
