"""Hooks on modules that do nothing in copies of the modules."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch


class Hook:
    """A hook on a module. In a copy of the module (`copy.deepcopy`, `pickle`, `torch.save`) it does nothing."""

    def __init__(self, call: Callable[..., None] | None = None) -> None:
        # A compiler that traces it would run it on its own stand-ins for parameters and settings. So the graph of a
        # compiled model ends before each module that has one.
        self._call = None if call is None else torch.compiler.disable(call)

    def __call__(self, *arguments: object) -> None:
        if self._call is not None:
            self._call(*arguments)

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


def forget_compiled() -> None:
    """Makes PyTorch compile models anew.

    A graph that was made before a module got a hook runs without it, and PyTorch uses it for other modules of the class.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
