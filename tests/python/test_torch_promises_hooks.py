"""Hooks that use gradients, several optimizers, optimizers with closures, gradients made by hand; see `promises.py`."""

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
from promises import DOORS, EQUAL, REFUSED, expected, model_of_four_parameters, outcome, plain_sgd  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("shm")]


def double(parameter):
    parameter.grad.mul_(2)


def replace(parameter):
    parameter.grad = parameter.grad * 2


def clear(parameter):
    parameter.grad = None


def step_alone(parameter):
    plain_sgd([parameter]).step()


def step_and_zero(parameter):
    plain_sgd([parameter]).step()
    parameter.grad = torch.zeros_like(parameter)


def step_and_clear(parameter):
    plain_sgd([parameter]).step()
    parameter.grad = None


def measure(parameter):
    assert parameter.grad.norm() >= 0


def before(hook):
    def deed(model):
        model[0].bias.register_post_accumulate_grad_hook(hook)
        run = yield
        run.step()
        run.step()

    deed.__name__ = f"{hook.__name__}_before"
    return deed


def after(hook):
    def deed(model):
        run = yield
        model[0].bias.register_post_accumulate_grad_hook(hook)
        run.step()
        run.step()

    deed.__name__ = f"{hook.__name__}_after"
    return deed


def step_of_all_after(model):
    run = yield
    optimizer = plain_sgd(model.parameters())
    model[0].weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    run.optimizer.zero_grad()
    run.loss().backward()


def tensor_hooks(model):
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    run = yield
    model[2].weight.register_hook(lambda gradient: gradient * 3)
    run.step()
    run.step()


def hooks_of_nodes(model):
    run = yield
    node = model[0].bias.view_as(model[0].bias).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: double(model[0].bias))
    run.step()


def flat_gradients(model):
    """All gradients are views of one tensor, and so share the count of its changes."""
    run = yield
    flat = torch.zeros(40)
    starts = [0, 16, 20, 36]
    for parameter, start in zip(model.parameters(), starts, strict=True):
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
    run.loss().backward()
    run.optimizer.step()


def left_out_and_clipped(model):
    """Some gradients are missing, so those of an optimizer are still on their way after `backward()`."""
    run = yield
    run.optimizer.zero_grad()
    model[2](run.inputs()).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    run.optimizer.step()


def left_out_and_cleared_by_the_model(model):
    run = yield
    run.optimizer.zero_grad()
    model[2](run.inputs()).square().mean().backward()
    model.zero_grad()
    run.optimizer.step()


def left_out_and_replaced(model):
    run = yield
    run.optimizer.zero_grad()
    model[2](run.inputs()).square().mean().backward()
    model[2].weight.grad = torch.ones(4, 4)
    run.optimizer.step()


def left_out_and_set_by_hand(model):
    run = yield
    run.optimizer.zero_grad()
    model[2](run.inputs()).square().mean().backward()
    model[0].weight.grad = torch.ones(4, 4)
    run.optimizer.step()


