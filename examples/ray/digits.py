"""Trains a small net on scikit-learn's handwritten digits on a cluster of Ray.

python digits.py --workers 2                        a cluster of this host, for as long as the training
RAY_ADDRESS=auto python digits.py --workers 8       the cluster that this host belongs to

Ray starts the workers and makes them a group of `torch.distributed`. If one is lost, it starts all of them again, and
they go on from the newest checkpoint. `--check` makes the accuracy a condition of success.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

ACCURACY_MIN = 0.9


def main() -> int:
    options = arguments()
    ray.init(runtime_env={"worker_process_setup_hook": define_backend})
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": options.epochs, "steps": 30, "batch": 256},
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=options.gpu),
        torch_config=TorchConfig(backend="gradlane"),
        run_config=RunConfig(storage_path=options.storage, failure_config=FailureConfig(max_failures=3)),
    )
    reached = trainer.fit().metrics["accuracy"]
    print(f"accuracy {reached:.1%}")
    ray.shutdown()
    return 1 if options.check and reached < ACCURACY_MIN else 0


def define_backend() -> None:
    """Runs in each process of Ray before it makes the group."""
    import gradlane.torch as _  # noqa: F401


def train(config: dict[str, Any]) -> None:
    """Runs in each worker."""
    import ray.train.torch
    import torch
    import torch.nn.functional as F
    from sklearn.datasets import load_digits

    inputs, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    inputs = (inputs / 16).float()
    rank, size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    device = ray.train.torch.get_device()
    torch.manual_seed(rank)  # different on purpose: DDP broadcasts rank 0
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    first = resume(net, optimizer)
    model = ray.train.torch.prepare_model(net)
    for epoch in range(first, config["epochs"]):
        draw = torch.Generator().manual_seed(epoch)
        for _ in range(config["steps"]):
            # All workers draw the same batch and take their share of it.
            batch = torch.randint(len(inputs), (config["batch"],), generator=draw)[rank::size]
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch].to(device)), labels[batch].to(device)).backward()
            optimizer.step()
        with torch.no_grad():
            right = net(inputs.to(device)).argmax(1).cpu() == labels
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                state = {"epoch": epoch, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, Path(folder) / "state.pt")
            checkpoint = Checkpoint.from_directory(folder) if rank == 0 else None
            ray.train.report({"accuracy": right.double().mean().item()}, checkpoint=checkpoint)


def resume(net: Any, optimizer: Any) -> int:
    """Loads the newest checkpoint, if there is one. Returns the epoch with which to go on."""
    import torch

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / "state.pt", map_location="cpu")
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"]) + 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="one GPU for each worker")
    parser.add_argument("--storage", help="a folder that all hosts see, for results and checkpoints")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
