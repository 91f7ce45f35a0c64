"""What a user does around gradients changes nothing on several workers, or an error names a parameter; see `promises.py`.

A table says for each deed what happens behind each door. Nothing may diverge in silence.
"""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from promises import BY_PYTORCH, DOORS, EQUAL, REFUSED, expected, outcome  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("shm")]


def unfrozen(model):
    model[0].bias.requires_grad_(False)
    run = yield
    run.step()
    model[0].bias.requires_grad_(True)
    run.step()
    run.step()


def unfrozen_alone(model):
    """Nothing but the unfrozen parameter gets a gradient, and the module is called by itself."""
    model[0].bias.requires_grad_(False)
    run = yield
    run.step()
    for parameter in model.parameters():
        parameter.requires_grad_(not parameter.requires_grad)
    run.optimizer.zero_grad()
    model(run.inputs()).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    run.optimizer.step()
    run.step()


def unfrozen_for_a_second_optimizer(model):
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    run = yield
    run.step()
    for parameter in model[2].parameters():
        parameter.requires_grad_(True)
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)
    for _ in range(2):
        second.zero_grad()
        run.step()
        second.step()


def frozen_for_a_while(model):
    run = yield
    run.step()
    model[0].bias.requires_grad_(False)
    model[0].bias.requires_grad_(True)
    run.step()


def added_to_a_group(model):
    run = yield
    run.step()
    model.extra = nn.Parameter(torch.ones(4))
    run.optimizer.param_groups[0]["params"].append(model.extra)
    for _ in range(2):
        run.optimizer.zero_grad()
        (run.loss() * model.extra.square().mean()).backward()
        run.optimizer.step()


def added_as_a_group(model):
    run = yield
    run.step()
    model.extra = nn.Parameter(torch.ones(4))
    run.optimizer.add_param_group({"params": [model.extra], "lr": 0.1})
    for _ in range(2):
        run.optimizer.zero_grad()
        (run.loss() * model.extra.square().mean()).backward()
        run.optimizer.step()


def removed_from_a_group(model):
    run = yield
    run.step()
    run.optimizer.param_groups[0]["params"].pop()
    run.step()
    run.step()


def moved_to_another_group(model):
    run = yield
    run.step()
    groups = run.optimizer.param_groups
    groups.append({**groups[0], "params": [groups[0]["params"].pop()], "lr": 0.01})
    run.step()
    run.step()


def removed_from_the_module(model):
    run = yield
    run.step()
    model[2] = nn.Identity()
    run.step()
    run.step()


def replaced_data(model):
    run = yield
    run.step()
    model[0].weight.data = model[0].weight.detach().clone() * 0.5
    run.step()
    run.step()


def replaced_parameter(model):
    run = yield
    run.step()
    model[0].bias = nn.Parameter(torch.ones(4))
    run.step()
    run.step()


def another_element_type(model):
    run = yield
    run.step()
    model.double()
    run.optimizer.zero_grad()
    run.call(run.inputs().double()).square().mean().backward()
    run.optimizer.step()
    model.float()


def another_shape(model):
    run = yield
    run.step()
    model[0].weight.data = torch.ones(4, 8)
    run.optimizer.zero_grad()
    run.call(torch.cat([run.inputs()] * 2, dim=1)).square().mean().backward()


def tied_later(model):
    run = yield
    run.step()
    model[2].weight = model[0].weight
    run.step()
    run.step()


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2

    def right_inverse(self, weight):
        return weight * 2


def parametrized_later(model):
    run = yield
    run.step()
    nn.utils.parametrize.register_parametrization(model[0], "weight", Halved())
    run.step()
    run.step()


def deep_copied(model):
    run = yield
    run.step()
    run.call, run.optimizer = copy.deepcopy((run.call, run.optimizer))
    run.step()


def pickled(model):
    run = yield
    run.step()
    run.call, run.optimizer = pickle.loads(pickle.dumps((run.call, run.optimizer)))
    run.step()


def copied(model):
    run = yield
    run.step()
    run.call, run.optimizer, run.wrapped = copy.copy(run.call), copy.copy(run.optimizer), None
    model._modules, model._parameters = dict(model._modules), dict(model._parameters)
    run.step()
    run.step()


