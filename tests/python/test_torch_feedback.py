"""Error feedback of a model's gradients: it is saved and restored, and it follows the learning rate."""

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
from gradlane import _session  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.over("quic"), pytest.mark.workers(2, servers=2)]

TOPK = gl.Compression.topk(k=10_000, feedback=True, momentum=0.5)
INT4 = gl.Compression.int4(feedback=True)
ONEBIT = gl.Compression.onebit(feedback=True)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(64, 64)


def by_optimizer(model, compression, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return model, gl.DistributedOptimizer(optimizer, model.named_parameters(), compression)


def by_cross_barrier(model, compression, lr=0.1):
    return model, gl.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=lr), compression=compression)


def step(model, optimizer, number):
    torch.manual_seed(100 * number + gl.rank())
    optimizer.zero_grad()
    model(torch.randn(4, 64)).square().sum().backward()
    optimizer.step()


def weights(model, optimizer):
    optimizer.synchronize()
    return model.weight.detach().clone()


@pytest.mark.parametrize("compression", [TOPK, INT4, ONEBIT], ids=["topk", "int4", "onebit"])
@pytest.mark.parametrize("wrapped", [by_optimizer, by_cross_barrier])
def test_training_goes_on_from_a_saved_state_as_if_it_had_not_stopped(wrapped, compression):
    model, optimizer = wrapped(net(), compression)
    for number in range(3):
        step(model, optimizer, number)
    saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    kept = saved[0]["gradlane_feedback"]["tensors"]["weight"]
    # The answers of topk lose nothing, and the others have no momentum here.
    assert kept.keys() == {"residual", "velocity" if compression is TOPK else "answers"}
    assert all(tensor.abs().sum() > 0 for tensor in kept.values())
    for number in range(3, 6):
        step(model, optimizer, number)

    other, resumed = wrapped(net(1), compression)
    other.load_state_dict(saved[1])
    resumed.load_state_dict(saved[0])
    for number in range(3, 6):
        step(other, resumed, number)
    assert torch.equal(weights(other, resumed), weights(model, optimizer))

    third, fresh = wrapped(net(1), compression)
    third.load_state_dict(saved[1])
    fresh.load_state_dict({key: value for key, value in saved[0].items() if key != "gradlane_feedback"})
    for number in range(3, 6):
        step(third, fresh, number)
    assert not torch.equal(weights(third, fresh), weights(model, optimizer)), "what was left made a difference"


def test_what_was_loaded_is_saved_again_before_the_next_step():
    model, optimizer = by_optimizer(net(), INT4)
    for number in range(2):
        step(model, optimizer, number)
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = by_optimizer(net(), INT4)[1]
    resumed.load_state_dict(saved)
    again = resumed.state_dict()["gradlane_feedback"]["tensors"]["weight"]
    for kind, tensor in saved["gradlane_feedback"]["tensors"]["weight"].items():
        assert torch.equal(again[kind], tensor), kind


def test_a_state_without_what_servers_keep_is_loaded_as_before():
    model, optimizer = by_optimizer(net(), INT4)
    step(model, optimizer, 0)
    state = copy.deepcopy(optimizer.state_dict())
    feedback = state["gradlane_feedback"]
    del feedback["codecs"], feedback["tensors"]["weight"]["answers"]
    other, resumed = by_optimizer(net(), INT4)
    resumed.load_state_dict(state)
    kept = resumed.state_dict()["gradlane_feedback"]["tensors"]["weight"]
    assert torch.equal(kept["residual"], feedback["tensors"]["weight"]["residual"])
    assert not kept["answers"].any(), "the answers begin at zero"
    step(other, resumed, 1)


def test_workers_that_have_loaded_different_states_hear_so_and_the_servers_go_on():
    states = []
    for seed in (0, 1):
        model, optimizer = by_optimizer(net(seed), INT4)
        step(model, optimizer, seed)
        states.append(copy.deepcopy(optimizer.state_dict()))
    model, optimizer = by_optimizer(net(), INT4)
    if gl.rank() == 0:
        optimizer.load_state_dict(states[0])
    gl.barrier()
    if gl.rank() == 1:
        with pytest.raises(gl.MismatchError, match="worker 0 has saved error feedback of the answers with CRC.*worker 1"):
            optimizer.load_state_dict(states[1])
    with pytest.raises(gl.MismatchError, match="has error feedback of the answers from a state that was loaded"):
        step(model, optimizer, 2)
    model, optimizer = by_optimizer(net(), INT4)
    optimizer.load_state_dict(states[0])
    for number in range(3, 5):
        step(model, optimizer, number)


