"""What all tests of the package share; `workers.py` runs tests on real workers."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from workers import *  # noqa: F403  pytest finds hooks and fixtures here
from workers import shapes

LONGEST = (
    "test_gpu_check.py",
    "test_examples.py",
    "test_elastic_join.py",
    "test_bench.py",
    "test_torch_compile.py",
    "test_ctl.py",
    "test_torch_compression.py",
    "test_kubernetes.py",
    "test_torch_horovod_elastic.py",
    "test_torch_feedback_jobs.py",
    "test_kubernetes_elastic.py",
    "test_torch_reconfigure.py",
    "test_restore.py",
    "test_torch_survivors.py",
    "test_wheel.py",
)
"""Files that take a minute or more, but do not show it by the jobs that their tests are marked for; the longest first."""


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
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: (places.get(item.path.name, len(places)), -workers[item.path]))
