"""BytePS scripts run unchanged.

    python -m gradlane.compat.byteps train.py --epochs 3      # the script says `import byteps.torch as bps`

After `import gradlane.compat.byteps`, `import byteps.torch` finds the modules of this package. A script for Gradlane
needs none of this. What differs from BytePS is what hurt its users: names that workers use for different tensors,
members that die and members that hang are errors with a name in them; and a broadcast is bitwise.

If BytePS itself is installed, `import byteps` finds it, and there is a warning.
"""

from gradlane.compat._alias import install

__all__: list[str] = []

_TAPE = "use DistributedGradientTape or DistributedOptimizer of byteps.tensorflow"

_SSH = "run bpslaunch on each host with the DMLC variables, or use `gradlane run`, torchrun, mpirun or srun"

_MISSING = {
    "byteps.launcher": _SSH,
    "byteps.launcher.dist_launcher": _SSH,
    "byteps.mxnet": "use gradlane.push_pull, which takes NumPy arrays and what offers DLPack",
    "byteps.misc": "its scripts for ImageNet are in BytePS's repository",
    "byteps.tensorflow.distribute": _TAPE,
    "byteps.tensorflow.distribute.cross_device_ops": _TAPE,
    "byteps.tensorflow.distribute.mirrored_strategy": _TAPE,
    "byteps.server": "start a server with `bpslaunch`, or with `gradlane server`",
}

install("byteps", __name__, _MISSING)
