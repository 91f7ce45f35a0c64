"""Horovod scripts for PyTorch run with Gradlane, as far as it has what they call.

    python -m gradlane.compat.horovod train.py        # the script says `import horovod.torch as hvd`

After `import gradlane.compat.horovod`, `import horovod.torch` finds the modules of this package. What Gradlane lacks,
such as `Adasum` and Horovod's other plugins, is refused by name, with what to use instead. `horovodrun` is not needed:
`gradlane run`, torchrun, mpirun and srun start the processes. `gradlane run -n 4 --elastic 2:8` stands for
`horovodrun -np 4 --min-np 2 --max-np 8`; see `gradlane.compat.horovod.torch.elastic`.

If Horovod itself is installed, `import horovod` finds it, and there is a warning.
"""

from gradlane.compat._alias import install

__all__: list[str] = []

_MISSING = {
    "horovod.tensorflow": "use gradlane.tensorflow",
    "horovod.keras": "use gradlane.keras",
    "horovod.mxnet": "use gradlane.push_pull, which takes NumPy arrays and what offers DLPack",
    "horovod.spark": "start the processes with `gradlane run`, torchrun, mpirun or srun",
    "horovod.ray": 'use Ray Train with TorchConfig(backend="gradlane") after `import gradlane.torch`',
    "horovod.runner": "start the processes with `gradlane run`, torchrun, mpirun or srun",
    "horovod.elastic": "use horovod.torch.elastic",
}

install("horovod", __name__, _MISSING)
