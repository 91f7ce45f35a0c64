"""The versions of what this process runs besides Gradlane."""

from __future__ import annotations

import sys

_FRAMEWORKS = ("torch", "tensorflow", "jax", "keras", "numpy")


def software() -> dict[str, str]:
    """The versions of Python and of the frameworks that are imported, by name. It imports none."""
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in _FRAMEWORKS}
    # The version of PyTorch is of a class of its own, derived from `str`.
    known = {name: str(version) for name, version in versions.items() if isinstance(version, str)}
    return {"python": sys.version.split()[0], **known}
