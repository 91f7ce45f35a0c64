"""How the values of a state travel to a worker that comes to an elastic job. `gradlane._state` says from which worker.

A value is known by what it offers, and not by the framework that it is of: variables, an array, a `state_dict`, a container.
`gradlane.torch._state` and `gradlane.jax._state` have those of their frameworks. Anything else travels as a copy.

Containers are dictionaries, lists and tuples, and what is registered with JAX as a tree. What is in them travels as it does
alone: variables, modules and arrays in a list get their values where they are. In a copy of the list they would be others than
those with which the loop trains.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gradlane import _session
from gradlane._objects import broadcast_bytes, broadcast_object
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError


@dataclass(frozen=True)
class Route:
    """The way of one value."""

    name: str
    """A prefix of the names of its transfers."""
    donor: int
    members: ProcessSet
    """The donor, and those that receive."""

    def beyond(self, place: str) -> Route:
        """The way of a part of the value."""
        return Route(f"{self.name}.{place}", self.donor, self.members)

    @property
    def is_donor(self) -> bool:
        """Whether this worker sends."""
        return _session.rank() == self.donor

    def bytes(self, payload: bytes | None) -> memoryview:
        """Sends the bytes that the donor gives; the others give None."""
        return broadcast_bytes(payload, self.donor, self.name, process_set=self.members)

    def object(self, value: Any) -> Any:
        """Sends the object that the donor gives."""
        return broadcast_object(value, self.donor, self.name, process_set=self.members)


class Part(Protocol):
    """One value of a state."""

    @property
    def kind(self) -> str:
        """What it is, the same on the donor and on a newcomer."""

    def form(self) -> list[list[Any]]:
        """Rows of plain values, which are equal on the donor and on a newcomer: a name, an element type and a shape."""

    def digest(self) -> str:
        """Equal on all workers that have the state; empty if the value may differ between them."""

    def travel(self, route: Route) -> Any:
        """Sends or receives the value, and returns what is to be the value of this worker then."""


@runtime_checkable
class Sent(Part, Protocol):
    """A part that can travel in one piece with others, because it knows the whole of what it sends."""

    def sent(self) -> Any:
        """What the donor sends; it pickles."""

    def taken(self, received: Any) -> Any:
        """Takes what was sent, and returns what is to be the value of this worker then."""


class InOnePiece(ABC):
    """A part that is sent as one object."""

    _value: Any

    @abstractmethod
    def sent(self) -> Any:
        """As `Sent.sent`."""

    @abstractmethod
    def taken(self, received: Any) -> Any:
        """As `Sent.taken`."""

    def travel(self, route: Route) -> Any:
        received = route.object(self.sent() if route.is_donor else None)
        return self._value if route.is_donor else self.taken(received)


def part_of(value: Any, above: tuple[int, ...] = ()) -> Part:
    """How a value travels. `above` has the containers that it is in, by their `id`."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return Copied(value)
    # Before what PyTorch knows, because models of Keras are modules where PyTorch is the backend.
    variables = _variables_of(value)
    if variables:
        return _Variables(value, variables)
    if _is_variable(value):
        return _Variable(value)
    torch = sys.modules.get("torch")
    if torch is not None and (isinstance(value, torch.Tensor | torch.nn.Module) or hasattr(value, "state_dict")):
        from gradlane.torch._state import part_of_torch

        return part_of_torch(value)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        from gradlane.jax._state import part_of_jax

        return part_of_jax(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return _Array(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _Stateful(value)
    if hasattr(value, "set_epoch") or (hasattr(value, "num_replicas") and hasattr(value, "rank")):
        return _Sampler(value)
    content = None if id(value) in above else _content_of(value)
    if content is not None:
        parts = {path: part_of(inner, (*above, id(value))) for path, inner in content.inner.items()}
        if any(part.kind != Copied.kind for part in parts.values()):
            whole = {path: part for path, part in parts.items() if isinstance(part, Sent)}
            return _Tree(value, content, parts) if len(whole) < len(parts) else _WholeTree(value, content, whole)
    return Copied(value)


class _Array:
    """An array of NumPy. It is received in place, unless it cannot be written."""

    kind = "array"

    def __init__(self, value: Any) -> None:
        self._value = value

    def form(self) -> list[list[Any]]:
        return [["array", str(self._value.dtype), list(self._value.shape)]]

    def digest(self) -> str:
        return digest_of([self._value.tobytes()])

    def travel(self, route: Route) -> Any:
        import numpy

        received = route.bytes(self._value.tobytes() if route.is_donor else None)
        if route.is_donor:
            return self._value
        return self.taken(numpy.frombuffer(received, self._value.dtype).reshape(self._value.shape))

    def sent(self) -> Any:
        return self._value

    def taken(self, received: Any) -> Any:
        import numpy

        if not self._value.flags.writeable:
            return numpy.array(received)
        self._value[...] = received
        return self._value


class _Variable(InOnePiece):
    """A variable of TensorFlow or of Keras, which can be assigned."""

    kind = "variable"

    def __init__(self, value: Any) -> None:
        self._value = value

    def form(self) -> list[list[Any]]:
        return [_row("variable", self._value)]

    def digest(self) -> str:
        return digest_of([_read(self._value).tobytes()])

    def sent(self) -> Any:
        return _read(self._value)

    def taken(self, received: Any) -> Any:
        self._value.assign(received)
        return self._value


class _Variables:
    """What has variables, such as a model or an optimizer of Keras, or a `tf.Module`."""

    kind = "variables"

    def __init__(self, value: Any, variables: Sequence[Any]) -> None:
        if hasattr(value, "jax_state_sync"):
            value.jax_state_sync()  # while a model of Keras trains with JAX, its variables have no values
        self._value = value
        optimizer = getattr(value, "optimizer", None)  # of a compiled model
        self._variables = [*variables, *_variables_of(optimizer)]
        # Other variables count on each worker alone, such as running statistics, metrics and the seeds of layers.
        self._alike = [*getattr(value, "trainable_variables", ()), *_alike_of(value), *_alike_of(optimizer)]

    def form(self) -> list[list[Any]]:
        return [_row(f"variable {at}", one) for at, one in enumerate(self._variables)]

    def digest(self) -> str:
        return digest_of(_read(one).tobytes() for one in self._alike) if self._alike else ""

    def travel(self, route: Route) -> Any:
        import numpy

        arrays = [_read(one) for one in self._variables]
        received = route.bytes(b"".join(one.tobytes() for one in arrays) if route.is_donor else None)
        if not route.is_donor:
            start = 0
            for variable, own in zip(self._variables, arrays, strict=True):
                part = received[start : start + own.nbytes]
                variable.assign(numpy.frombuffer(part, own.dtype).reshape(own.shape))
                start += own.nbytes
        return self._value


def _variables_of(value: Any) -> Sequence[Any]:
    """The variables that a value has, if it has some and all can be assigned."""
    try:
        variables = getattr(value, "variables", None)
    except Exception:  # a property of any class: modules of Flax, for example, refuse it
        return ()
    return variables if isinstance(variables, list | tuple) and all(map(_is_variable, variables)) else ()


def _is_variable(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("assign", "numpy", "shape", "dtype"))


def _alike_of(optimizer: Any) -> Sequence[Any]:
    """The variables of an optimizer of Keras, except gradients that each worker has added up for its next update."""
    if not hasattr(optimizer, "apply_gradients"):
        return ()
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    apart = {id(one) for one in getattr(inner, "_accumulated_gradients", ())}
    return [one for one in _variables_of(optimizer) if id(one) not in apart]


def _row(name: str, variable: Any) -> list[Any]:
    dtype = getattr(variable.dtype, "name", str(variable.dtype))
    if dtype == "string":
        raise InvalidArgumentError(f"the variable {variable.name} has text, which does not travel; take it out of the state")
    return [name, dtype, [int(n) for n in variable.shape]]


def _read(variable: Any) -> Any:
    """The value as an array of its own, because some backends show memory that nobody may write."""
    import numpy

    return numpy.array(variable.numpy(), order="C")


class _Sampler:
    """What deals out the data: only its epoch travels, because each worker has a share of its own."""

    kind = "sampler"

    def __init__(self, value: Any) -> None:
        self._value = value

    def form(self) -> list[list[Any]]:
        return [["sampler", type(self._value).__name__, []]]

    def digest(self) -> str:
        return ""

    def travel(self, route: Route) -> Any:
        epoch = route.object(getattr(self._value, "epoch", None))
        if epoch is not None and not route.is_donor:
            if hasattr(self._value, "set_epoch"):
                self._value.set_epoch(epoch)
            else:
                self._value.epoch = epoch
        return self._value


class _Stateful:
    """What has a state of its own, in `state_dict()`, and knows no tensors."""

    kind = "state"

    def __init__(self, value: Any) -> None:
        self._value = value

    def form(self) -> list[list[Any]]:
        return [["state of", type(self._value).__name__, []]]

    def digest(self) -> str:
        pickle.dumps(self._value.state_dict())  # an error costs the newcomer its start now, and no donor its training later
        return ""

    def travel(self, route: Route) -> Any:
        received = route.object(self._value.state_dict() if route.is_donor else None)
        if not route.is_donor:
            self._value.load_state_dict(received)
        return self._value


class Copied:
    """Any other value: a newcomer gets a copy of the donor's in the place of its own."""

    kind = "value"

    def __init__(self, value: Any) -> None:
        self._value = value

    def form(self) -> list[list[Any]]:
        return []

    def digest(self) -> str:
        pickle.dumps(self._value)  # as above
        return ""

    def travel(self, route: Route) -> Any:
        return route.object(self._value)

    def sent(self) -> Any:
        return self._value

    def taken(self, received: Any) -> Any:
        return received


@dataclass(frozen=True)
class _Content:
    """What is in a container."""

    inner: Mapping[str, Any]
    """By the path to it, in the same order on all workers."""
    put: Callable[[list[Any]], Any]
    """Puts other things in their place, and returns the container, or another one if it cannot be changed."""


def _content_of(value: Any) -> _Content | None:
    """The content of a container; None of anything else."""
    if isinstance(value, dict):
        keys = sorted(value, key=repr)
        return _Content({f"[{key!r}]": value[key] for key in keys}, lambda fresh: _put(value, keys, fresh))
    if isinstance(value, list):
        return _Content(_numbered(value), lambda fresh: _put(value, range(len(value)), fresh))
    if isinstance(value, tuple):
        make = getattr(value, "_make", type(value))  # of a named tuple
        return _Content(_numbered(value), lambda fresh: make(fresh))
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    leaves, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda one: one is not value)
    if any(leaf is value for _, leaf in leaves):
        return None
    inner = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    return _Content(inner, lambda fresh: jax.tree_util.tree_unflatten(structure, fresh))


def _numbered(values: Sequence[Any]) -> dict[str, Any]:
    return {f"[{at}]": value for at, value in enumerate(values)}


def _put(container: Any, places: Sequence[Any], fresh: Sequence[Any]) -> Any:
    for place, value in zip(places, fresh, strict=True):
        container[place] = value
    return container


class _Tree:
    """A container in which is more than plain values. Its parts travel one by one."""

    def __init__(self, value: Any, content: _Content, parts: Mapping[str, Part]) -> None:
        self._value, self._content, self._parts = value, content, parts
        self.kind = ARRAYS if all(part.kind in REPLACEABLE for part in parts.values()) else "container"

    def form(self) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for path, part in self._parts.items():
            for name, *rest in part.form() or [[Copied.kind]]:
                rows.append([f"{path}{name}" if name.startswith(("[", ".")) else f"{path} {name}", *rest])
        return rows

    def digest(self) -> str:
        digests = [part.digest() for part in self._parts.values()]
        return digest_of(one.encode() for one in digests) if any(digests) else ""

    def travel(self, route: Route) -> Any:
        fresh = [part.travel(route.beyond(str(at))) for at, part in enumerate(self._parts.values())]
        return self._value if route.is_donor else self._content.put(fresh)


class _WholeTree(InOnePiece, _Tree):
    """A container that travels in one piece."""

    def __init__(self, value: Any, content: _Content, parts: Mapping[str, Sent]) -> None:
        super().__init__(value, content, parts)
        self._sent = list(parts.values())

    def sent(self) -> Any:
        return [part.sent() for part in self._sent]

    def taken(self, received: Any) -> Any:
        return self._content.put([part.taken(one) for part, one in zip(self._sent, received, strict=True)])


ARRAYS = "arrays"
"""The kind of a container with nothing but arrays and plain values."""

REPLACEABLE = {Copied.kind, _Array.kind, "array of JAX", "tensor", ARRAYS}
"""The kinds of values that take the place of one another, as an array does that is None at the beginning."""


def digest_of(pieces: Iterator[bytes] | Sequence[bytes]) -> str:
    """A digest of these bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
