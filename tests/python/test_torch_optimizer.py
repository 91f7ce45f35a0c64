"""`DistributedOptimizer`: when gradients travel, what happens to those that do not come, what is said of mistakes."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from gradlane.errors import InvalidArgumentError  # noqa: E402
from torch import nn  # noqa: E402
from training import (  # noqa: E402
    assert_close,
    assert_equal_everywhere,
    batches,
    made,
    mine,
    mlp,
    sgd,
    step,
    trained_alone,
)

pytestmark = [pytest.mark.workers(2), pytest.mark.over("shm")]


def distributed(model, **options):
    return gl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), **options)


def two_layers():
    """Two weights of 4 that are 1 everywhere."""
    model = nn.ModuleDict({"left": nn.Linear(4, 1, bias=False), "right": nn.Linear(4, 1, bias=False)})
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    return model


ONES = torch.ones(1, 4)


def test_it_stays_an_optimizer_of_its_class():
    plain = torch.optim.AdamW(made(mlp).parameters(), lr=0.5)
    wrapped = gl.DistributedOptimizer(plain)
    assert wrapped is plain and isinstance(wrapped, torch.optim.AdamW) and type(wrapped).__name__ == "AdamW"
    assert wrapped.param_groups[0]["lr"] == 0.5


def test_gradients_are_complete_when_backward_returns_if_all_are_there():
    model = two_layers()
    optimizer = distributed(model)  # noqa: F841  (without a reference it would be freed)
    (model["left"](ONES * (gl.rank() + 1)) + model["right"](ONES)).sum().backward()
    assert model["left"].weight.grad.tolist() == [[1.5] * 4]


def test_a_sum_can_be_asked_for():
    model = two_layers()
    optimizer = distributed(model, op=gl.Sum)
    (model["left"](ONES) + model["right"](ONES)).sum().backward()
    optimizer.step()
    assert model["left"].weight.tolist() == [[-1.0] * 4]


def test_losses_may_be_run_backward_one_by_one():
    model = two_layers()
    optimizer = distributed(model)
    for _ in range(2):
        optimizer.zero_grad()
        for layer in model.values():
            layer(ONES * (gl.rank() + 1)).sum().backward()
        optimizer.step()
    assert all(layer.weight.tolist() == [[-2.0] * 4] for layer in model.values())


def test_workers_may_take_different_branches_without_waiting_for_each_other():
    model = two_layers()
    optimizer = distributed(model)
    model[["left", "right"][gl.rank()]](ONES).sum().backward()
    optimizer.step()
    assert [layer.weight.tolist() for layer in model.values()] == [[[0.5] * 4]] * 2


def test_a_parameter_that_nobody_used_is_not_stepped_on():
    model = two_layers()
    weight_decay = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
    optimizer = gl.DistributedOptimizer(weight_decay, model.named_parameters())
    model["left"](ONES).sum().backward()
    optimizer.step()
    assert model["right"].weight.grad is None and model["right"].weight.tolist() == [[1.0] * 4]


def test_several_backward_passes_make_one_step_and_one_exchange():
    model = made(mlp)
    optimizer = gl.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), backward_passes_per_step=4)
    before = gl.metrics()["push_bytes"]
    for inputs, labels in map(mine, batches(4)):
        (F.cross_entropy(model(inputs), labels) / 4).backward()
    sent = gl.metrics()["push_bytes"] - before
    gradients = sum(p.numel() * 4 for p in model.parameters())
    assert sent == gradients + 4 + gl.size(), "the gradients once, and one byte a parameter and a worker"
    optimizer.step()

    reference = made(mlp)
    stepping = sgd(reference.parameters())
    for inputs, labels in batches(4):
        (F.cross_entropy(reference(inputs), labels) / 4).backward()
    stepping.step()
    assert_close(model, reference)


def test_the_number_of_passes_can_be_changed():
    model = two_layers()
    optimizer = distributed(model, backward_passes_per_step=2)
    optimizer.set_backward_passes_per_step(1)
    (model["left"](ONES) + model["right"](ONES)).sum().backward()
    optimizer.step()
    assert model["left"].weight.tolist() == [[0.0] * 4]
    with pytest.raises(gl.Error, match="at least 1"):
        optimizer.set_backward_passes_per_step(0)


def test_the_old_way_to_synchronize_and_clip_works():
    model = two_layers()
    optimizer = distributed(model)
    model["left"](ONES * 4 * gl.rank()).sum().backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert torch.allclose(model["left"].weight, torch.zeros(1, 4), atol=1e-5)


class Foreign(torch.optim.Optimizer):
    """An optimizer that is not PyTorch's, so that nobody knows whether it decides by the loss."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        return closure()


def test_a_worker_whose_closure_gives_no_number_takes_part_in_the_average_of_the_losses():
    model = two_layers()
    optimizer = gl.DistributedOptimizer(Foreign(model.parameters()), model.named_parameters())

    def closure():
        optimizer.zero_grad()
        loss = sum(model[side](torch.ones(1, 4)).sum() for side in model)
        loss.backward()
        return None if gl.rank() == 1 else loss

    loss = optimizer.step(closure)
    assert loss is None if gl.rank() == 1 else loss.item() == 8.0, loss


@pytest.mark.parametrize("average_losses", [None, True, False])
def test_losses_are_averaged_for_optimizers_that_may_decide_by_them(average_losses):
    model = two_layers()
    optimizer = Foreign(model.parameters())
    optimizer = gl.DistributedOptimizer(optimizer, model.named_parameters(), average_losses=average_losses)
    loss = optimizer.step(lambda: torch.tensor(4.0 * gl.rank()))
    mean = 4.0 * sum(range(gl.size())) / gl.size()
    assert loss.item() == (4.0 * gl.rank() if average_losses is False else mean)


