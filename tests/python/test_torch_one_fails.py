"""What one worker alone cannot take part in is an error on all workers at once; process sets that share workers."""

import gradlane
import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
from gradlane.errors import InvalidArgumentError, MismatchError  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(3), pytest.mark.over("local", "shm")]

CIRCLE = [gl.ProcessSet([0, 1]), gl.ProcessSet([1, 2]), gl.ProcessSet([0, 2])]
"""Each worker belongs to two sets."""


def deeds():
    """Calls that fail on the worker that gives `wrong`."""

    def broadcast(entry):
        return lambda wrong: gl.broadcast_parameters({"fine": torch.ones(2), **(entry() if wrong else {"odd": torch.ones(4)})})

    def wrap(wrong):
        model = nn.Linear(2, 2)
        model.register_buffer("odd", torch.ones(1).expand(4) if wrong else torch.ones(4))
        gl.DistributedDataParallel(model)

    def state(wrong):
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        weight.sum().backward()
        optimizer.step()
        if wrong:
            optimizer.state[weight]["momentum_buffer"] = torch.ones(4).to_sparse()
        gl.broadcast_optimizer_state(optimizer, root_rank=1)

    def optimizer(wrong):
        weight = nn.Parameter(torch.ones(4))
        kept = [gl.DistributedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), name="kept")]
        other = kept[0].param_groups[0]["params"][0] if wrong else weight
        gl.DistributedOptimizer(torch.optim.SGD([other], lr=0.1))

    def nothing_to_train(wrong):
        gl.DistributedDataParallel(nn.Linear(2, 2).requires_grad_(not wrong))

    def no_module(wrong):
        gl.DistributedDataParallel("model" if wrong else nn.Linear(2, 2))

    def wrong_device(wrong):
        gl.DistributedDataParallel(nn.Linear(2, 2), device_ids=[0] if wrong else None)

    def wrapped_model(wrong):
        models = [nn.Linear(2, 2) for _ in range(2)]
        kept = gl.DistributedDataParallel(models[0], name="kept model")
        gl.DistributedDataParallel(models[0] if wrong else models[1])
        del kept

    def names(listed):
        def distribute(wrong):
            model = nn.Linear(2, 2)
            named = listed(model) if wrong else model.named_parameters()
            gl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named)

        return distribute

    def twice(wrong):
        plain = [torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1) for _ in range(2)]
        kept = gl.DistributedOptimizer(plain[0], name="kept plain")
        gl.DistributedOptimizer(kept if wrong else plain[1])

    def barrier_of_owned(wrong):
        models = [nn.Linear(2, 2) for _ in range(2)]
        kept = gl.DistributedOptimizer(torch.optim.SGD(models[0].parameters(), lr=0.1), name="kept behind")
        model = models[0] if wrong else models[1]
        gl.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))
        del kept

    return {
        "nothing to train": nothing_to_train,
        "no module": no_module,
        "a module on another device": wrong_device,
        "a module with a wrapper": wrapped_model,
        "names of some parameters": names(lambda model: [("weight", model.weight)]),
        "one name for two parameters": names(lambda model: [("same", p) for p in model.parameters()]),
        "parameters without names": names(lambda model: list(model.parameters())),
        "an optimizer that is distributed already": twice,
        "a barrier for parameters with an owner": barrier_of_owned,
        "a tensor without memory": broadcast(lambda: {"odd": torch.ones(4, device="meta")}),
        "no pairs": lambda wrong: gl.broadcast_parameters([torch.ones(1)] if wrong else [("odd", torch.ones(1))]),
        "an expanded tensor": broadcast(lambda: {"odd": torch.ones(1).expand(4)}),
        "a sparse tensor": broadcast(lambda: {"odd": torch.ones(4).to_sparse()}),
        "no tensor": broadcast(lambda: {"odd": 4}),
        "an expanded buffer": wrap,
        "a sparse state": state,
        "a parameter with an owner": optimizer,
        "what does not pickle": lambda wrong: gradlane.allgather((lambda: 0) if wrong else 0, "lambda"),
        "what is not plain": lambda wrong: gradlane.allgather({1} if wrong else 1, "plain", plain=True),
    }


