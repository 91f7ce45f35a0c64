"""Refuses to be imported without TensorFlow, or with one that is too old."""

from __future__ import annotations

from gradlane.errors import UnsupportedError

OLDEST = (2, 16)
"""The oldest release that is tested, and the first with Keras 3."""


def check_release(version: str) -> None:
    """Raises unless TensorFlow's `version` is supported.

    Raises:
        UnsupportedError: it is too old.
    """
    major, minor = (int(number) for number in version.split(".")[:2])
    if (major, minor) < OLDEST:
        raise UnsupportedError(
            f"TensorFlow {version} is installed, and gradlane.tensorflow needs {OLDEST[0]}.{OLDEST[1]} or later; run "
            "pip install --upgrade tensorflow"
        )


try:
    import tensorflow
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "gradlane.tensorflow needs TensorFlow; run pip install 'gradlane[tensorflow]'", name="tensorflow"
    ) from error

check_release(tensorflow.__version__)
