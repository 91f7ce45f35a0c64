"""`ServerOptimizer`: weights that live on servers, and that each worker trains without waiting for another one."""

import copy

import pytest

torch = pytest.importorskip("torch")

import gradlane  # noqa: E402
import gradlane.torch as gl  # noqa: E402
from gradlane import parameters, rules  # noqa: E402
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(2, servers=2), pytest.mark.over("shm", "quic")]

STEPS = 10


def made(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def batch(step):
    inputs = torch.randn(32, 6, generator=torch.Generator().manual_seed(step))
    return inputs, inputs[:, :2].sin() - inputs[:, 2:4]


def loss_of(model, step):
    inputs, targets = batch(step)
    return nn.functional.mse_loss(model(inputs), targets)


def test_all_begin_with_the_weights_of_one_and_a_worker_alone_trains_as_pytorch_does():
    model = made(gradlane.rank())
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.AdamW(lr=0.01), name="alone")
    assert all(map(torch.equal, model.parameters(), made(0).parameters()))
    gl.barrier("all have made it")
    if gradlane.rank() == 0:
        peer = made(0)
        peer.load_state_dict(model.state_dict())
        plain = torch.optim.AdamW(peer.parameters(), lr=0.01)
        for step in range(STEPS):
            for one, of in ((model, optimizer), (peer, plain)):
                of.zero_grad()
                loss_of(one, step).backward()
                of.step()
        for ours, theirs in zip(model.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert set(optimizer.versions.values()) == {1 + STEPS}
    gl.barrier("it has trained")
    # Without gradients a step takes over the present weights.
    optimizer.zero_grad()
    optimizer.step()
    assert set(optimizer.versions.values()) == {1 + STEPS}
    gathered = gl.allgather_object([one.detach().tolist() for one in model.parameters()])
    assert all(one == gathered[0] for one in gathered)


def test_all_train_without_waiting_and_each_gradient_counts_once():
    model = made(3)
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=0.05, momentum=0.5))
    before = loss_of(model, 999).item()
    for step in range(30):
        optimizer.zero_grad()
        # An uneven number of steps: nobody waits for the last ones of another.
        if gradlane.rank() == 0 or step < 20:
            loss_of(model, 100 * gradlane.rank() + step).backward()
            optimizer.step()
    gl.barrier("all have trained")
    optimizer.zero_grad()
    optimizer.step()
    assert set(optimizer.versions.values()) == {1 + 30 + 20 * (gradlane.size() - 1)}
    assert loss_of(model, 999).item() < 0.7 * before


def test_two_models_have_weights_of_their_own():
    models = [made(5), made(6)]
    for number, model in enumerate(models):
        for one in model.parameters():
            nn.init.constant_(one, float(number))
    optimizers = [gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=1.0)) for model in models]
    for optimizer in optimizers:
        optimizer.step()
    assert [model[0].weight[0, 0].item() for model in models] == [0.0, 1.0]


def test_frozen_parameters_stay_where_they_are():
    model = made(gradlane.rank())
    kept = model[0].weight.detach().clone()
    model[0].weight.requires_grad_(False)
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=0.1))
    loss_of(model, 1).backward()
    optimizer.step()
    assert torch.equal(model[0].weight, kept) and "0.weight" not in optimizer.versions


def test_a_closure_and_a_scaler_are_used_as_with_any_optimizer():
    model = made(8)
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=0.01))
    if gradlane.rank() != 0:
        return

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 4)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert first.item() > optimizer.step(closure).item()
    scaler = torch.amp.GradScaler("cpu")
    before = dict(optimizer.versions)
    optimizer.zero_grad()
    scaler.scale(loss_of(model, 5) * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.versions == before, "the step was left out"
    optimizer.zero_grad()
    scaler.scale(loss_of(model, 5)).backward()
    scaler.step(optimizer)
    assert set(optimizer.versions.values()) == {version + 1 for version in before.values()}


def test_averages_of_the_weights_are_for_another_model():
    model = made(gradlane.rank())
    rule = rules.SGD(lr=0.1, ema=rules.EMA(0.5))
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rule, name="averages")
    first = copy.deepcopy(model)
    evaluated = copy.deepcopy(model)
    gl.barrier("all can average")
    if gradlane.rank() == 0:
        loss_of(model, 0).backward()
        optimizer.step()
    gl.barrier("one has trained")
    evaluated.load_state_dict(optimizer.averages(), strict=False)
    optimizer.zero_grad()
    optimizer.step()
    for average, before, after in zip(evaluated.parameters(), first.parameters(), model.parameters(), strict=True):
        assert not torch.equal(before, after)
        torch.testing.assert_close(average, (before + after) / 2)
    with pytest.raises(InvalidArgumentError, match="keeps no such average"):
        optimizer.averages("window")
    with pytest.raises(InvalidArgumentError, match="kind='mean'"):
        optimizer.averages("mean")


