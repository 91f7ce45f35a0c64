"""Makes a package of another system importable, with the modules of `gradlane.compat` in it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


class _Alias(Loader):
    """Loads one of our modules under the other system's name for it."""

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
    """Finds the package `name` and its submodules in the package `real`, or says why one is `missing`."""

    def __init__(self, name: str, real: str, missing: Mapping[str, str]) -> None:
        self._name, self._real, self._missing = name, real, missing

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != self._name:
            return None
        if fullname in self._missing:
            # Not an UnsupportedError, because scripts expect an ImportError where they try whether a module is there.
            raise ModuleNotFoundError(f"{fullname} does not exist here; {self._missing[fullname]}", name=fullname)
        real = self._real + fullname[len(self._name) :]
        found = importlib.util.find_spec(real)
        if found is None:
            return None
        return ModuleSpec(fullname, _Alias(real), is_package=found.submodule_search_locations is not None)


def install(name: str, real: str, missing: Mapping[str, str] | None = None) -> None:
    """Makes `import name` find the package `real`, unless something else of that name is installed: then warns.

    Args:
        missing: the other system's modules that `real` lacks, each with what to use instead.
    """
    present = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if present is None else present.__spec__
    # A stand-in of ours has its files in this folder.
    if spec is not None and not (spec.origin or "").startswith(str(Path(__file__).parent)):
        warnings.warn(
            f"{name} is installed, and `import {name}` finds it instead of Gradlane; run `pip uninstall {name}`",
            RuntimeWarning,
            stacklevel=3,
        )
    else:
        # The first finder: the usual one would load our files a second time, under the other name.
        sys.meta_path.insert(0, _Finder(name, real, missing or {}))
