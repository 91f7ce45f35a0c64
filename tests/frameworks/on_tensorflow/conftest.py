"""Tests of this folder run with the native operations, and with Python functions."""

from __future__ import annotations

import pytest

SETTING = "GRADLANE_TENSORFLOW_OP"


@pytest.fixture(params=["native", "fallback"])
def implementation(request, monkeypatch):
    """Which operations graphs have."""
    from gradlane.tensorflow import _native

    if request.param == "native":
        _native.load()
    monkeypatch.setenv(SETTING, request.param)
    return request.param
