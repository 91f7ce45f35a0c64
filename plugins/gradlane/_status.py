"""What a worker can be asked about itself."""

from __future__ import annotations

from collections.abc import Mapping

from gradlane import _core, _session


def metrics() -> dict[str, int | float]:
    """Counters and gauges of this worker since `init()`, among them:

    - `push_bytes`, `pull_bytes`: what went to the servers and came from them, payload only.
    - `bytes_copied`: what was copied between buffers in this process; 0 for host tensors, which are sent from where
      they lie.
    - `handles_live`: operations that have not ended.
    """
    return _session.session().metrics()


def layout() -> str:
    """The declared tensors, their parts, and which server owns each, as a table."""
    return _session.session().layout()


def print_config(config: Mapping[str, object] | None = None) -> None:
    """Prints every setting, its value and where the value came from: argument, environment, file or default."""
    print(_core.config_report({name: str(value) for name, value in (config or {}).items()}))
