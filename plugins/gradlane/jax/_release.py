"""Refuses to be imported without JAX, or with one that is too old."""

from __future__ import annotations

from gradlane.errors import UnsupportedError

OLDEST = (0, 8)
"""The oldest release that is tested. Before it, `pmap` cannot be recognised before it fails with an error of its own."""


def check_release(version: str) -> None:
    """Raises unless JAX's `version` is supported.

    Raises:
        UnsupportedError: it is too old.
    """
    major, minor = (int(number) for number in version.split(".")[:2])
    if (major, minor) < OLDEST:
        raise UnsupportedError(
            f"JAX {version} is installed, and gradlane.jax needs {OLDEST[0]}.{OLDEST[1]} or later; run "
            "pip install --upgrade jax"
        )


try:
    import jax
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError("gradlane.jax needs JAX; run pip install 'gradlane[jax]'", name="jax") from error

check_release(jax.__version__)