@pytest.mark.parametrize("deed", deeds())
def test_all_workers_hear_at_once_that_one_cannot_take_part(deed):
    mine = gl.rank() == 1
    for _ in range(2):  # the name can be used again
        with pytest.raises(Exception) as raised:
            deeds()[deed](mine)
        assert not isinstance(raised.value, gl.StallError), raised.value
        if not mine:
            assert isinstance(raised.value, InvalidArgumentError) and "worker 1 could not" in str(raised.value)
    assert gl.push_pull(torch.ones(1), f"after {deed}", op=gl.Sum).item() == 3


def test_the_root_of_a_broadcast_may_have_what_can_only_be_read():
    tensor = torch.ones(1).expand(3) if gl.rank() == 1 else torch.zeros(3)
    assert gl.broadcast_(tensor, 1, "expanded").tolist() == [1.0] * 3
    assert gl.broadcast_(tensor.t(), 1, "in a set", process_set=gl.ProcessSet([0, 1, 2])).tolist() == [1.0] * 3


def test_state_dictionaries_may_have_any_order():
    shared = torch.full((2,), 1.0 + gl.rank())
    named = {"b": shared, "a": shared, "z.10": torch.full((1,), 5.0 + gl.rank()), "z.2": torch.full((3,), 7.0 + gl.rank())}
    pairs = list(named.items())[gl.rank() :] + list(named.items())[: gl.rank()]
    gl.broadcast_parameters(dict(pairs), 1)
    gl.broadcast_parameters(pairs, 1, "pairs.")
    assert [tensor[0].item() for tensor in named.values()] == [2.0, 2.0, 6.0, 8.0]


def test_a_state_of_expanded_and_shared_tensors_is_broadcast():
    weights = [nn.Parameter(torch.ones(2, 3)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    if gl.rank() == 1:
        row = torch.tensor([[1.0, 2.0, 3.0]])
        for weight in weights:
            optimizer.state[weight]["momentum_buffer"] = row.expand(2, 3)
    gl.broadcast_optimizer_state(optimizer, root_rank=1)
    for weight in weights:
        assert optimizer.state[weight]["momentum_buffer"].tolist() == [[1.0, 2.0, 3.0]] * 2


def own_sets():
    """The sets of this worker, in an order that goes around in a circle."""
    mine = [of for of in CIRCLE if of.included()]
    return mine if gl.rank() == 0 else mine[::-1] if gl.rank() == 2 else [CIRCLE[1], CIRCLE[0]]


def test_optimizers_of_sets_that_share_workers_are_made_in_any_order():
    weights = {of: nn.Parameter(torch.zeros(2)) for of in own_sets()}
    optimizers = {
        of: gl.DistributedOptimizer(torch.optim.SGD([weights[of]], lr=1.0), process_set=of, name="of a set")
        for of in own_sets()
    }
    for of in CIRCLE:
        if of.included():
            (weights[of] * (1.0 + gl.rank())).sum().backward()
            optimizers[of].step()
            assert weights[of].tolist() == [-sum(1.0 + rank for rank in of.ranks) / 2] * 2


def test_models_that_differ_in_a_set_are_refused_before_the_first_gradient_travels():
    of = CIRCLE[0]
    if of.included():
        weight = nn.Parameter(torch.zeros(2 + gl.rank()))
        optimizer = gl.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), process_set=of, name="differs")
        with pytest.raises(MismatchError, match=r"worker 0 has .*\[2\], worker 1 has .*\[3\]"):
            weight.sum().backward()
        with pytest.raises(MismatchError):
            optimizer.step()


def test_after_a_backward_pass_that_raised_the_model_is_wrapped_again():
    model = nn.Linear(2, 1)
    wrapped = gl.DistributedDataParallel(model)

    def raises(_):
        raise ValueError("the user's own")

    hook = model.weight.register_hook(raises)
    with pytest.raises(ValueError, match="the user's own"):
        wrapped(torch.ones(1, 2)).sum().backward()
    hook.remove()
    with pytest.raises(gl.Error, match="a backward pass failed before.*zero_grad.*wrap the model again"):
        wrapped(torch.ones(1, 2)).sum().backward()
    model.zero_grad()
    del wrapped
    wrapped = gl.DistributedDataParallel(model)
    wrapped(torch.full((1, 2), float(gl.rank()))).sum().backward()
    assert model.weight.grad.tolist() == [[1.0, 1.0]]
