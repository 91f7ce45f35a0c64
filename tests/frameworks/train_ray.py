"""Ray Train on a cluster of this host: two workers, whose group Ray makes."""

from pathlib import Path

import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train():
    import gradlane.torch as gl
    import ray.train.torch
    import torch
    import torch.distributed as dist
    from ending import tell

    torch.manual_seed(dist.get_rank())
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.full((4, 8), 1.0 + gl.rank())).square().sum().backward()
        optimizer.step()
    tell(model)


def define_backend():
    """Runs in each process of Ray before it makes the group."""
    import gradlane.torch as _  # noqa: F401


# Ray's processes find `ending` beside this file.
environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}, "worker_process_setup_hook": define_backend}
ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment)
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), torch_config=TorchConfig(backend="gradlane")).fit()
ray.shutdown()