def test_a_step_takes_a_closure():
    model = made(mlp)
    optimizer = gl.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for inputs, labels in map(mine, batches(3)):

        def closure(inputs=inputs, labels=labels):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(closure)
    reference, _ = trained_alone(mlp, sgd, 3)
    assert_close(model, reference)


def test_a_scheduler_made_before_the_wrapper_goes_on_to_steer():
    model = made(mlp)
    plain = sgd(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
    optimizer = gl.DistributedOptimizer(plain, model.named_parameters())
    for batch in batches(3):
        step(model, optimizer, mine(batch))
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 8)
    assert_equal_everywhere(model, "scheduled")


def test_infinity_on_one_rank_makes_all_ranks_skip_the_same_step():
    model = made(mlp)
    optimizer = gl.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scales = []
    for number, (inputs, labels) in enumerate(map(mine, batches(3))):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        scaler.scale(loss * float("inf") if (number, gl.rank()) == (1, 0) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert gl.allgather_object(scales, "scales") == [[8.0, 4.0, 4.0]] * 2
    assert_equal_everywhere(model, "after the skip")


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients_are_averaged(as_dense):
    model = nn.Embedding(5, 2, sparse=True)
    gl.broadcast_parameters(model.state_dict())
    before = model.weight.detach().clone()
    optimizer = gl.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), sparse_as_dense=as_dense
    )
    model(torch.tensor([[0, 1], [1, 2]][gl.rank()])).sum().backward()
    optimizer.step()
    assert model.weight.grad.is_sparse
    assert torch.allclose(before - model.weight, torch.tensor([0.5, 1.0, 0.5, 0.0, 0.0])[:, None].expand(5, 2))


@pytest.mark.parametrize("wrap", ["optimizer", "barrier"])
def test_an_optimizer_of_sparse_gradients_gets_them_although_they_travel_dense(wrap):
    # Worker 1 uses the weight in the second step only.
    model = nn.Embedding(5, 2, sparse=True)
    gl.broadcast_parameters(model.state_dict(), prefix=f"{wrap}.")
    plain = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    if wrap == "optimizer":
        optimizer = gl.DistributedOptimizer(plain, model.named_parameters(), sparse_as_dense=True)
    else:
        optimizer = gl.CrossBarrier(model, plain, sparse_as_dense=True)
    for number in range(2):
        optimizer.zero_grad()
        if number or gl.rank() == 0:
            model(torch.tensor([gl.rank(), 2])).sum().backward()
        optimizer.step()
    optimizer.synchronize()
    assert_equal_everywhere(model, f"after SparseAdam with {wrap}")


def test_a_copy_is_an_optimizer_of_the_class_that_averages_nothing_and_does_not_train():
    model = two_layers()
    optimizer = distributed(model)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(copy.deepcopy(optimizer))):
        assert not hasattr(copied, "synchronize") and isinstance(copied, torch.optim.SGD)
        copied.step()  # there are no gradients
        own = copied.param_groups[0]["params"]
        own[1].grad = torch.ones_like(own[1])
        with pytest.raises(gl.Error, match=r"parameter 0\.1 .*a copy averages nothing"):
            copied.step()
        with pytest.raises(gl.Error, match=r"parameter 0\.1 .*a copy averages nothing"):
            copied.step(lambda: 0.0)
        again = gl.DistributedOptimizer(copied)
        again.step()
        assert own[1].tolist() == [[0.0] * 4]


def test_clearing_gradients_that_are_on_their_way_is_refused():
    model = two_layers()
    optimizer = distributed(model)
    model["left"](ONES).sum().backward()
    with pytest.raises(gl.Error, match="call step"):
        optimizer.zero_grad()
    optimizer.synchronize()
    optimizer.zero_grad()


def test_two_parameters_of_one_name_are_refused():
    model = two_layers()
    pairs = [("weight", parameter) for parameter in model.parameters()]
    with pytest.raises(gl.Error, match="one name: weight"):
        gl.DistributedOptimizer(sgd(model.parameters()), pairs)


def test_a_parameter_without_a_name_is_refused():
    model = two_layers()
    with pytest.raises(gl.Error, match=r"0\.1"):
        gl.DistributedOptimizer(sgd(model.parameters()), [("left", model["left"].weight)])
    with pytest.raises(gl.Error, match="pairs"):
        gl.DistributedOptimizer(sgd(model.parameters()), list(model.parameters()))


def test_wrapping_twice_and_adding_parameters_later_are_refused():
    optimizer = distributed(two_layers())
    with pytest.raises(gl.Error, match="wrap it once"):
        gl.DistributedOptimizer(optimizer)
    with pytest.raises(gl.Error, match="before DistributedOptimizer"):
        optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})


def test_a_worker_outside_of_the_process_set_is_refused():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(InvalidArgumentError, match="only members may make this call"):
        gl.DistributedOptimizer(optimizer, process_set=gl.ProcessSet([1 - gl.rank()]))
    assert type(optimizer) is torch.optim.SGD


def test_the_members_of_a_process_set_average_among_themselves():
    weight = nn.Parameter(torch.zeros(2))
    optimizer = gl.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), process_set=gl.ProcessSet([gl.rank()]))
    (weight * (1.0 + gl.rank())).sum().backward()
    optimizer.step()
    assert weight.tolist() == [-1.0 - gl.rank()] * 2, "each worker is a set of its own"