def test_what_cannot_be_is_refused_by_name():
    model = made(1)
    sgd = rules.SGD(lr=0.1)
    for given, rule, why in [
        (model.named_parameters(), torch.optim.SGD, "gradlane.rules"),
        (model.parameters(), sgd, "named_parameters"),
        ([("w", model[0].weight), ("w", model[2].weight)], sgd, "two parameters are called w"),
        ([], sgd, "nothing to train"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            gl.ServerOptimizer(given, rule=rule, name="never")
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=sgd, name="refuses")
    torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    optimizer.param_groups[0]["lr"] = 0.01
    with pytest.raises(FailedPreconditionError, match="scheduler"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    with pytest.raises(FailedPreconditionError, match="later"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(FailedPreconditionError, match="not copied"):
        copy.deepcopy(optimizer)
    for wrap in (
        lambda: gl.DistributedOptimizer(optimizer),
        lambda: gl.DistributedDataParallel(model),
        lambda: gl.ServerOptimizer(model.named_parameters(), rule=sgd, name="twice"),
    ):
        with pytest.raises(InvalidArgumentError, match="wrap a model once"):
            wrap()
    embedding = nn.Embedding(4, 2, sparse=True)
    sparse = gl.ServerOptimizer(embedding.named_parameters(), rule=sgd, name="sparse")
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidArgumentError, match="the gradient of weight is sparse"):
        sparse.step()


def test_another_rule_or_model_is_told_to_all_who_give_it():
    rank = gradlane.rank()
    with pytest.raises(MismatchError, match=r"worker 0 has the rule sgd:lr=0\.1.*worker 1 has sgd:lr=0\.2") as raised:
        gl.ServerOptimizer(made(0).named_parameters(), rule=rules.SGD(lr=0.1 * (1 + rank)), name="two rules")
    assert raised.value.fields["field"] == "rule"
    wide = nn.Sequential(nn.Linear(6 + rank, 16), nn.Tanh(), nn.Linear(16, 2))
    with pytest.raises(MismatchError, match=r"0\.weight"):
        gl.ServerOptimizer(wide.named_parameters(), rule=rules.SGD(lr=0.1), name="two models")
    parameters.init("goes on", torch.ones(1))


def test_sync_is_training_by_one_worker_with_a_larger_batch():
    model = made(7)
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.AdamW(lr=0.01), mode=gl.Sync())
    peer = made(7)
    peer.load_state_dict(model.state_dict())
    plain = torch.optim.AdamW(peer.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, 100 * gradlane.rank() + step).backward()
        outcome = optimizer.step()
        assert outcome.fates == {"accepted": 4} and outcome.tick.step == step + 1
        plain.zero_grad()
        (sum(loss_of(peer, 100 * rank + step) for rank in range(gradlane.size())) / gradlane.size()).backward()
        plain.step()
        for ours, theirs in zip(model.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert set(optimizer.versions.values()) == {1 + STEPS}


def test_the_weights_of_backup_are_equal_on_all_workers_and_a_late_one_hears_so():
    model = made(8)
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=0.05), mode=gl.Backup(k=1))
    if gradlane.rank() == 0:
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            assert optimizer.step().fates == {"accepted": 4}
    gl.barrier("worker 0 has closed three rounds")
    if gradlane.rank() == 1:
        loss_of(model, 9).backward()
        outcome = optimizer.step()
        assert outcome.fates == {"dropped_late": 4} and outcome.tick.round == 3
    gathered = gl.allgather_object([one.detach().tolist() for one in model.parameters()])
    assert all(one == gathered[0] for one in gathered)
    if gradlane.rank() == 1:
        assert optimizer.step().fates == {"accepted": 4}, "its next gradient is of present weights"


def test_ssp_holds_a_fast_worker_and_a_step_that_was_too_late_goes_on():
    model = made(9)
    optimizer = gl.ServerOptimizer(
        model.named_parameters(), rule=rules.SGD(lr=0.01), mode=gl.SSP(1), name="held", timeout=0.5
    )
    rank, size = gradlane.rank(), gradlane.size()

    def step(number):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        return optimizer.step()

    if rank == 0:
        assert step(0).tick.ahead == 1
        with pytest.raises(gradlane.TimeoutError, match="worker 1"):
            step(1)
    gl.barrier("worker 0 was held")
    if rank > 0:
        step(2)
        step(3)
    gl.barrier("the others have done two steps")
    if rank == 0:
        assert optimizer.step().tick.round == 2, "it sends nothing again"
        optimizer.zero_grad()
        optimizer.step()
        assert set(optimizer.versions.values()) == {1 + 2 + 2 * (size - 1)}


def test_other_modes_are_refused_on_all_workers_with_both_named():
    mode = gl.SSP(gradlane.rank())
    with pytest.raises(MismatchError, match="mode ssp:bound=0.*ssp:bound=1"):
        gl.ServerOptimizer(made(0).named_parameters(), rule=rules.SGD(lr=0.1), mode=mode)
    with pytest.raises(InvalidArgumentError, match="mode='ssp'"):
        gl.ServerOptimizer(made(0).named_parameters(), rule=rules.SGD(lr=0.1), mode="ssp")


def test_a_step_that_failed_half_way_brings_no_gradient_twice(monkeypatch):
    model = made(10)
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=0.1), mode=gl.Sync())
    loss_of(model, gradlane.rank()).backward()
    begin, left = parameters.push_async, [2]

    def fails_later(*arguments, **options):
        if gradlane.rank() == 0 and left[0] == 0:
            # A gradient of another shape, as a server would refuse it.
            arguments = (arguments[0], torch.zeros(99))
        left[0] -= 1
        return begin(*arguments, **options)

    monkeypatch.setattr(parameters, "push_async", fails_later)
    if gradlane.rank() == 0:
        with pytest.raises(MismatchError):
            optimizer.step()
    monkeypatch.undo()
    assert optimizer.step().fates == {"accepted": 4}
    assert set(optimizer.versions.values()) == {2}


def test_a_step_that_failed_to_read_the_weights_reads_them_and_makes_no_second_step(monkeypatch):
    model = made(11)
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=0.1), mode=gl.Sync())
    loss_of(model, gradlane.rank()).backward()
    begin = parameters.pull_async
    monkeypatch.setattr(parameters, "pull_async", lambda name, out, **options: begin(name, torch.zeros(99), **options))
    with pytest.raises(MismatchError):
        optimizer.step()
    monkeypatch.undo()
    outcome = optimizer.step()
    assert outcome.fates == {"accepted": 4} and outcome.tick.round == 1
    assert set(optimizer.versions.values()) == {2}
