"""What all tests of the package share; `workers.py` runs tests on real workers."""

from __future__ import annotations

import pytest
from workers import *  # noqa: F403  pytest finds hooks and fixtures here


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith("test_torch"):
            item.add_marker(pytest.mark.torch)
