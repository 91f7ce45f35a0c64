"""Which tensors travel with which codec, by the bytes that each worker pushes."""

import gradlane.torch as gl
import pytest
import torch
from gloo import gloo
from torch import nn

pytestmark = [pytest.mark.over("quic"), pytest.mark.workers(2, servers=2)]

BLOCKS = 64 * 64 + 64 * 64 // 256 * 4
"""Bytes of a matrix of 64 by 64 in int8, with a scale for each block of 256."""


class Net(nn.Module):
    """A matrix that is large enough, unless it is told to be narrow, one that is not, and vectors."""

    def __init__(self, width=64):
        super().__init__()
        self.large = nn.Linear(64, width)
        self.norm = nn.LayerNorm(width)
        self.small = nn.Linear(width, 2)

    def forward(self, inputs):
        return self.small(self.norm(self.large(inputs)))


PLAIN = 4 * (64 + 2 * 64 + 2 * 64 + 2)
"""Bytes of all but the large matrix."""


def pushed(run):
    before = gl.metrics()["push_bytes"]
    run()
    return gl.metrics()["push_bytes"] - before


def backward(model):
    torch.manual_seed(gl.rank())
    model(torch.randn(8, 64)).square().sum().backward()


def with_ddp(compression, width=64):
    model = gl.DistributedDataParallel(Net(width), compression=compression)
    return lambda: backward(model)


def with_optimizer(compression, width=64):
    model = Net(width)
    gl.DistributedOptimizer(
        optimizer := torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression
    )
    return lambda: (backward(model), optimizer.step(), optimizer.zero_grad())


def with_cross_barrier(compression, width=64):
    model = Net(width)
    optimizer = gl.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1), compression=compression)
    return lambda: (backward(model), optimizer.step(), optimizer.synchronize(), optimizer.zero_grad())


EXACT = pytest.mark.workers(2, servers=2, alone=True)
"""In a job of its own, where nothing of another test is still on its way when bytes are counted."""

USED = 512
"""At most so many bytes say which parameters were used, and compare those of the workers, now or in the step before."""


@pytest.mark.parametrize("wrapped", [with_ddp, with_optimizer, with_cross_barrier])
def test_a_codec_of_a_model_leaves_out_vectors_and_small_parameters(wrapped):
    run = wrapped(gl.Compression.int8)
    assert 0 <= pushed(run) - (BLOCKS + PLAIN) <= USED
    everything = wrapped(gl.Compression.int8(compress_all=True))
    assert 0 <= pushed(everything) - (BLOCKS + (PLAIN // 4 + 5 * 4)) <= USED
    halves = wrapped(gl.Compression.bf16)
    assert 0 <= pushed(halves) - (4 * 64 * 64 + PLAIN) // 2 <= USED


@pytest.mark.parametrize("wrapped", [with_ddp, with_optimizer, with_cross_barrier])
def test_a_function_chooses_for_each_parameter(wrapped):
    asked = {}

    def choose(name, shape):
        asked[name] = shape
        return gl.Compression.int8 if name == "small.weight" else gl.Compression.none

    run = wrapped(choose)
    assert asked == {name: tuple(parameter.shape) for name, parameter in Net().named_parameters()}
    of_small = 2 * 64
    assert 0 <= pushed(run) - (4 * 64 * 64 + PLAIN - 4 * of_small + of_small + 4) <= USED
    with pytest.raises(gl.Error, match=r"compression gave 'int8' for large\.weight"):
        wrapped(lambda name, shape: "int8")


@EXACT
def test_a_hook_of_pytorchs_wrapper_compresses_the_parameters_in_its_buckets():
    model = nn.parallel.DistributedDataParallel(Net(), process_group=gloo())
    model.register_comm_hook(gl.State(model, compression=gl.Compression.int8), gl.ddp_comm_hook)
    assert pushed(lambda: backward(model)) == BLOCKS + PLAIN
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gl.push_pull(parameter.grad, f"same {name}", op=gl.Max)), name


@pytest.mark.parametrize("wrapped", [with_ddp, with_optimizer, with_cross_barrier])
def test_a_codec_that_would_act_on_nothing_is_an_error(wrapped):
    with pytest.raises(gl.Error, match=r"compression=topk would act on none of the 6 parameters.*8192 bytes.*compress_all"):
        wrapped(gl.Compression.topk, width=2)


@EXACT
def test_a_call_compresses_the_tensor_that_it_names():
    vector = torch.arange(512.0)
    assert pushed(lambda: gl.push_pull(vector, "vector", compression=gl.Compression.int8)) == 512 + 2 * 4
    assert pushed(lambda: gl.push_pull(vector, "vector plain")) == 4 * 512
    with pytest.raises(gl.Error, match=r"whole is int32, which codec int8 does not encode.*compression_fallback"):
        gl.push_pull(torch.ones(4, dtype=torch.int32), "whole", compression=gl.Compression.int8)
    assert gl.push_pull(torch.tensor([7]), "whole cast", compression=gl.Compression.bf16).tolist() == [7]


def test_workers_that_choose_differently_are_told_of_both_codecs():
    compression = [gl.Compression.int8, gl.Compression.int4][gl.rank()]
    with pytest.raises(gl.Error, match="codec.*int"):
        gl.push_pull(torch.ones(64, 64), "of two minds", compression=compression)


def test_auto_takes_what_was_measured_and_all_workers_take_the_same(capfd):
    compression = gl.Compression.auto(gl.Compression.bf16, gl.Compression.int8(compress_all=True))
    runs = [wrapped(compression) for wrapped in (with_ddp, with_optimizer)]
    told = capfd.readouterr().err
    assert ("compression auto takes" in told) == (gl.rank() == 0), "once in a job"
    assert told.count("compression auto takes") <= 1
    for run in runs:
        assert pushed(run) > 0
    with pytest.raises(gl.Error, match="auto chooses for the parameters of a model"):
        gl.push_pull(torch.ones(4), "by auto", compression=compression)
    with pytest.raises(gl.Error, match="auto is measured by all workers"):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gl.DistributedOptimizer(optimizer, compression=compression, process_set=gl.ProcessSet([0, 1]))
