"""Memory of a gradient that somebody else holds and changes while the gradient is on its way; see `promises.py`."""

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
from promises import DOORS, EQUAL, REFUSED, expected, outcome  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("shm")]


def in_place(gradient):
    gradient.add_(1)


def by_data(gradient):
    gradient.data.add_(1)


def by_numpy(gradient):
    gradient.numpy()[...] += 1


def nothing(gradient):
    assert gradient is not None


def kept_by_a_hook(change):
    def deed(model):
        kept = {}
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: kept.__setitem__(p, p.grad))
        run = yield
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: change(kept[p]))
        run.step()
        run.step()
        assert run.wrapped is None or all(kept[p] is p.grad for p in model.parameters())

    deed.__name__ = f"kept_by_a_hook_{change.__name__}"
    return deed


def kept_by_a_tensor_hook(change):
    def deed(model):
        kept = {}

        def keep(parameter):
            def hook(gradient):
                kept[parameter] = gradient.detach()

            return hook

        run = yield
        for parameter in model.parameters():
            parameter.register_hook(keep(parameter))
            parameter.register_post_accumulate_grad_hook(lambda p: change(kept[p]))
        run.step()
        run.step()

    deed.__name__ = f"kept_by_a_tensor_hook_{change.__name__}"
    return deed


def set_by_its_user(change):
    def deed(model):
        run = yield
        mine = {parameter: torch.zeros_like(parameter) for parameter in model.parameters()}
        for parameter, gradient in mine.items():
            parameter.grad = gradient
            parameter.register_post_accumulate_grad_hook(lambda p: change(mine[p]))
        run.loss().backward()
        run.optimizer.step()
        run.step()

    deed.__name__ = f"set_by_its_user_{change.__name__}"
    return deed


def flat(model):
    """One tensor with all gradients, which are views of it."""
    whole = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    start = 0
    for parameter in model.parameters():
        parameter.grad = whole[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return whole


def flat_changed_by_a_hook(model):
    run = yield
    whole = flat(model)
    first = model[0].bias
    first.register_post_accumulate_grad_hook(lambda _: in_place(whole))
    for _ in range(2):
        whole.zero_()
        run.loss().backward()
        run.optimizer.step()


def flat_changed_before_the_step(model):
    run = yield
    whole = flat(model)
    for _ in range(2):
        whole.zero_()
        run.loss().backward()
        if hasattr(run.optimizer, "remove"):
            run.optimizer.synchronize()
        whole.mul_(0.5)
        run.optimizer.step()
        if hasattr(run.optimizer, "remove"):
            run.optimizer.synchronize()


def flat_changed_on_its_way(model):
    """The gradients are on their way behind an optimizer, because one is missing, and behind CrossBarrier."""
    run = yield
    whole = flat(model)
    run.optimizer.zero_grad(set_to_none=False)
    model[0].bias.requires_grad_(False)
    run.loss().backward()
    model[0].bias.requires_grad_(True)
    whole.mul_(0.5)
    run.optimizer.step()


TABLE = {
    kept_by_a_hook(nothing): EQUAL,
    kept_by_a_tensor_hook(nothing): EQUAL,
    set_by_its_user(nothing): EQUAL,
    # PyTorch's wrapper takes gradients after all hooks of a parameter.
    **{kept_by_a_hook(change): {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED}
       for change in (in_place, by_data, by_numpy)},
    **{kept_by_a_tensor_hook(change): {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED}
       for change in (by_data, by_numpy)},
    **{set_by_its_user(change): {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED}
       for change in (in_place, by_data, by_numpy)},
    flat_changed_by_a_hook: {"wrapper": REFUSED, "optimizer": REFUSED, "barrier": REFUSED},
    flat_changed_before_the_step: EQUAL,
    flat_changed_on_its_way: REFUSED,
}
NOT_BEHIND = {
    "hook": {flat_changed_by_a_hook, flat_changed_before_the_step, flat_changed_on_its_way},
    "wrapper": {flat_changed_on_its_way},
    "byteps wrapper": {flat_changed_on_its_way},
}
"""PyTorch's wrapper makes gradients anew, and a wrapper has averages when `backward()` returns."""
CASES = [(deed, door) for deed in TABLE for door in DOORS if deed not in NOT_BEHIND.get(door, ())]


@pytest.mark.parametrize("deed, door", CASES, ids=[f"{deed.__name__}-{door}" for deed, door in CASES])
def test_nothing_changes_a_gradient_on_its_way_in_silence(deed, door):
    assert outcome(deed, door) == expected(TABLE[deed], door)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_only_gradients_that_somebody_else_may_hold_are_copied(set_to_none, monkeypatch):
    from gradlane.torch import _in_flight

    copied = []
    plain = _in_flight.may_be_held
    monkeypatch.setattr(_in_flight, "may_be_held", lambda parameter: copied.append(plain(parameter)) or copied[-1])
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = gl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(3):
        optimizer.zero_grad(set_to_none)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert copied == [False] * 12
