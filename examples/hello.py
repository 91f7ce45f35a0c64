"""The smallest training on several workers.

python hello.py                                   one worker, no server
gradlane run -n 2 -s 2 -- python hello.py         two workers and two servers on this host
torchrun --nproc-per-node 2 hello.py              two workers; rank 0 brings a server
"""

import gradlane.torch as gl
import torch
import torch.nn.functional as F
from torch import nn

gl.init()  # finds its job in the environment of gradlane run, torchrun, MPI, Slurm or BytePS; otherwise a job of one
torch.manual_seed(gl.rank())  # different on purpose: the wrapper broadcasts rank 0
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model = gl.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

generator = torch.Generator().manual_seed(1234)  # the same on all workers: each takes its share of one batch
rule = torch.randn(64, 10, generator=generator)
for step in range(100):
    inputs = torch.randn(64, 64, generator=generator)
    labels = (inputs @ rule).argmax(1)
    mine = slice(gl.rank(), None, gl.size())
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs[mine]), labels[mine])
    loss.backward()  # gradients are averaged here, while the backward pass goes on
    optimizer.step()
    if step % 20 == 0 and gl.rank() == 0:
        print(step, round(loss.item(), 3))
print(f"rank {gl.rank()} checksum {sum(p.double().sum().item() for p in model.parameters()):.12f}")
