"""Accelerate takes the group that is there."""

import gradlane.torch as _  # noqa: F401  defines the backend
import torch
import torch.distributed as dist
from accelerate import Accelerator
from ending import data, tell

dist.init_process_group("gradlane")
accelerator = Accelerator(cpu=True)
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data(), batch_size=4))
for inputs, labels in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
    optimizer.step()
tell(model)
dist.destroy_process_group()