def test_a_plain_optimizer_loads_the_state_and_a_distributed_one_that_of_a_plain_one():
    model, optimizer = by_optimizer(net(), TOPK)
    step(model, optimizer, 0)
    plain = torch.optim.SGD(net().parameters(), lr=0.5)
    plain.load_state_dict(optimizer.state_dict())
    assert plain.param_groups[0]["lr"] == 0.1
    optimizer.load_state_dict(torch.optim.SGD(net().parameters(), lr=0.5).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_state_that_does_not_fit_is_refused_or_left_with_a_warning():
    model, optimizer = by_optimizer(net(), TOPK)
    step(model, optimizer, 0)
    state = optimizer.state_dict()

    def changed(**feedback):
        return {**state, "gradlane_feedback": {**state["gradlane_feedback"], **feedback}}

    with pytest.raises(gl.Error, match="other parameters: bias"):
        optimizer.load_state_dict(changed(tensors={**state["gradlane_feedback"]["tensors"], "bias": {}}))
    with pytest.raises(gl.Error, match=r"saved residual of weight has the shape \[3\] instead of \[64, 64\]"):
        optimizer.load_state_dict(changed(tensors={"weight": {"residual": torch.ones(3)}}))
    with pytest.raises(gl.Error, match="saved velocity of tensor .* has 0 bytes instead of 16384"):
        optimizer.load_state_dict(changed(tensors={"weight": {"residual": torch.ones(64, 64)}}))
    with pytest.warns(UserWarning, match="rank 1 in a job of 7 workers.*begins at zero"):
        optimizer.load_state_dict(changed(rank=1, size=7))
    with_answers, other = by_optimizer(net(), INT4)[1], by_optimizer(net(), ONEBIT)[1]
    of_int4 = with_answers.state_dict()
    with pytest.raises(gl.Error, match="saved error feedback of weight is of the compression int4.* instead of onebit"):
        other.load_state_dict(of_int4)
    damaged = copy.deepcopy(of_int4)
    damaged["gradlane_feedback"]["tensors"]["weight"]["answers"] = torch.ones(64)
    with pytest.raises(gl.Error, match=r"saved answers of weight has the shape \[64\] instead of \[64, 64\]"):
        with_answers.load_state_dict(damaged)
    without = by_optimizer(net(), gl.Compression.none)[1]
    with pytest.raises(gl.Error, match="other parameters: weight"):
        without.load_state_dict(state)
    assert "gradlane_feedback" not in without.state_dict()


@pytest.mark.parametrize("wrapped", [by_optimizer, by_cross_barrier])
def test_what_was_lost_at_another_learning_rate_counts_as_it_did_then(wrapped):
    # One element is sent in each step, the largest. Each moves the weight by itself times the rate of its own step.
    model = net()
    with torch.no_grad():
        model.weight.zero_()
    model, optimizer = wrapped(model, gl.Compression.topk(k=1, feedback=True), lr=1.0)
    for rate, given in [(1.0, (4.0, 2.0)), (0.5, (0.0, 0.0)), (0.25, (0.0, 0.0))]:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        gradient = torch.zeros(64, 64)
        gradient[0, :2] = torch.tensor(given)
        (model(torch.eye(64)) * gradient.t()).sum().backward()
        optimizer.step()
    assert weights(model, optimizer)[0, :3].tolist() == [-4.0, -2.0, 0.0]


def by_ddp(model, compression, lr=0.1):
    model = gl.DistributedDataParallel(model, compression=compression)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.follow_learning_rate(optimizer)
    return model, optimizer


def scaled_steps(wrapped, overflows, scale, compression):
    """Trains for six steps with a scaled loss. Before those of `overflows` one more is skipped."""
    model, optimizer = wrapped(nn.Sequential(net(0), net(1)), compression)
    first, second = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
    (model if isinstance(model, gl.DistributedDataParallel) else optimizer).follow_scaler(scaler)
    number = 0
    while number < 6:
        torch.manual_seed(100 * number + gl.rank())
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64)).square().sum()
        is_overflow = number in overflows
        if is_overflow:
            overflows = overflows - {number}
            loss = loss + first[0, 0] * float("inf")  # what is kept of the second is what could change
        scaler.scale(loss).backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        number += not is_overflow
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    return torch.cat([first.detach(), second.detach()])


@pytest.mark.parametrize("compression", [TOPK, INT4], ids=["topk", "int4"])
@pytest.mark.parametrize("wrapped", [by_ddp, by_optimizer, by_cross_barrier])
def test_a_step_that_is_skipped_for_an_overflow_changes_nothing_that_is_kept(wrapped, compression):
    plain = scaled_steps(wrapped, frozenset(), 2.0**10, compression)
    assert torch.equal(scaled_steps(wrapped, frozenset(), 2.0**4, compression), plain), "the scale does not count"
    assert torch.equal(scaled_steps(wrapped, frozenset({2, 4}), 2.0**10, compression), plain)


