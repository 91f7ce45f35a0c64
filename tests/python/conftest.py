"""What all tests of the package share; `workers.py` runs tests on real workers."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from workers import *  # noqa: F403  pytest finds hooks and fixtures here
from workers import shapes

OTHERS_THAT_TAKE_MINUTES = ("test_gpu_check.py", "test_wheel.py", "test_examples.py", "test_kubernetes.py", "test_kubernetes_elastic.py")
"""Files whose time is not that of jobs for marked tests."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith("test_torch"):
            item.add_marker(pytest.mark.torch)
    # In a process of pytest-xdist, which hands out files in this order: the last ones shall be short, so that all processes end together.
    if hasattr(config, "workerinput"):
        jobs = defaultdict[Path, set](set)
        for item in items:
            jobs[item.path].update(shapes(item))
        workers = {path: sum(job.workers for job in theirs) for path, theirs in jobs.items()}
        items.sort(key=lambda item: (item.path.name not in OTHERS_THAT_TAKE_MINUTES, -workers[item.path]))
