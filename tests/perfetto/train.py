"""A training whose rank 1 is late, with timelines and with PyTorch's profiler in its middle; `check.py` runs it.

python train.py FOLDER
"""

import sys
import time

import gradlane.torch as gl
import torch
from gradlane import timeline

STEPS, PROFILED = 8, range(3, 6)
LATE_SECONDS = 0.02
"""What rank 1 takes longer before each forward pass."""


def main(folder: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gl.init()
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)]
    model = torch.nn.Sequential(*layers)
    optimizer = gl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    images, labels = torch.randn(256, 256), torch.randint(0, 10, (256,))
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    for step in range(STEPS):
        if step == PROFILED.start:
            profiler.start()
        with timeline.span(f"step {step}"):
            with timeline.span("data"):
                time.sleep(LATE_SECONDS if gl.rank() == 1 else 0.001)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if step == PROFILED[-1]:
            profiler.stop()
    profiler.export_chrome_trace(f"{folder}/profile-{gl.rank()}.json")
    gl.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
