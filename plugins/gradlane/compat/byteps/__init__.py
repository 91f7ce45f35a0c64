"""BytePS scripts run unchanged.

    python -m gradlane.compat.byteps train.py --epochs 3      # the script says `import byteps.torch as bps`

After `import gradlane.compat.byteps`, `import byteps.torch` finds the modules of this package. A script for Gradlane
needs none of this. What differs from BytePS is what hurt its users: names that workers use for different tensors,
members that die and members that hang are errors with a name in them; and a broadcast is bitwise.

If BytePS itself is installed, `import byteps` finds it, with a warning.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__: list[str] = []

_NAME = "byteps"


class _Alias(Loader):
    """Loads a module of this package under BytePS's name for it."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It has run under its own name, which `importlib.reload` and `pickle` look for.
        module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    """Finds `byteps` and its submodules in this package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != _NAME:
            return None
        real = __name__ + fullname[len(_NAME) :]
        found = importlib.util.find_spec(real)
        if found is None:
            return None
        return ModuleSpec(fullname, _Alias(real), is_package=found.submodule_search_locations is not None)


def _is_installed() -> bool:
    """Whether `import byteps` finds something else than this package's stand-in."""
    present = sys.modules.get(_NAME)
    spec = importlib.util.find_spec(_NAME) if present is None else present.__spec__
    return spec is not None and not (spec.origin or "").startswith(str(Path(__file__).parent))


def _install() -> None:
    if _is_installed():
        warnings.warn(
            "BytePS is installed, and `import byteps` finds it instead of Gradlane; run `pip uninstall byteps`",
            RuntimeWarning,
            stacklevel=3,
        )
    else:
        # The first finder: the usual one would load this package's files a second time, under the other name.
        sys.meta_path.insert(0, _Finder())


_install()
