"""`horovod.torch.mpi_ops`, from which scripts import operations by another path: the names of `horovod.torch`."""

from gradlane.compat.horovod.torch import *  # noqa: F403
from gradlane.compat.horovod.torch import __all__ as __all__
from gradlane.compat.horovod.torch import __getattr__ as __getattr__
