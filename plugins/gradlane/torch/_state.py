"""How values of PyTorch travel to a worker that comes to an elastic job: modules, optimizers and tensors.

Tensors are received where the newcomer has them, bit for bit. The others keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gradlane import _plain
from gradlane._parts import Part, Route, digest_of
from gradlane.torch import _tensors
from gradlane.torch._aliases import without_aliases
from gradlane.torch._copies import Averaging, own_class
from gradlane.torch.broadcast import apart, put_tensors, take_tensors
from gradlane.torch.groups import broadcast_all


def part_of_torch(value: Any) -> Part:
    """How this tensor, module, or object with a `state_dict` travels."""
    if isinstance(value, torch.Tensor):
        return _Tensor(value)
    return _Module(value) if isinstance(value, torch.nn.Module) else _Stateful(value)


class _Tensor:
    """A tensor of the state."""

    kind = "tensor"

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value

    def form(self) -> list[list[Any]]:
        _tensors.check_place(self._value)
        return [_row("tensor", self._value)]

    def digest(self) -> str:
        return digest_of(_bytes_of([self._value]))

    def travel(self, route: Route) -> torch.Tensor:
        _broadcast([self._value], route)
        return self._value


class _Module:
    """A module: its parameters and buffers, and what else is in its `state_dict`."""

    kind = "module"

    def __init__(self, value: torch.nn.Module) -> None:
        self._value = value
        state = value.state_dict()
        tensors = {name: state[name] for name in sorted(state) if isinstance(state[name], torch.Tensor)}
        self._distinct, self._aliases = without_aliases(tensors)
        self._extra = {name: entry for name, entry in state.items() if name not in tensors}

    def form(self) -> list[list[Any]]:
        aliases = [[name, "the same tensor as", [same]] for name, same in sorted(self._aliases.items())]
        extra = [[name, "no tensor", []] for name in sorted(self._extra)]
        return [_row(name, tensor) for name, tensor in self._distinct.items()] + aliases + extra

    def digest(self) -> str:
        # Not the buffers: each worker has running statistics of its own until the next forward pass.
        return digest_of(_bytes_of(parameter for _, parameter in sorted(self._value.named_parameters())))

    def travel(self, route: Route) -> torch.nn.Module:
        _broadcast(list(self._distinct.values()), route)
        if self._extra:
            extra = Route(f"{route.name}.extra", route.donor, route.members).object(self._extra)
            if not route.is_donor:
                self._value.load_state_dict({**self._value.state_dict(), **extra})
        return self._value


class _Stateful:
    """An optimizer, or anything else whose `state_dict` may hold tensors, such as a scheduler or a scaler.

    Its state may grow with its first step, so a newcomer takes the structure of the donor's.
    """

    kind = "state with tensors"

    def __init__(self, value: Any) -> None:
        self._value = value

    def form(self) -> list[list[Any]]:
        kind = own_class(type(self._value)) if self._is_optimizer else type(self._value)
        rows = [["state of", kind.__name__, []]]
        if self._is_optimizer:
            for number, group in enumerate(self._value.param_groups):
                rows += [_row(f"parameter {number}.{at}", parameter) for at, parameter in enumerate(group["params"])]
        return rows

    def digest(self) -> str:
        tensors: list[torch.Tensor] = []
        outline = take_tensors(self._state(), tensors)
        if not self._is_optimizer:
            return ""
        apart(tensors)  # an error costs the newcomer its start now, and no donor its training later
        return digest_of([_plain.encode(_in_order(outline)), *_bytes_of(_in_order_of(outline, tensors))])

    def travel(self, route: Route) -> Any:
        tensors: list[torch.Tensor] = []
        told: Any = None
        if route.is_donor:
            outline = take_tensors(self._state(), tensors)
            tensors = apart(tensors)
            told = [outline, [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]]
        outline, forms = Route(f"{route.name}.outline", route.donor, route.members).object(told)
        if not route.is_donor:
            tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in forms]
        _broadcast(tensors, route)
        if not route.is_donor:
            self._load(put_tensors(outline, tensors))
        return self._value

    @property
    def _is_optimizer(self) -> bool:
        return isinstance(self._value, torch.optim.Optimizer)

    def _state(self) -> Any:
        if isinstance(self._value, Averaging):
            # Without what error feedback keeps, which is another thing on each worker.
            return own_class(type(self._value)).state_dict(self._value)
        return self._value.state_dict()

    def _load(self, state: Any) -> None:
        if isinstance(self._value, Averaging):
            own_class(type(self._value)).load_state_dict(self._value, state)
        else:
            self._value.load_state_dict(state)


def _broadcast(tensors: list[torch.Tensor], route: Route) -> None:
    if tensors:
        names = [f"{route.name}.{position}" for position in range(len(tensors))]
        broadcast_all(tensors, names, route.donor, route.members, notes_changes=not route.is_donor)


def _row(name: str, tensor: torch.Tensor) -> list[Any]:
    return [name, _tensors.dtype_name(tensor.dtype), list(tensor.shape)]


def _bytes_of(tensors: Iterable[torch.Tensor]) -> Iterator[bytes]:
    for tensor in tensors:
        plain = _tensors.dense(tensor.detach()).cpu()
        if plain.numel():
            yield _tensors.vector(plain).view(torch.uint8).numpy().tobytes()


def _in_order(value: Any) -> Any:
    """Nested dictionaries as pairs in the order of their keys, because the order of a state depends on its history.

    Positions of tensors are left out, because they depend on that order, too.
    """
    match value:
        case _plain.Position():
            return "tensor"
        case dict():
            return [[str(key), _in_order(value[key])] for key in sorted(value, key=str)]
        case list() | tuple():
            return [_in_order(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return type(value).__name__  # what it holds is nobody's business here, and may be an address


def _in_order_of(outline: Any, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors in the order of `_in_order`."""
    match outline:
        case _plain.Position():
            yield tensors[outline.index]
        case dict():
            for key in sorted(outline, key=str):
                yield from _in_order_of(outline[key], tensors)
        case list() | tuple():
            for item in outline:
                yield from _in_order_of(item, tensors)
        case _:
            return
