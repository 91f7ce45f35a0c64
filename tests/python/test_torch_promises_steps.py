"""Optimizers that step during the backward pass by a gradient of one worker, and what is like them but right; see `promises.py`."""

import copy

import pytest

torch = pytest.importorskip("torch")

from promises import DOORS, EQUAL, REFUSED, expected, model_of_four_parameters, outcome, plain_sgd  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("shm")]


def in_place(parameter, gradient):
    with torch.no_grad():
        parameter.sub_(0.1 * gradient)


def by_data(parameter, gradient):
    parameter.data.sub_(0.1 * gradient)


def by_numpy(parameter, gradient):
    parameter.detach().numpy()[...] -= 0.1 * gradient.numpy()


def of_a_tensor(change, parameter):
    def hook(gradient):
        change(parameter, gradient)

    parameter.register_hook(hook)


def after_accumulation(change, parameter):
    parameter.register_post_accumulate_grad_hook(lambda p: change(p, p.grad))


def of_a_node(change, parameter):
    node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
    node.register_prehook(lambda gradients: change(parameter, gradients[0]))
    parameter.kept_node = node


def before(register, change):
    def deed(model):
        for parameter in model.parameters():
            register(change, parameter)
        run = yield
        run.step()
        run.step()

    deed.__name__ = f"{register.__name__}_{change.__name__}_before"
    return deed


def after(register, change):
    def deed(model):
        run = yield
        for parameter in model.parameters():
            register(change, parameter)
        run.step()
        run.step()

    deed.__name__ = f"{register.__name__}_{change.__name__}_after"
    return deed


def one_gradient_late(change):
    """A parameter changes in the hook of the next one, when its own gradient is on its way."""

    def deed(model):
        waiting = []

        def hook(parameter):
            def late(gradient):
                if waiting:
                    change(*waiting.pop())
                waiting.append((parameter, gradient.clone()))

            return late

        run = yield
        for parameter in model.parameters():
            parameter.register_hook(hook(parameter))
        run.optimizer.zero_grad()
        run.loss().backward()
        waiting.clear()
        run.optimizer.step()
        run.step()

    deed.__name__ = f"one_gradient_late_{change.__name__}"
    return deed


def gradients_clamped(model):
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-10, 10) * 2)
    run = yield
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient / 2)
    run.step()
    run.step()


def gradients_seen(model):
    seen = []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: seen.append(gradient.norm().item()))
    run = yield
    run.step()
    run.step()
    assert len(seen) == 8


class ClampedByHook:
    """Keeps the weights of a layer in bounds before each of its forward passes."""

    def __init__(self, change):
        self.change = change

    def __call__(self, layer, _):
        with torch.no_grad():
            self.change(layer.weight).clamp_(-0.2, 0.2)


def weights_clamped_in_forward(change):
    def deed(model):
        model[0].register_forward_pre_hook(ClampedByHook(change))
        model[2].register_forward_pre_hook(ClampedByHook(change))
        run = yield
        run.step()
        run.step()

    return deed


class Recomputed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return checkpoint(self.layer, inputs, use_reentrant=False)


def clamped_while_recomputed(model):
    """The hooks run again in the backward pass, and change nothing that has a gradient by then."""
    for place in (0, 2):
        model[place].register_forward_pre_hook(ClampedByHook(lambda weight: weight.data))
        model[place].weight.register_hook(lambda gradient: gradient * 2)
        model[place] = Recomputed(model[place])
    run = yield
    run.step()
    run.step()


def weights_changed_between_steps(model):
    run = yield
    run.step(between=lambda: model[0].weight.data.mul_(0.9))
    with torch.no_grad():
        model[2].weight.mul_(0.5)
    kept = copy.deepcopy(model.state_dict())
    run.step()
    model.load_state_dict(kept)
    nn.init.constant_(model[0].bias, 0.25)
    run.step()


def weights_are_normed(model):
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[2])
    run = yield
    run.step()
    run.step()


BARRIER_WAITS = {"barrier": REFUSED}
"""It updates late, so weights may change after `synchronize()` alone."""
CHANGES = (in_place, by_data, by_numpy)
TABLE = {
    **{before(register, change): REFUSED for register in (of_a_tensor, after_accumulation) for change in CHANGES},
    **{after(of_a_tensor, change): REFUSED for change in CHANGES},
    after(of_a_node, in_place): REFUSED,
    before(of_a_node, in_place): REFUSED,
    **{one_gradient_late(change): REFUSED for change in CHANGES},
    gradients_clamped: EQUAL,
    gradients_seen: EQUAL,
    weights_clamped_in_forward(lambda weight: weight): EQUAL,
    weights_clamped_in_forward(lambda weight: weight.data): EQUAL,
    clamped_while_recomputed: EQUAL,
    weights_changed_between_steps: BARRIER_WAITS,
    weights_are_normed: EQUAL,
}
IDS = [f"{number}-{deed.__name__}" for number, deed in enumerate(TABLE)]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("deed", TABLE, ids=IDS)
def test_only_averages_change_weights(deed, door):
    assert outcome(deed, door, plain_sgd) == expected(TABLE[deed], door)


def test_a_foreign_hook_can_still_be_removed():
    import gradlane.torch as gl

    model = model_of_four_parameters()
    handle = model[0].weight.register_hook(lambda gradient: gradient * 2)
    wrapped = gl.DistributedDataParallel(model)
    handle.remove()
    inputs = torch.ones(2, 4)
    wrapped(inputs).sum().backward()
    reference = model_of_four_parameters()
    reference(inputs).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, reference[0].weight.grad)
