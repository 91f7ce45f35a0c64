"""Makes the helpers of `tests/python` usable here, and says which releases are tested."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "python"), str(Path(__file__).parent)]

# Workers share the cores of one machine. Two threads run operations, because more would hide that one of them blocks.
os.environ.setdefault("WORKER_TEST_LAUNCH_TIMEOUT", "600")  # compiling graphs takes long
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")

from workers import *  # noqa: F403  pytest finds hooks and fixtures here

PACKAGES = ("tensorflow-cpu", "tensorflow", "keras", "jax", "optax", "torch", "numpy")


def pytest_report_header() -> str:
    found = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    return "releases: " + ", ".join(f"{name} {found[name]}" for name in PACKAGES if name in found)
