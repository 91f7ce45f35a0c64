"""Finds parameters that change while a backward pass makes their gradients.

Nothing but a hook can change a parameter then, and it has used a gradient of this worker alone, as an optimizer does that
steps during `backward()`. The weights of the workers would part in silence.

A change counts from the moment at which autograd has the gradient of the parameter until the backward pass ends. A hook
that runs earlier, as one before a forward pass that is computed again, may change the parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from gradlane.errors import FailedPreconditionError

T = TypeVar("T")

Named = tuple[str, torch.nn.Parameter]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element: the type that holds its bits."""

pass_now: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward pass that runs in this thread."""


class ParameterWatch:
    """Watches the parameters of one owner. Parameters are referred to by their position in the list."""

    def __init__(
        self,
        owner: T,
        named: Sequence[Named],
        ready: Callable[[T, int], None],
        before: Callable[[T, int], None] | None = None,
    ) -> None:
        """Puts hooks on the parameters, which work as long as `owner` lives.

        Args:
            ready: called when a parameter has got its gradient. Hooks that the parameter has already run before.
            before: called before a parameter gets its gradient.
        """
        self._named = [(name, weakref.ref(parameter)) for name, parameter in named]
        self._versions: dict[int, int] = {}
        """By position: the count of the parameter's changes when its gradient came, in the pass that runs."""
        self._copies: dict[int, torch.Tensor] = {}
        """What such a parameter held then, if it has hooks of others: `parameter.data` and NumPy count no changes."""
        self._pass = -1
        self.hooks: list[RemovableHandle] = []
        for position, (_, parameter) in enumerate(named):
            first = parameter.register_hook(lambda _: None)  # makes the table, which the hook itself looks at
            last = parameter.register_post_accumulate_grad_hook(self._last(weakref.ref(owner), position, ready))
            self.hooks += [first, last]
            of_tensor, of_gradient = _tables(parameter)
            others = {key: hook for key, hook in of_tensor.items() if key != first.id}
            # Not `move_to_end`: PyTorch reads the table as a plain dictionary, which does not know that order.
            of_tensor.clear()
            of_tensor[first.id] = self._first(weakref.ref(owner), position, (of_tensor, of_gradient), before)
            of_tensor.update(others)
        weakref.finalize(owner, remove_all, self.hooks).atexit = False

    def release(self, positions: Iterable[int]) -> None:
        """Raises if one of these parameters has changed since its gradient came, and ends the watch of them.

        The host waits for a device only if a parameter there has hooks of others.

        Raises:
            FailedPreconditionError: it has; it is named.
        """
        differing: list[tuple[str, torch.Tensor]] = []
        for position in positions:
            name, reference = self._named[position]
            version, copied = self._versions.pop(position, None), self._copies.pop(position, None)
            parameter = reference()
            if version is None or parameter is None:
                continue
            if parameter._version != version:
                raise _changed(name)
            if copied is not None:
                differing.append((name, differs(parameter, copied)))
        for name, differing_bits in differing:
            if differing_bits:
                raise _changed(name)

    def end(self) -> None:
        """Ends the watch of all parameters, as `release` does. A backward pass that ends calls it."""
        try:
            if self._versions:
                self.release(list(self._versions))
        finally:
            self._versions.clear()
            self._copies.clear()

    def _first(
        self,
        owner: weakref.ref[Any],
        position: int,
        tables: tuple[Any, Any],
        before: Callable[[Any, int], None] | None,
    ) -> Callable[[torch.Tensor], None]:
        """The hook that runs before all others. It does little, because it runs for every gradient."""
        _, parameter_of = self._named[position]
        of_tensor, of_gradient = tables
        versions = self._versions

        def gradient_has_come(_: torch.Tensor) -> None:
            parameter, living = parameter_of(), owner()
            if parameter is None or living is None:
                return
            if before is not None:
                before(living, position)
            if self._pass != (now := pass_now()):
                self._pass = now
                torch.autograd.Variable._execution_engine.queue_callback(self.end)
            versions[position] = parameter._version
            if (len(of_tensor) > 1 or len(of_gradient) > 1) and has_foreign_hooks(parameter):
                self._copies[position] = parameter.detach().clone()

        return ours(gradient_has_come)

    def _last(
        self, owner: weakref.ref[T], position: int, ready: Callable[[T, int], None]
    ) -> Callable[[torch.Tensor], None]:
        versions = self._versions
        name, _ = self._named[position]

        def gradient_is_ready(parameter: torch.Tensor) -> None:
            living = owner()
            if living is not None:
                if parameter._version != versions.get(position, parameter._version):
                    raise _changed(name)
                ready(living, position)

        return ours(gradient_is_ready)


Hook = TypeVar("Hook", bound=Callable[[torch.Tensor], None])


def ours(hook: Hook) -> Hook:
    """Marks a hook on a parameter as one of this package."""
    hook.gradlane = True  # type: ignore[attr-defined]
    # A copy of the parameter does without the hook, and needs no warning of that.
    hook.__torch_unserializable__ = True  # type: ignore[attr-defined]
    return hook


def has_foreign_hooks(parameter: torch.Tensor) -> bool:
    """Whether anything but this package has hooks on a parameter that a `ParameterWatch` watches.

    Such hooks see gradients before they are averaged.
    """
    if len(parameter._backward_hooks or ()) < 2 and len(parameter._post_accumulate_grad_hooks or ()) < 2:
        return False
    return any(not hasattr(hook, "gradlane") for table in _tables(parameter) for hook in table.values())


def differs(tensor: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
    """Whether the bits of two tensors differ: an element of the device, for which nobody has waited."""
    if tensor.is_sparse and copied.is_sparse and tensor._nnz() == copied._nnz():
        return differs(tensor._indices(), copied._indices()) | differs(tensor._values(), copied._values())
    if tensor.layout != copied.layout or tensor.shape != copied.shape or tensor.dtype != copied.dtype or tensor.device != copied.device:
        return torch.ones((), dtype=torch.bool)
    return (_bits(tensor) != _bits(copied)).any()


def remove_all(hooks: Iterable[RemovableHandle]) -> None:
    """Removes these hooks."""
    for hook in hooks:
        hook.remove()


def _tables(parameter: torch.Tensor) -> tuple[dict[int, Any], dict[int, Any]]:
    """The hooks of a parameter: before its gradient is accumulated, and after."""
    before: Any = parameter._backward_hooks
    after: Any = parameter._post_accumulate_grad_hooks
    return {} if before is None else before, {} if after is None else after


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.view(_BITS[plain.element_size()])


def _changed(name: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"another hook changed parameter {name} before its gradient was averaged, as an optimizer does that steps during "
        "backward(); give register_post_average_hook() what needs the average of a gradient"
    )
