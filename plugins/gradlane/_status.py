"""What a worker can be asked about itself."""

from __future__ import annotations

from collections.abc import Mapping

from gradlane import _core, _session


def metrics() -> dict[str, int | float]:
    """Counters and gauges of this worker since `init()`:

    - `submissions`, `resolved`, `failed`: operations accepted, ended, and of these ended by an error.
    - `pushes`, `pulls`: contributions sent, repeats included, and sums received; both count parts, not tensors.
    - `push_bytes`, `pull_bytes`: what went to the servers and came from them, payload only.
    - `header_bytes`: what went both ways beside the payload.
    - `repeats`: exchanges that were repeated after a loss.
    - `copied_bytes`: what was copied between buffers in this process. Over a network 0 for host tensors, which are sent
      from where they lie; to a server on this machine every contribution once, into memory that the server reads.
    - `local_sums`, `local_bytes`: parts that the workers of one machine reduced among themselves, without a server, and
      their length.
    - `d2h_bytes`, `h2d_bytes`: what was copied from CUDA devices to be sent, and of sums to them.
    - `connections`: connections to servers that were made, again after a loss included.
    - `shm_connections`: those of them that go through shared memory, to servers on this machine.
    - `handles_live`: operations that have not ended.

    A job of one sends nothing, and counts nothing.
    """
    return _session.session().metrics()


def layout() -> str:
    """The declared tensors, their parts, and which server owns each, as a table."""
    return _session.session().layout()


def print_config(config: Mapping[str, object] | None = None) -> None:
    """Prints every setting, its value and where the value came from: argument, environment, file or default."""
    print(_core.config_report({name: str(value) for name, value in (config or {}).items()}))
