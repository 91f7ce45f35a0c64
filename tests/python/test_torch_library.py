"""`torch.ops.gradlane.push_pull`, called plainly and by compiled functions."""

import re

import gradlane.torch as gl
import pytest
import torch

pytestmark = [pytest.mark.over("local", "shm", "quic"), pytest.mark.workers(2)]

SOON = {"step_timeout": "4s", "stall_warn": "1s", "heartbeat_interval": "100ms"}
"""What a worker did last is told `stall_warn` after the first contribution."""


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


@pytest.mark.parametrize("form", [lambda function: function, compiled], ids=["eager", "compiled"])
def test_a_name_has_one_shape_in_all_graphs(form, request):
    name = f"reused by {request.node.name}"
    assert form(lambda x: torch.ops.gradlane.push_pull(x, name, False))(torch.ones(3)).tolist() == [2.0] * 3
    with pytest.raises(gl.MismatchError) as caught:
        form(lambda x: torch.ops.gradlane.push_pull(x.view(2, 2), name, False).sum())(torch.ones(4))
    assert (caught.value.tensor, caught.value.field) == (name, "shape")
    assert (caught.value.expected, caught.value.got) == ("[3]", "[2, 2]")


@pytest.mark.over("local", "quic")
@pytest.mark.workers(3, alone=True, settings=SOON)
def test_ranks_with_different_graphs_are_told_whom_they_wait_for_and_what_it_did_last():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def graph(x, name):
        return torch.ops.gradlane.push_pull(torch.ops.gradlane.push_pull(x, "alike", False), name, False)

    # The first function that a process compiles takes seconds.
    compiled(lambda x: x + 1)(torch.ones(3))
    gl.barrier("compilers are loaded", timeout=120.0)
    own, theirs, others = ("right", "left", [0, 2]) if gl.rank() == 1 else ("left", "right", [1])
    with pytest.raises(gl.StallError, match=f"^tensor {own}, round 0: no contribution") as caught:
        graph(torch.ones(3), own)
    assert caught.value.missing_ranks == others
    for rank in others:
        assert re.search(rf"worker {rank} on [^;]+, last tensor {theirs}, round 0", str(caught.value)), caught.value
    gl.barrier("all were told")  # whoever has left before did nothing last
