"""The state of this worker: metrics, layout and settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from gradlane import _core, _session


def metrics() -> dict[str, int | float]:
    """Counters and gauges of this worker since `init()`, by name.

    `help(gradlane.metrics)` and the command `gradlane metrics` list them. A name ends with its unit. A job of one sends
    nothing, so all its counters are 0. A gauge that nothing was measured for yet is missing, such as `clock_error_nanoseconds` in
    the first seconds. Metrics with labels, such as those of links, are in `metrics_text()` only.
    """
    return _session.session().metrics()


def metrics_text() -> str:
    """The values of `metrics()` in Prometheus' text format, with the worker's rank as a label.

    Serve it under `/metrics`, or write it to a file that a collector reads.
    """
    return _session.session().metrics_text()


def _rows() -> Iterator[str]:
    """A line for each metric of a worker that is one number."""
    for row in _core.metrics_table():
        if row["scope"] == "worker" and not row["labels"]:
            yield f"- `{row['name']}`: {row['help']}"
            if row["kind"] == "histogram":
                yield f"- `{row['name'].rpartition('_')[0]}_count`: How many of them there were."


metrics.__doc__ = "\n    ".join([str(metrics.__doc__).rstrip(), "", *_rows(), ""])


def layout() -> str:
    """The declared tensors, their parts, and which server owns each, as a table."""
    return _session.session().layout()


def print_config(config: Mapping[str, object] | None = None) -> None:
    """Prints every setting, its value and where the value came from: argument, environment, file or default."""
    print(_core.config_report({name: str(value) for name, value in (config or {}).items()}))


_NEIGHBOURS = ("numpy", "torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "tensorflow", "keras", "jax", "lightning", "ray")


def show_versions() -> None:
    """Prints the versions that a report of a problem needs: of Gradlane, Python, the system and the frameworks here.

    Imports none of the frameworks. `gradlane doctor` says more about the machine.
    """
    import platform  # here, because the two would take a quarter of the time of importing gradlane
    from importlib import metadata

    print(f"gradlane {_core.__version__}")
    print(f"{platform.python_implementation()} {platform.python_version()}")
    print(platform.platform())
    for name in _NEIGHBOURS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            print(f"{name} {metadata.version(name)}")
