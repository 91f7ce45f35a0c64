"""Graph capture in PyTorch's mode, in which most calls of any other thread to the driver would end it."""

from __future__ import annotations

import gradlane.torch as gl
import torch
from gradlane.errors import FailedPreconditionError
from places import device, put, settle
from telling import passed

LARGE = 16 << 20
"""Elements of what is under way meanwhile: many copies, or many operations of NCCL."""


def capture() -> None:
    """Captures while the engine works; what is captured may not be a reduction."""
    here = device()
    large, small = put(torch.ones(LARGE)), put(torch.ones(64))
    gl.push_pull_(large, "before")  # pins memory, starts threads, makes communicators
    square = put(torch.rand(64, 64))
    side = torch.cuda.Stream(here)
    with torch.cuda.stream(side):
        product = square @ square
    settle()
    handles = [gl.push_pull_async_(large, "under way")]
    graph = torch.cuda.CUDAGraph()
    refused = None
    with torch.cuda.graph(graph, stream=side):
        product = square @ square
        try:
            gl.push_pull_async_(small, "captured")
        except FailedPreconditionError as error:
            refused = error
    assert refused is not None and "graph" in str(refused), refused
    passed(f"a push_pull in a stream under capture is refused: {refused}")
    for handle in handles:
        handle.wait()
    product.zero_()
    graph.replay()
    settle()
    assert torch.equal(product, square @ square) and (large == 1).all()
    passed("a capture in PyTorch's mode survives the work of the engine, and this work survives the capture")


capture_nccl = capture