def by_hand(averaged):
    def deed(model):
        run = yield
        for _ in range(2):
            run.optimizer.zero_grad()
            gradients = torch.autograd.grad(run.loss(), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = run.mean(gradient) if averaged else gradient
            run.optimizer.step()

    deed.__name__ = "made_and_averaged_by_hand" if averaged else "made_by_hand"
    return deed


made_by_hand, made_and_averaged_by_hand = by_hand(averaged=False), by_hand(averaged=True)


def two_passes_with_a_change_between(model):
    run = yield
    run.optimizer.zero_grad()
    if hasattr(run.call, "no_sync"):
        with run.call.no_sync():
            run.loss().backward()
    else:
        getattr(run.optimizer, "set_backward_passes_per_step", lambda _: None)(2)
        run.loss().backward()
    model[0].weight.grad.mul_(0.5)
    model[0].bias.grad = None
    model[2].weight.grad = torch.ones(4, 4)
    run.loss().backward()
    run.optimizer.step()


TABLE = {
    before(double): EQUAL,
    before(replace): EQUAL,
    before(measure): EQUAL,
    before(clear): REFUSED,
    before(step_and_clear): REFUSED,
    before(step_and_zero): REFUSED,
    before(step_alone): REFUSED,
    # PyTorch's wrapper takes gradients after all hooks of a parameter.
    after(double): {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED},
    after(replace): {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED},
    after(measure): {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED},
    after(clear): REFUSED,
    after(step_and_clear): REFUSED,
    after(step_and_zero): REFUSED,
    after(step_alone): REFUSED,
    step_of_all_after: REFUSED,
    tensor_hooks: EQUAL,
    hooks_of_nodes: {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED},
    flat_gradients: EQUAL,
    left_out_and_clipped: {"optimizer": REFUSED, "barrier": REFUSED, "wrapper": REFUSED, "byteps wrapper": EQUAL},
    left_out_and_cleared_by_the_model: {
        "optimizer": REFUSED, "barrier": REFUSED, "wrapper": REFUSED, "byteps wrapper": EQUAL
    },
    left_out_and_replaced: {"optimizer": REFUSED, "barrier": REFUSED, "wrapper": REFUSED, "byteps wrapper": EQUAL},
    left_out_and_set_by_hand: {"wrapper": REFUSED, "byteps wrapper": EQUAL},
    two_passes_with_a_change_between: {"barrier": REFUSED, "byteps optimizer": EQUAL},
    made_by_hand: EQUAL,
    made_and_averaged_by_hand: EQUAL,
}
NOT_BEHIND = {
    # PyTorch's wrapper averages nothing if its own forward pass was not called, or a gradient is missing.
    "hook": {left_out_and_clipped, left_out_and_cleared_by_the_model, left_out_and_replaced, left_out_and_set_by_hand}
    # It also overwrites what hooks of nodes do after its own.
    | {hooks_of_nodes},
    "wrapper": set(),
    "byteps wrapper": set(),
}
for door in DOORS:
    # A wrapper averages in backward(), and nobody calls that here: its user averages, as with PyTorch's own wrapper. A
    # refusal would also hit users who do so, because nothing tells their gradients from others.
    averages_at_step = door not in ("hook", "wrapper", "byteps wrapper")
    NOT_BEHIND.setdefault(door, set()).add(made_and_averaged_by_hand if averages_at_step else made_by_hand)
CASES = [(deed, door) for deed in TABLE for door in DOORS if deed not in NOT_BEHIND.get(door, ())]


@pytest.mark.parametrize("deed, door", CASES, ids=[f"{deed.__name__}-{door}" for deed, door in CASES])
def test_nothing_diverges_in_silence(deed, door):
    assert outcome(deed, door) == expected(TABLE[deed], door)


def steps_in_backward(model):
    run = yield
    optimizers = {parameter: plain_sgd([parameter]) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    register = getattr(run.wrapped, "register_post_average_hook", None)
    for _ in range(3):
        run.loss().backward()
        if register is None:
            for parameter in model.parameters():
                step(parameter)
        elif register is not True:
            handle, register = register(step), True
            for parameter in model.parameters():
                step(parameter)  # of the first pass, in which there was no hook yet
    if register is True:
        handle.remove()
        run.loss().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(run.wrapped is None or parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("door", ["wrapper", "optimizer", "byteps wrapper", "byteps optimizer", "horovod optimizer"])
def test_an_optimizer_in_backward_has_its_place_after_the_average(door):
    assert outcome(steps_in_backward, door) == EQUAL


def two_optimizers(model):
    run = yield
    for _ in range(2):
        run.optimizer.zero_grad()
        run.loss().backward()
        for optimizer in run.wrapped if isinstance(run.wrapped, list) else [run.optimizer]:
            optimizer.step()


@pytest.mark.parametrize("wrap", [gl.DistributedOptimizer, None], ids=["optimizers", "wrapper"])
def test_several_optimizers_share_a_model(wrap, monkeypatch):
    import promises

    def by_two(model, make=plain_sgd):
        call = model if wrap else gl.DistributedDataParallel(model)
        optimizers = [make(layer.parameters()) for layer in (model[0], model[2])]
        if wrap:
            optimizers = [wrap(optimizer, model.named_parameters()) for optimizer in optimizers]
        both = promises.several(model, call, optimizers[0], optimizers)
        both.optimizer.zero_grad = lambda: [type(o).zero_grad(o) for o in optimizers]
        return both

    monkeypatch.setitem(promises.DOORS, "two", by_two)
    assert outcome(two_optimizers, "two") == EQUAL


def with_a_closure(model):
    model.double()  # the search enlarges roundings
    run = yield
    batch = run.inputs().double()

    def closure():
        run.optimizer.zero_grad()
        loss = run.call(batch).square().mean()
        loss.backward()
        # The optimizer decides by the loss. A distributed one averages it; with a wrapper, its user does.
        return loss if hasattr(run.optimizer, "skip_synchronize") else run.mean(loss)

    for _ in range(3):
        run.optimizer.step(closure)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("door", DOORS)
def test_an_optimizer_that_searches_along_the_loss_takes_the_same_steps_everywhere(door, search):
    def lbfgs(parameters):
        return torch.optim.LBFGS(parameters, lr=0.5, max_iter=5, line_search_fn=search)

    if door == "barrier":
        with pytest.raises(gl.UnsupportedError, match="LBFGS"):
            DOORS[door](model_of_four_parameters(), lbfgs)
    else:
        assert outcome(with_a_closure, door, lbfgs) == EQUAL


def test_a_part_that_was_frozen_is_averaged_by_an_optimizer_of_its_own():
    def of_two_parts(model):
        for parameter in model[2].parameters():
            parameter.requires_grad_(False)
        run = yield
        for parameter in model[2].parameters():
            parameter.requires_grad_(True)
        second = plain_sgd(model[2].parameters())
        if run.wrapped is not None:
            second = gl.DistributedOptimizer(second, model.named_parameters())
        for _ in range(2):
            second.zero_grad()
            run.step()
            second.step()

    assert outcome(of_two_parts, "optimizer") == EQUAL
