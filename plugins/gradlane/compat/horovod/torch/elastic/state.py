"""`horovod.torch.elastic.state`: what belongs to a training, and can go back to its last commit."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

import gradlane.torch as gl
from gradlane import _session, elastic
from gradlane._objects import gather_by_rank
from gradlane.compat.horovod.torch.elastic.sampler import ElasticSampler
from gradlane.errors import InvalidArgumentError, RootLostError

__all__ = ["ObjectState", "State", "TorchState"]

_numbers = itertools.count()
"""One for each state, in the order in which a script makes them, which is the same on all workers."""


class State:
    """What `run` needs of a state. A subclass says how its values are saved, restored and made equal on all workers."""

    _cross: Callable[[], None] | None = None
    """Comes to the next boundary, inside of `run`."""

    def __init__(self, bcast_object: object = None, get_rank: object = None) -> None:
        """The arguments are those of Horovod, and have no effect."""
        del bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Calls these, in their order, each time when the workers have changed, before newcomers get the state."""
        self._reset_callbacks.extend(callbacks)

    def commit(self) -> None:
        """Saves the values, to which a failed training goes back, and does what `check_host_updates` does."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Comes to the boundary between two steps. Does nothing outside of `run`.

        Call it as often as the other workers, also on one that writes files meanwhile.

        Raises:
            HostsUpdatedInterrupt: other workers train from now on; `run` calls the training again.
        """
        if self._cross is not None:
            self._cross()

    def on_reset(self) -> None:
        """Called when the workers have changed: calls `reset`, and what was registered."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """For subclasses; does nothing."""

    def save(self) -> None:
        """Keeps the values as they are now."""
        raise NotImplementedError(f"{type(self).__name__} must define save()")

    def restore(self) -> None:
        """Brings back the values that were kept last."""
        raise NotImplementedError(f"{type(self).__name__} must define restore()")

    def sync(self) -> None:
        """Gives all workers the values of one. All of them call it."""
        raise NotImplementedError(f"{type(self).__name__} must define sync()")

    def values_to_send(self) -> dict[str, Any]:
        """The values that newcomers get while the job forms again. Without them, they get theirs in `sync`."""
        return {}

    def take(self, values: Mapping[str, Any]) -> None:
        """Makes these the values of this worker."""
        assert not values, "a state with values has a method of its own"

    def follow_change(self) -> None:
        """Called on all workers after a change, when newcomers have the values that were sent."""
        self.sync()


class ObjectState(State):
    """A state whose values are attributes: `ObjectState(epoch=0, history=[])`."""

    def __init__(self, bcast_object: object = None, get_rank: object = None, **kwargs: Any) -> None:
        """Each keyword makes an attribute.

        A value with `state_dict` and `load_state_dict`, such as a model, an optimizer or a scheduler, is saved, restored and
        received in its place. Of a sampler with `set_epoch` this is so for the epoch. Any other value is copied.

        Raises:
            InvalidArgumentError: a name is that of a method.
        """
        super().__init__(bcast_object, get_rank)
        for name in kwargs:
            if hasattr(type(self), name):
                raise InvalidArgumentError(f"a value of a state cannot be called {name}, which is one of its methods")
        self._number = next(_numbers)
        self._names = tuple(kwargs)
        vars(self).update(kwargs)
        self._saved: dict[str, Any] = {}
        self.save()

    def save(self) -> None:
        """Copies the values to memory."""
        self._saved = {name: copy.deepcopy(_content(getattr(self, name))) for name in self._names}

    def restore(self) -> None:
        """Brings back the values of the last `save`."""
        for name, content in self._saved.items():
            self._put(name, copy.deepcopy(content))

    def sync(self) -> None:
        """Gives all workers the values of the lowest rank, and divides samplers anew. All workers call it.

        Raises:
            MismatchError: workers have other values, or models of other shapes (they are named).
        """
        if _session.is_newcomer():
            return  # the others made this call long ago
        for root in elastic.world().ranks:
            try:
                self._broadcast(root)
                is_there = True
            except RootLostError:
                is_there = False
            # One that has received everything does not go on without those that have not.
            if all(gather_by_rank(is_there, f"horovod.elastic.{self._number}.sync", plain=True).values()):
                break
        else:
            raise RootLostError("each worker was lost while it sent the state of the training")
        self._gather_indices()
        self.save()

    def values_to_send(self) -> dict[str, Any]:
        """All but samplers of Horovod, which are gathered from all workers."""
        values = {name: getattr(self, name) for name in self._names}
        return {name: value for name, value in values.items() if not isinstance(value, ElasticSampler)}

    def take(self, values: Mapping[str, Any]) -> None:
        """Makes these the values of this worker."""
        for name, value in values.items():
            if getattr(self, name) is not value:
                setattr(self, name, value)

    def follow_change(self) -> None:
        """Divides samplers anew. A subclass with a `sync` of its own gets the call of it."""
        if type(self).sync is not ObjectState.sync:
            self.sync()
        else:
            self._gather_indices()

    def _put(self, name: str, content: Any) -> None:
        value = getattr(self, name)
        if _has_state(value):
            value.load_state_dict(content)
        elif hasattr(value, "set_epoch"):
            if content is not None:
                value.set_epoch(content)
        else:
            setattr(self, name, content)

    def _broadcast(self, root: int) -> None:
        prefix = f"horovod.elastic.{self._number}"
        rest: list[str] = []
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, torch.nn.Module):
                tensors = {key: tensor for key, tensor in value.state_dict().items() if isinstance(tensor, torch.Tensor)}
                gl.broadcast_parameters(tensors, root, f"{prefix}.{name}.")
                if len(tensors) == len(value.state_dict()):
                    continue
            elif isinstance(value, torch.optim.Optimizer):
                gl.broadcast_optimizer_state(value, root, f"{prefix}.{name}.")
                continue
            if not isinstance(value, ElasticSampler):
                rest.append(name)
        contents = {name: _content(getattr(self, name)) for name in rest} if _session.rank() == root else None
        for name, content in gl.broadcast_object(contents, root, prefix).items():
            if _session.rank() != root:
                self._put(name, content)

    def _gather_indices(self) -> None:
        """Lets all workers know what each has processed, and divides the rest."""
        samplers = [value for name in self._names if isinstance(value := getattr(self, name), ElasticSampler)]
        if not samplers:
            return
        everyones = gather_by_rank([one.state_dict() for one in samplers], f"horovod.elastic.{self._number}.indices")
        states = [everyones[rank] for rank in sorted(everyones)]
        for at, sampler in enumerate(samplers):
            epoch = states[0][at]["epoch"]  # that of a worker that has trained: those that have come have the last ranks
            processed = [of[at]["processed_indices"] for of in states if of[at]["epoch"] == epoch]
            sampler.load_state_dict({"epoch": epoch, "processed_indices": set().union(*processed)})


class TorchState(ObjectState):
    """The state of a training with PyTorch: `TorchState(model, optimizer, epoch=0, batch=0, sampler=sampler)`."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        """`kwargs` may have further models and optimizers, and everything that `ObjectState` takes."""
        super().__init__(model=model, optimizer=optimizer, **kwargs)


def _has_state(value: object) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _content(value: Any) -> Any:
    """What is kept of a value."""
    if _has_state(value):
        return value.state_dict()
    if hasattr(value, "set_epoch"):
        return getattr(value, "epoch", None)
    return value
