"""Error feedback of a model's gradients: what is kept between steps, and how it follows the learning rate."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from gradlane import _core, _session
from gradlane.errors import Error, FailedPreconditionError, InvalidArgumentError

_KEY = "gradlane_feedback"
"""The key among those of an optimizer's state. PyTorch's optimizers ignore keys that they do not know."""
_ANSWERS = "answers"
"""The key of what servers keep, among those of a tensor."""


class Feedback:
    """The gradients among those of an optimizer or module whose codec has error feedback."""

    def __init__(self, gradients: Iterable[tuple[int, str, str, torch.nn.Parameter, str]]) -> None:
        """Takes position, label, name, parameter and codec of every gradient."""
        with_feedback = [row for row in gradients if "feedback=1" in row[4]]
        self._names = {label: (name, tuple(parameter.shape)) for _, label, name, parameter, _ in with_feedback}
        self._codecs = {label: codec for _, label, _, _, codec in with_feedback}
        self._parameters = {position: parameter for position, _, _, parameter, _ in with_feedback}
        self._groups: dict[int, tuple[weakref.ref[torch.optim.Optimizer], int]] = {}
        """The group of the optimizer that each parameter belongs to, by position."""
        self._reference: dict[int, float] = {}
        """The rate in whose units a residual is, by position: the first one of the session that was not zero."""
        self._past_reference: dict[int, float] = {}
        """That of an earlier session of the job, while there was no such rate in the present one."""
        self._scaler: torch.amp.GradScaler | None = None
        self._scale = 1.0
        """That of the losses whose gradients are averaged now, or were averaged last; 1 without a scaler."""
        self._clips_to: float | None = None
        """The largest norm of a gradient of all workers; see `_norm_max`."""
        self._kept: dict[str, tuple[bytes, bytes]] = {}
        """By name, residuals and velocities while no session has them, as between two sessions of a job."""
        self._kept_answers: dict[str, bytes] = {}
        """By name, what the servers of the next session get of the answers, if a state was loaded between two sessions."""
        self._enrolment, self._generation = _session.enrolment(), 0
        """The job, and the session of it in which the gradients are declared."""
        self._is_in_step = False
        self._has_stepped = False
        """Whether an optimizer has made a step since gradients were averaged last."""

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Scales residuals as the learning rates of this optimizer change, from now on."""
        position_of = {id(parameter): position for position, parameter in self._parameters.items()}
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                position = position_of.get(id(parameter))
                if position is not None and "lr" in group:
                    self._groups[position] = weakref.ref(optimizer), number
        if self._names:
            owner = weakref.ref(self)

            def note_step(*_: object) -> None:
                feedback = owner()
                if feedback is not None:
                    feedback._has_stepped = True

            optimizer.register_step_pre_hook(note_step)

    def follow_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Scales residuals as the scale of losses changes, from the next step on, and takes back what skipped steps changed."""
        self._scaler, self._scale = scaler, float(scaler.get_scale())
        if self._is_declared:
            for name, _ in self._names.values():
                _session.session().hold_feedback(name)

    def clip(self, norm_max: float) -> None:
        """Clips gradients on this worker, from the next step on; see `DistributedDataParallel.clip_locally`."""
        if not norm_max > 0.0:
            raise InvalidArgumentError(f"norm_max={norm_max}; give a number above zero")
        if not self._names:
            raise InvalidArgumentError(
                "no gradient is compressed with error feedback, for which alone gradients are clipped before they are "
                "averaged; give compression= with feedback=True, or clip the averages with torch.nn.utils.clip_grad_norm_"
            )
        self._clips_to = norm_max

    @property
    def _norm_max(self) -> float | None:
        """The largest norm of a gradient on this worker."""
        return None if self._clips_to is None else self._clips_to / math.sqrt(_session.size())

    @property
    def _is_declared(self) -> bool:
        """Whether the session knows the gradients. In a job of its own, which came later, it learns of them by itself."""
        return self._generation == _session.generation() or self._enrolment != _session.enrolment()

    def keep(self) -> None:
        """Takes what is kept on this worker out of a session that ends, for `begin` in the next one of the job."""
        if self._is_declared:
            self._kept = {name: _session.session().feedback(name) for name, _ in self._names.values()}

    def begin(self) -> None:
        """The gradients are declared in the present session, which gets what was kept."""
        self._generation = _session.generation()
        kept, self._kept = self._kept, {}
        answers, self._kept_answers = self._kept_answers, {}
        session = _session.session()
        if answers:
            # All workers have loaded the rates with them.
            _core.set_answer_feedback(session, list(answers.items()))
        else:
            # Workers that have come know no rate of before, and gradients of all have to be in the same units.
            self._past_reference |= self._reference
            self._reference = {}
        for name, (residual, velocity) in kept.items():
            if (residual or velocity) and session.size > 1:
                session.set_feedback(name, residual, velocity)
        if self._scaler is not None:
            for name, _ in self._names.values():
                session.hold_feedback(name)

    def end_step(self) -> None:
        """The gradients of a step are averaged."""
        self._is_in_step = False

    def prepare(self, position: int, gradient: torch.Tensor) -> float:
        """Clips and scales a gradient, in place, before it is encoded. Returns what it was multiplied by, for afterwards.

        A step moves a parameter by its gradient times the learning rate. What a gradient has lost at one rate counts for
        less, or more, in a step with another rate. In units of the step, which gradients times their rate are in, it
        counts the same. So it is with gradients of a scaled loss, which are divided by the scale before the step.
        """
        if position not in self._parameters:
            return 1.0
        if self._scaler is not None and not self._is_in_step:
            self._begin_step(self._scaler)
        if (norm_max := self._norm_max) is not None:
            with torch.no_grad():
                limit = norm_max * self._scale
                gradient.mul_((limit / torch.linalg.vector_norm(gradient)).clamp(max=1.0))
        factor = self._factor(position)
        scale_in_place(gradient, factor)
        return factor

    def _factor(self, position: int) -> float:
        found = self._groups.get(position)
        optimizer = None if found is None else found[0]()
        if self._scaler is None and optimizer is None:
            return 1.0
        rate = 1.0 if found is None or optimizer is None else float(optimizer.param_groups[found[1]]["lr"])
        rate /= self._scale
        if not rate > 0.0:
            return 1.0
        past = self._past_reference.pop(position, None)
        if past is not None and past != rate:
            self._scale_kept(position, past / rate)
        return rate / self._reference.setdefault(position, rate)

    def _scale_kept(self, position: int, factor: float) -> None:
        """Multiplies what is kept of a gradient."""
        name, _ = dict(zip(self._parameters, self._names.values(), strict=True))[position]
        session = _session.session()
        residual, velocity = [_bytes(_floats(data).mul_(factor)) if data else b"" for data in session.feedback(name)]
        if residual:
            session.set_feedback(name, residual, velocity)

    def _begin_step(self, scaler: torch.amp.GradScaler) -> None:
        self._read_scale(scaler)
        self._is_in_step, self._has_stepped = True, False

    def _read_scale(self, scaler: torch.amp.GradScaler) -> None:
        """Reads the scale. It falls where a gradient was not finite, and the step was skipped. Then that changes nothing."""
        scale = float(scaler.get_scale())
        if scale < self._scale and not self._has_stepped and self._is_declared:
            for name, _ in self._names.values():
                _session.session().take_back_feedback(name)
        self._scale = scale

    def add_to(self, state: dict[str, Any]) -> dict[str, Any]:
        """Adds to the state of an optimizer what error feedback keeps on this worker, if it keeps anything."""
        if self._names:
            state[_KEY] = self.state_dict()
        return state

    def take_from(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state of an optimizer without that, which is put back where it belongs to."""
        rest = dict(state)
        saved = rest.pop(_KEY, None)
        if saved is not None:
            self.load_state_dict(saved)
        return rest

    def state_dict(self) -> dict[str, Any]:
        """What is kept: residuals and velocities of this worker by the names of parameters, their rates, and the answers'.

        The last are on the servers, and the same for all workers.
        """
        if self._scaler is not None and not self._is_in_step:
            self._read_scale(self._scaler)
        answers = self._answers()
        tensors: dict[str, dict[str, torch.Tensor]] = {}
        for label, (name, shape) in self._names.items():
            residual, velocity = (
                _session.session().feedback(name) if self._is_declared else self._kept.get(name, (b"", b""))
            )
            kept = {"residual": residual, "velocity": velocity, _ANSWERS: answers.get(name, b"")}
            tensors[label] = {kind: _floats(data).view(shape) for kind, data in kept.items() if data}
        labels = dict(zip(self._parameters, self._names, strict=True))
        rates = {labels[position]: rate for position, rate in (self._past_reference | self._reference).items()}
        return {
            "rank": _session.rank(),
            "size": _session.size(),
            "tensors": tensors,
            "rates": rates,
            "codecs": dict(self._codecs),
        }

    def _answers(self) -> dict[str, bytes]:
        """By name, what the answers have lost."""
        if not self._is_declared or not self._names:
            return self._kept_answers
        names = [name for name, _ in self._names.values()]
        try:
            return dict(zip(names, _core.answer_feedback(_session.session(), names), strict=True))
        except (FailedPreconditionError, InvalidArgumentError):
            raise
        except Error as error:
            # What this worker has is saved even so, such as after the loss of a server.
            warnings.warn(f"what servers keep of error feedback is not in this state: {error}", stacklevel=4)
            return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` has returned, on all workers.

        What workers keep belongs to the worker of the same rank in a job of the same size. In another job it begins at
        zero, with a warning. What servers keep goes on in any job.

        Raises:
            InvalidArgumentError: it is of other parameters, or of another compression.
            MismatchError: another worker has loaded another state.
        """
        tensors = state["tensors"]
        has_answers = any(_ANSWERS in kept for kept in tensors.values())
        place = state.get("rank"), state.get("size")
        is_of_this_worker = place == (_session.rank(), _session.size())
        if not is_of_this_worker:
            warnings.warn(
                f"the saved error feedback is that of rank {place[0]} in a job of {place[1]} workers, and this is rank "
                f"{_session.rank()} of {_session.size()}: what this worker has lost begins at zero. Save a state for each "
                "rank",
                stacklevel=3,
            )
            if not has_answers:
                return
        self._check(state)
        if is_of_this_worker:
            for label, (name, _) in self._names.items():
                kept = tensors[label]
                if kept or _session.size() > 1:
                    parts = [_bytes(kept[kind]) if kind in kept else b"" for kind in ("residual", "velocity")]
                    if self._is_declared:
                        _session.session().set_feedback(name, *parts)
                    else:
                        self._kept[name] = parts[0], parts[1]
        if has_answers:
            answers = {
                name: _bytes(tensors[label][_ANSWERS])
                for label, (name, _) in self._names.items()
                if _ANSWERS in tensors[label]
            }
            if self._is_declared:
                _core.set_answer_feedback(_session.session(), list(answers.items()))
            else:
                self._kept_answers = answers
        positions = dict(zip(self._names, self._parameters, strict=True))
        self._past_reference = {}
        self._reference = {positions[label]: rate for label, rate in state["rates"].items()}

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuses a state that does not fit, before anything has changed."""
        tensors, codecs = state["tensors"], state.get("codecs", {})
        if tensors.keys() != self._names.keys():
            other = sorted(tensors.keys() ^ self._names.keys())
            raise InvalidArgumentError(
                f"the saved error feedback is of other parameters: {', '.join(other)} are only on one side; load the state "
                "of the same model with the same compression"
            )
        for label, (_, shape) in self._names.items():
            for kind, tensor in tensors[label].items():
                if tuple(tensor.shape) != shape:
                    raise InvalidArgumentError(
                        f"the saved {kind} of {label} has the shape {list(tensor.shape)} instead of {list(shape)}; load the "
                        "state of the same model"
                    )
            if _ANSWERS in tensors[label] and codecs.get(label) != self._codecs[label]:
                raise InvalidArgumentError(
                    f"the saved error feedback of {label} is of the compression {codecs.get(label)} instead of "
                    f"{self._codecs[label]}; load the state of the same model with the same compression"
                )


def scale_in_place(gradient: torch.Tensor, factor: float) -> None:
    """Multiplies a gradient that nobody else uses; does nothing for a factor of 1."""
    if factor != 1.0:
        with torch.no_grad():
            gradient.mul_(factor)


def _floats(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
