"""Complex tensors travel as pairs of real numbers, through every door."""

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
from gloo import gloo  # noqa: E402
from gradlane.errors import InvalidArgumentError  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("shm")]


def numbers(dtype=torch.complex64):
    return torch.tensor([[1 + 2j, 3j], [complex(gl.rank(), 1), -4]], dtype=dtype)


MEAN = [[1 + 2j, 3j], [0.5 + 1j, -4]]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_tensors_are_averaged_and_summed(dtype):
    kind = str(dtype)
    assert gl.push_pull(numbers(dtype), f"c {kind}").tolist() == MEAN
    assert gl.push_pull_(numbers(dtype).t(), f"t {kind}").t().tolist() == MEAN
    assert gl.push_pull_(numbers(dtype).conj(), f"conj {kind}").conj().tolist() == MEAN
    assert gl.push_pull(numbers(dtype), f"sum {kind}", op=gl.Sum)[1].tolist() == [1 + 2j, -8]
    weighted = gl.push_pull(numbers(dtype), f"w {kind}", op=gl.WeightedAverage, weight=1.0 + 2 * gl.rank())
    assert weighted[1].tolist() == [0.75 + 1j, -4]
    both = gl.grouped_push_pull([numbers(dtype), torch.tensor([1.0 + gl.rank()])], f"g {kind}")
    assert (both[0].tolist(), both[1].tolist()) == (MEAN, [1.5])
    assert gl.push_pull(numbers(dtype), f"set {kind}", process_set=gl.ProcessSet([0, 1])).tolist() == MEAN


def test_complex_numbers_have_no_order():
    for op in (gl.Min, gl.Max):
        with pytest.raises(InvalidArgumentError, match="complex numbers have no"):
            gl.push_pull(numbers(), "least", op=op)
        with pytest.raises(InvalidArgumentError, match=r"group\.0: complex numbers have no"):
            gl.grouped_push_pull([numbers()], "group", op=op)


def test_a_complex_mean_is_differentiable():
    tensor = numbers().requires_grad_()
    gl.push_pull(tensor, "differentiable").abs().square().sum().backward()
    expected = 2 * torch.tensor(MEAN)
    assert torch.allclose(tensor.grad, expected)


class Rotation(nn.Module):
    """A large and a small complex weight, a real one, and a complex buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.small = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.large = nn.Parameter(torch.randn(100, 400, dtype=torch.complex64))
        self.bias = nn.Parameter(torch.zeros(4))
        self.register_buffer("phase", torch.ones(4, dtype=torch.complex64) * 1j)

    def forward(self, inputs):
        hidden = inputs * self.small * self.phase + self.bias
        return (hidden.abs().square().mean(1) + self.large.abs().square().mean()).mean()


def by_wrapper(model):
    wrapped = gl.DistributedDataParallel(model)
    return wrapped, torch.optim.SGD(model.parameters(), lr=0.1)


def by_optimizer(model):
    optimizer = gl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    return model, optimizer


def by_barrier(model):
    return model, gl.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))


def by_comm_hook(model):
    ddp = nn.parallel.DistributedDataParallel(model, process_group=gloo())
    ddp.register_comm_hook(gl.State(model), gl.ddp_comm_hook)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.1)


@pytest.mark.parametrize("door", [by_wrapper, by_optimizer, by_barrier, by_comm_hook])
def test_complex_parameters_train_as_in_one_process(door):
    def trained(call, optimizer, share):
        for step in range(3):
            inputs = torch.randn(8, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            call(share(inputs)).backward()
            optimizer.step()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()

    ours, reference = Rotation(), Rotation()
    trained(*door(ours), lambda inputs: inputs[gl.rank() :: 2])
    trained(reference, torch.optim.SGD(reference.parameters(), lr=0.1), lambda inputs: inputs)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(dict(ours.named_parameters())[name], parameter, rtol=0, atol=1e-6)
