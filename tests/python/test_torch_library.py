"""`torch.ops.gradlane.push_pull`, called plainly and by compiled functions."""

import gradlane.torch as gl
import pytest
import torch

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(2)]


def weighted(x, scale):
    return torch.ops.gradlane.push_pull(x * scale, "activations", True).square().sum()


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("form", [lambda function: function, compiled], ids=["eager", "compiled"])
def test_it_is_differentiable(form):
    x = torch.full((3,), 1.0 + gl.rank(), requires_grad=True)
    for scale in (1.0, 2.0):
        x.grad = None
        loss = form(weighted)(x, scale)
        loss.backward()
        # The mean over workers is 1.5 times the scale; each element's gradient is twice that, averaged, times the scale.
        assert loss.item() == 3 * (1.5 * scale) ** 2
        assert x.grad.tolist() == [2 * 1.5 * scale * scale] * 3


def test_a_sum_of_any_strides():
    x = torch.arange(6.0).view(2, 3).t()
    assert torch.equal(torch.ops.gradlane.push_pull(x, "strided", False), 2 * x)


def test_it_keeps_the_rules_of_operators():
    x = torch.ones(3, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.gradlane.push_pull.default, (x, "checked", True), test_utils=checks)
