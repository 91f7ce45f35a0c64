"""Refuses to be imported without Keras, or with one that is too old."""

from __future__ import annotations

from gradlane.errors import UnsupportedError

OLDEST = 3
"""The first major release with several backends."""

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "keras":
        raise
    raise ModuleNotFoundError("gradlane.keras needs Keras; run pip install 'gradlane[keras]'", name="keras") from error


def check_release(version: str) -> None:
    """Raises unless Keras' `version` is supported.

    Raises:
        UnsupportedError: it is too old.
    """
    if int(version.split(".")[0]) < OLDEST:
        raise UnsupportedError(
            f"Keras {version} is installed, and gradlane.keras needs {OLDEST}.0 or later; run pip install --upgrade "
            "keras, or use gradlane.tensorflow.DistributedGradientTape"
        )


check_release(keras.__version__)
