"""Horovod scripts for PyTorch run with Gradlane, as far as it has what they call.

    python -m gradlane.compat.horovod train.py        # the script says `import horovod.torch as hvd`

After `import gradlane.compat.horovod`, `import horovod.torch` finds the modules of this package. `Adasum` and elastic
jobs are refused by name. `horovodrun` is not needed: `gradlane run`, torchrun, mpirun and srun start the
processes.

If Horovod itself is installed, `import horovod` finds it, and there is a warning.
"""

from gradlane.compat._alias import install

__all__: list[str] = []

install("horovod", __name__)