def amp_steps(model, optimizer, scaler, numbers, skipped=()):
    """Steps with a scaled loss. One more is skipped before each number of `skipped`."""
    for number in numbers:
        for is_overflow in [True] * (number in skipped) + [False]:
            torch.manual_seed(100 * number + gl.rank())
            optimizer.zero_grad()
            loss = model(torch.randn(4, 64)).square().sum()
            if is_overflow:
                loss = loss + model[0].weight[0, 0] * float("inf")
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize() if hasattr(optimizer, "skip_synchronize") else contextlib.nullcontext():
                scaler.step(optimizer)
            scaler.update()
            if is_overflow and number == numbers[-1]:
                return


def amp(seed):
    model, optimizer = by_optimizer(nn.Sequential(net(seed), net(seed + 1)), INT4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    optimizer.follow_scaler(scaler)
    return model, optimizer, scaler


def test_a_state_that_is_saved_after_a_skipped_step_has_nothing_of_that_step():
    model, optimizer, scaler = amp(0)
    amp_steps(model, optimizer, scaler, range(5))

    stopped, stopping, its_scaler = amp(0)
    amp_steps(stopped, stopping, its_scaler, range(4), skipped={3})
    saved = copy.deepcopy((stopped.state_dict(), stopping.state_dict(), its_scaler.state_dict()))
    resumed, going_on, last_scaler = amp(7)
    resumed.load_state_dict(saved[0])
    going_on.load_state_dict(saved[1])
    last_scaler.load_state_dict(saved[2])
    amp_steps(resumed, going_on, last_scaler, range(3, 5))
    assert torch.equal(resumed[0].weight, model[0].weight) and torch.equal(resumed[1].weight, model[1].weight)


def averages(name, unused, takes_back=True):
    """The averages of six rounds of a tensor. Before some are others, which nobody uses."""
    session, found = _session.session(), []

    def average(number):
        torch.manual_seed(100 * number + gl.rank())
        return gl.push_pull(torch.randn(5000), name, compression=INT4)

    for number in range(6):
        for more in range(unused.get(number, 0)):
            average(10 * number + more)
            if takes_back:
                session.take_back_feedback(name)
        found.append(average(number))
        if number == 0:
            session.hold_feedback(name)
    return torch.stack(found)


def test_averages_that_all_workers_take_back_change_none_that_come_later():
    plain = averages("plain", {})
    assert torch.equal(averages("taken back", {1: 1, 2: 1, 4: 2}), plain)
    assert not torch.equal(averages("used", {1: 1}, takes_back=False), plain), "what was lost made a difference"


def test_an_average_that_one_worker_alone_takes_back_leaves_all_with_the_same_bits():
    found = averages("alone", {1: 1, 4: 2}, takes_back=gl.rank() == 0)
    assert torch.equal(gl.push_pull(found, "largest", op=gl.Max), gl.push_pull(found, "smallest", op=gl.Min))


@pytest.mark.parametrize("wrapped", [by_optimizer, by_cross_barrier])
def test_a_gradient_is_clipped_on_its_worker_before_feedback_keeps_what_is_lost(wrapped):
    model = net()
    with torch.no_grad():
        model.weight.zero_()
    model, optimizer = wrapped(model, gl.Compression.topk(k=1, feedback=True), lr=1.0)
    optimizer.clip_locally(5.0 * 2.0**0.5)
    # A norm of 50 on rank 0 becomes 5; one of 5 on rank 1 stays. One element is sent in each step.
    given = torch.zeros(64, 64)
    given[0, :2] = torch.tensor([30.0, 40.0]) / (1 if gl.rank() == 0 else 10)
    for gradient in (given, torch.zeros(64, 64)):
        optimizer.zero_grad()
        (model(torch.eye(64)) * gradient.t()).sum().backward()
        optimizer.step()
    torch.testing.assert_close(weights(model, optimizer)[0, :3], torch.tensor([-3.0, -4.0, 0.0]))


def test_what_cannot_be_clipped_is_refused():
    optimizer = by_optimizer(net(), TOPK)[1]
    with pytest.raises(gl.Error, match="norm_max=0.0; give a number above zero"):
        optimizer.clip_locally(0.0)
    with pytest.raises(gl.Error, match="no gradient is compressed with error feedback"):
        by_optimizer(net(), gl.Compression.int8)[1].clip_locally(1.0)
