"""`horovod.common.exceptions`: what `horovod.torch.elastic.run` answers by calling a training again."""

from __future__ import annotations

from gradlane.errors import Error as HorovodInternalError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):
    """Other workers train from now on. `State.commit` raises it on every worker at the same commit."""

    def __init__(self, skip_sync: bool = False) -> None:
        """With `skip_sync` the workers have the same state already."""
        super().__init__("the workers of the job have changed")
        self.skip_sync = skip_sync
