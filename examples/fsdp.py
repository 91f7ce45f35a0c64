"""Trains the net of digits.py in shards: FSDP2 with the backend "gradlane", on any number of workers.

python fsdp.py --steps 100
gradlane run -n 2 -s 2 -- python fsdp.py --steps 100 --check

Each worker keeps its shard of the weights and of the optimizer's state. A layer is gathered for its forward and
backward pass, and each worker gets the mean of the gradients of its shard. `--check` makes the accuracy a condition of
success.
"""

from __future__ import annotations

import sys

import gradlane.torch as gl
import torch
from digits import ACCURACY_MIN, accuracy, arguments, digits, network, report, save, train
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> int:
    options = arguments()
    gl.init()
    # The store is empty: the workers of the job know each other already.
    store = distributed.HashStore()
    distributed.init_process_group("gradlane", store=store, rank=gl.rank(), world_size=gl.size())
    torch.set_num_threads(1)  # the workers share the cores of this host
    torch.manual_seed(options.seed)  # equal on all workers, because each keeps a shard of the same weights
    (inputs, labels), test = digits()
    model, mesh = network(options.seed), init_device_mesh("cpu", (gl.size(),))
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    before = gl.metrics()
    seconds, losses = train(model, inputs, labels, options)

    reached = accuracy(model, *test)
    if options.save:
        save(options.save, [weight.full_tensor() for weight in model.state_dict().values()], losses)
    if gl.rank() == 0:
        report(options.steps, seconds, reached, before, gl.metrics())
    distributed.destroy_process_group()
    gl.shutdown()
    return 1 if options.check and reached < ACCURACY_MIN else 0


if __name__ == "__main__":
    sys.exit(main())
