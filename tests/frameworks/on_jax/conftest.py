"""Each test of this folder runs with XLA's custom call, and with Python functions."""

from __future__ import annotations

import jax
import pytest
from calls import SETTING


@pytest.fixture(params=["native", "fallback"])
def call(request, monkeypatch):
    """What runs a reduction. What was compiled with the other one is forgotten."""
    monkeypatch.setenv(SETTING, request.param)
    jax.clear_caches()
    return request.param