def averaged_over_time(model):
    run = yield
    average = copy.deepcopy(run.call)
    for _ in range(2):
        run.step()
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), run.call.parameters(), strict=True):
                ours.lerp_(theirs, 0.5)
            average(run.inputs())


def set_before(model):
    run = yield
    run.optimizer.zero_grad()
    model[0].weight.grad = torch.ones(4, 4)
    model[0].bias.grad = torch.ones(1).expand(4).clone()
    run.loss().backward()
    run.optimizer.step()


def cleared_before(model):
    run = yield
    run.step()
    loss = run.loss()
    model[0].weight.grad = None
    model.zero_grad(set_to_none=False)
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    run.optimizer.step()


def changed_after(model):
    run = yield
    run.step(between=lambda: model[0].weight.grad.mul_(0.5))
    run.step()


def assigned_after(model):
    def assign():
        model[0].weight.grad = torch.ones(4, 4)

    run = yield
    run.step(between=assign)
    run.step()


def cleared_after(model):
    def clear():
        model[0].weight.grad = None

    run = yield
    run.step(between=clear)
    run.step()


def clipped_after(model):
    run = yield
    run.step(between=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3))
    run.step()


def twice_before_a_step(model):
    run = yield
    run.optimizer.zero_grad()
    run.loss().backward()
    run.loss().backward()
    run.optimizer.step()


def gradients_of_a_part(model):
    run = yield
    inputs = run.inputs().requires_grad_()
    [gradient] = torch.autograd.grad(run.call(inputs).square().mean(), inputs, create_graph=True)
    run.optimizer.zero_grad()
    (gradient.square().sum() * len(inputs)).backward()
    run.optimizer.step()


def with_a_graph(model):
    run = yield
    for _ in range(2):
        run.optimizer.zero_grad()
        run.loss().backward(create_graph=True)
        run.optimizer.step()


def state_loaded(model):
    run = yield
    run.step()
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    run.step()


def compiled(model):
    run = yield
    run.call = torch.compile(run.call, backend="aot_eager")
    run.step()
    run.step()


TABLE = {
    unfrozen: REFUSED,
    unfrozen_alone: REFUSED,
    unfrozen_for_a_second_optimizer: REFUSED,
    frozen_for_a_while: EQUAL,
    added_to_a_group: {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED, "hook": REFUSED},
    added_as_a_group: {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED, "hook": REFUSED},
    removed_from_a_group: EQUAL,
    moved_to_another_group: EQUAL,
    removed_from_the_module: {"wrapper": REFUSED, "hook": REFUSED, "byteps wrapper": EQUAL},
    replaced_data: {"barrier": REFUSED},
    replaced_parameter: {"wrapper": REFUSED, "hook": REFUSED},
    another_element_type: REFUSED,
    another_shape: {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED, "hook": BY_PYTORCH},
    tied_later: {"wrapper": REFUSED, "hook": REFUSED, "byteps wrapper": EQUAL},
    parametrized_later: {"barrier": REFUSED, "hook": REFUSED},
    deep_copied: {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED},
    pickled: {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED},
    copied: EQUAL,
    averaged_over_time: EQUAL,
    set_before: EQUAL,
    cleared_before: EQUAL,
    changed_after: {"barrier": REFUSED},
    assigned_after: {"barrier": REFUSED},
    cleared_after: {"barrier": REFUSED},
    clipped_after: {"barrier": REFUSED},
    twice_before_a_step: {"barrier": REFUSED},
    gradients_of_a_part: EQUAL,
    with_a_graph: {"hook": BY_PYTORCH},
    state_loaded: EQUAL,
    compiled: EQUAL,
}
"""What happens behind each door; what is not said is EQUAL."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("deed", TABLE, ids=lambda deed: deed.__name__)
def test_nothing_diverges_in_silence(deed, door):
    assert outcome(deed, door) == expected(TABLE[deed], door)


def copied_and_called_by_its_module(model):
    run = yield
    run.step()
    copied, run.optimizer = copy.deepcopy((run.call, run.optimizer))
    run.call = copied.module
    run.step()


@pytest.mark.parametrize("door", ["wrapper", "byteps wrapper"])
def test_a_copy_of_a_wrapper_does_not_train_through_its_module_either(door):
    assert outcome(copied_and_called_by_its_module, door) == REFUSED
