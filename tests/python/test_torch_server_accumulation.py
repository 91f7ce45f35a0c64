"""`ServerOptimizer` with micro-batches that are sent together, and with gradients that leave during the backward pass."""

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

import gradlane  # noqa: E402
import gradlane.torch as gl  # noqa: E402
from gradlane import parameters, rules  # noqa: E402
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(2, servers=2), pytest.mark.over("shm", "quic")]

LATER = pytest.mark.parametrize("overlap", [False, True], ids=["step", "overlap"])


class Line(nn.Module):
    """`rows` weights, whose gradients are what it is called with: losses are exact sums."""

    def __init__(self, rows=4):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows))
        self.rare = nn.Parameter(torch.zeros(2))

    def forward(self, gradient, *, is_rare=False):
        loss = (self.weight * gradient).sum()
        return loss + self.rare.sum() if is_rare else loss


def line(**options):
    model = Line()
    options.setdefault("rule", rules.SGD(lr=1.0))
    return model, gl.ServerOptimizer(model.named_parameters(), **options)


def mine(model, optimizer, gradients, **options):
    """Backward passes with these gradients, each followed by a step; what the steps return."""
    outcomes = []
    for gradient in gradients:
        optimizer.zero_grad()
        model(gradient).backward()
        outcomes.append(optimizer.step(**options))
    return outcomes


def only_worker_0(check):
    """Runs it on worker 0 and lets the others wait, who have made the same optimizers."""
    if gradlane.rank() == 0:
        check()
    gl.barrier("worker 0 is done")


@LATER
def test_n_micro_batches_are_one_step_with_their_mean(overlap):
    model, optimizer = line(accumulate=3, overlap=overlap)

    def check():
        outcomes = mine(model, optimizer, [3.0, 6.0, 0.0, 1.0, 1.0, 1.0])
        assert [outcome is not None for outcome in outcomes] == [False, False, True] * 2
        assert outcomes[2].fates == {"accepted": 1}
        assert model.weight.tolist() == [-4.0] * 4, "3, and then 1"
        assert optimizer.versions == {"weight": 3, "rare": 1}

    only_worker_0(check)


def test_a_mean_weighs_micro_batches_by_their_samples_and_equals_the_batch_of_all():
    torch.manual_seed(2)
    inputs, targets = torch.randn(24, 5), torch.randn(24, 3)
    torch.manual_seed(3)
    model = nn.Linear(5, 3)
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=0.5), accumulate=3)

    def check():
        peer = copy.deepcopy(model)
        plain = torch.optim.SGD(peer.parameters(), lr=0.5)
        for part in (slice(0, 4), slice(4, 20), slice(20, 24)):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[part]), targets[part]).backward()
            optimizer.step(samples=part.stop - part.start)
        nn.functional.mse_loss(peer(inputs), targets).backward()
        plain.step()
        for ours, theirs in zip(model.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)

    only_worker_0(check)


@LATER
def test_a_sum_is_not_divided(overlap):
    model, optimizer = line(accumulate=2, merge="sum", overlap=overlap)

    def check():
        mine(model, optimizer, [3.0, 4.0])
        assert model.weight.tolist() == [-7.0] * 4

    only_worker_0(check)


@LATER
def test_a_shorter_tail_counts_as_what_it_is(overlap):
    model, optimizer = line(accumulate=4, overlap=overlap)

    def check():
        assert optimizer.flush() is None, "there is nothing"
        mine(model, optimizer, [2.0, 4.0])
        assert model.weight.tolist() == [0.0] * 4
        assert optimizer.flush().fates == {"accepted": 1}
        assert model.weight.tolist() == [-3.0] * 4, "the mean of two"
        assert optimizer.flush() is None
        mine(model, optimizer, [1.0])
        optimizer.leave()
        assert model.weight.tolist() == [-4.0] * 4, "whoever leaves flushes"

    only_worker_0(check)


@LATER
def test_a_parameter_without_a_gradient_in_a_micro_batch_has_zeros_there(overlap):
    model, optimizer = line(accumulate=4, overlap=overlap)

    def check():
        for number in range(4):
            model(1.0, is_rare=number == 1).backward()
            optimizer.step()
        assert model.rare.tolist() == [-0.25] * 2 and model.weight.tolist() == [-1.0] * 4

    only_worker_0(check)


@LATER
def test_a_forgotten_zero_grad_counts_no_micro_batch_twice(overlap):
    model, optimizer = line(accumulate=2, overlap=overlap)

    def check():
        for gradient in (2.0, 4.0):
            model(gradient).backward()
            optimizer.step()
            assert model.weight.grad is None, "the step has taken it"
        assert model.weight.tolist() == [-3.0] * 4

    only_worker_0(check)


@LATER
def test_accumulating_workers_close_rounds_together(overlap):
    rank, size = gradlane.rank(), gradlane.size()
    # They may have micro-batches of different numbers: a round is one of each worker.
    model, optimizer = line(mode=gl.Sync(), accumulate=1 + rank, overlap=overlap)
    for number in range(3):
        outcomes = mine(model, optimizer, [float(rank)] * (1 + rank))
        assert [outcome is None for outcome in outcomes] == [True] * rank + [False]
        assert outcomes[-1].tick.round == number + 1
    assert model.weight.tolist() == [-3 * sum(range(size)) / size] * 4


def test_halves_are_added_in_float32():
    model = nn.Linear(1, 1, bias=False).half()
    nn.init.zeros_(model.weight)
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=1.0), accumulate=4097, merge="sum")

    def check():
        for _ in range(4096):
            model.weight.grad = torch.ones(1, 1, dtype=torch.float16)
            optimizer.step()
        optimizer.flush()
        assert model.weight.item() == -4096.0, "in float16 ones add up to 2048"

    only_worker_0(check)


@pytest.mark.parametrize("mode", [gl.Async(), gl.SSP(8), gl.Sync()], ids=str)
def test_gradients_that_left_during_the_backward_pass_make_the_same_weights(mode):
    trained = []
    for overlap in (False, True):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.AdamW(lr=0.01), mode=mode, overlap=overlap)
        # In a mode without rounds the order of workers counts, so one trains alone.
        if gradlane.rank() == 0 or mode == gl.Sync():
            for step in range(6):
                inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                assert optimizer.step().fates == {"accepted": 4}
            assert set(optimizer.versions.values()) == {7}
        gl.barrier(f"{mode} {overlap} is trained")
        optimizer.pull()
        trained.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *trained))


def test_a_gradient_leaves_before_the_backward_pass_ends(monkeypatch):
    sent, push = [], parameters.push_async

    def noted(name, *arguments, **options):
        sent.append(name.rpartition("/")[2])
        return push(name, *arguments, **options)

    monkeypatch.setattr(parameters, "push_async", noted)
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=0.1), overlap=True, name="leaves")
    seen = []
    model[0].weight.register_hook(lambda _: seen.append(list(sent)))
    model(torch.ones(1, 2)).sum().backward()
    assert seen == [["1.weight"]] and sent == ["1.weight", "0.weight"]
    optimizer.step()
    assert sent == ["1.weight", "0.weight"], "a step sends nothing again"
    gl.barrier("gradients have left")


def test_what_uses_a_gradient_that_has_left_is_told_what_to_do():
    model, optimizer = line(overlap=True)
    scaler = torch.amp.GradScaler("cpu")

    def check():
        scaler.scale(model(1.0)).backward()
        for use in (
            lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
            lambda: nn.utils.clip_grad_value_(model.parameters(), 1.0),
            lambda: scaler.unscale_(optimizer),
            lambda: model.weight.grad.mul_(2.0),
        ):
            with pytest.raises(FailedPreconditionError, match=r"the gradient of weight, which is on its way; .*without overlap=True"):
                use()
        for call in (optimizer.zero_grad, optimizer.flush, optimizer.leave, optimizer.state_dict):
            with pytest.raises(FailedPreconditionError, match=r"call step\(\) between"):
                call()
        with pytest.raises(FailedPreconditionError, match=r"weight gets a second gradient before step\(\).*no_sync"):
            model(1.0).backward()
        assert optimizer.step().fates == {"accepted": 1}
        assert model.weight.grad.tolist() == [scaler.get_scale()] * 4, "it is given back"
        optimizer.zero_grad()
        model(1.0).backward()
        model.zero_grad()
        with pytest.raises(FailedPreconditionError, match="the gradient of weight was cleared while it was on its way"):
            optimizer.step()

    only_worker_0(check)


@LATER
def test_within_no_sync_gradients_add_up_here(overlap):
    model, optimizer = line(overlap=overlap)

    def check():
        with optimizer.no_sync():
            model(1.0, is_rare=True).backward()
            model(2.0).backward()
            with pytest.raises(FailedPreconditionError, match="within no_sync"):
                optimizer.step()
        model(4.0).backward()
        assert optimizer.step().fates == {"accepted": 2}
        assert model.weight.tolist() == [-7.0] * 4 and model.rare.tolist() == [-1.0] * 2

    only_worker_0(check)


def test_a_backward_pass_that_breaks_off_is_ended_by_a_step():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    optimizer = gl.ServerOptimizer(model.named_parameters(), rule=rules.SGD(lr=1.0), mode=gl.Sync(), overlap=True)
    breaks = [gradlane.rank() == 0]

    def hook(gradient):
        if breaks.pop():
            raise KeyError("out of memory")
        return gradient

    handle = model[0].weight.register_hook(hook)
    loss = model(torch.ones(1, 2)).sum()
    if gradlane.rank() == 0:
        with pytest.raises(KeyError):
            loss.backward()
        with pytest.raises(FailedPreconditionError, match="step"):
            optimizer.zero_grad()
    else:
        loss.backward()
    handle.remove()
    outcome = optimizer.step()
    assert outcome.fates == {"accepted": 1 if gradlane.rank() == 0 else 2} and outcome.tick.round == 1
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    assert optimizer.step().fates == {"accepted": 2}


def test_a_micro_batch_that_a_scaler_leaves_out_is_none():
    model, optimizer = line(accumulate=2)

    def check():
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (1.0, float("inf"), 3.0):
            optimizer.zero_grad()
            scaler.scale(model(factor)).backward()
            scaler.step(optimizer)
            scaler.update()
        assert model.weight.tolist() == [-2.0] * 4 and optimizer.versions["weight"] == 2

    only_worker_0(check)


class Refused:
    """Gives one parameter a gradient of another shape, as a server would refuse it."""

    def __init__(self, monkeypatch, call, label):
        self._begin, self._label = getattr(parameters, call), label
        monkeypatch.setattr(parameters, call, self)

    def __call__(self, name, *arguments, **options):
        if name.endswith(f"/{self._label}"):
            return self._begin(name, torch.zeros(99), update=options["update"])
        return self._begin(name, *arguments, **options)


def test_a_step_that_failed_half_way_in_mode_async_applies_no_gradient_twice(monkeypatch):
    model, optimizer = line(name="half way")

    def check():
        with monkeypatch.context() as patched:
            Refused(patched, "push_pull_async", "rare")
            model(3.0, is_rare=True).backward()
            with pytest.raises(MismatchError):
                optimizer.step()
        with pytest.raises(FailedPreconditionError, match="failed half way"):
            optimizer.state_dict()
        assert optimizer.step().fates == {"accepted": 2}
        assert model.weight.tolist() == [-3.0] * 4 and model.rare.tolist() == [-1.0] * 2

    only_worker_0(check)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_gradient_that_left_and_was_refused_is_sent_again_by_the_next_step(monkeypatch, accumulate):
    model, optimizer = line(overlap=True, accumulate=accumulate, name=f"refused {accumulate}")

    def check():
        mine(model, optimizer, [3.0] * (accumulate - 1))
        with monkeypatch.context() as patched:
            Refused(patched, "push_async", "rare")
            model(3.0, is_rare=True).backward()
            with pytest.raises(MismatchError):
                optimizer.step()
        with pytest.raises(FailedPreconditionError, match="a backward pass after a step that has failed half way"):
            model(3.0).backward()
        assert optimizer.step().fates == {"accepted": 2}
        assert model.weight.tolist() == [-3.0] * 4 and model.rare.tolist() == [-1.0 / accumulate] * 2

    only_worker_0(check)


def test_a_state_has_the_micro_batches_and_where_the_worker_stands():
    model, optimizer = line(accumulate=3, mode=gl.SSP(100), name="saved")
    other, wider = line(accumulate=3, mode=gl.SSP(100), name="other"), line(mode=gl.SSP(100), name="plain")

    def check():
        mine(model, optimizer, [1.0, 1.0, 1.0, 6.0])
        state = copy.deepcopy(optimizer.state_dict())
        assert state["server_training"]["round"] == 1
        assert state["server_training"]["versions"] == {"weight": 2, "rare": 1}
        mine(model, optimizer, [600.0])
        optimizer.load_state_dict(state)
        mine(model, optimizer, [0.0, 0.0])
        assert model.weight.tolist() == [-3.0] * 4, "1, and then 2"
        with pytest.raises(FailedPreconditionError, match="round 1 at version 2 of weight, and the servers have version 1"):
            other[1].load_state_dict(state)
        state["server_training"]["versions"] = {"weight": 1, "rare": 1}
        with pytest.raises(InvalidArgumentError, match="1 micro-batches; make this one with accumulate="):
            wider[1].load_state_dict(state)
        other[1].load_state_dict(state)
        for field, value, why in [
            ("rule", "adam", "rule adam"),
            ("mode", "sync", "mode sync"),
            ("versions", {"w": 1}, "does not fit parameter rare"),
        ]:
            with pytest.raises(InvalidArgumentError, match=why):
                other[1].load_state_dict({"server_training": state["server_training"] | {field: value}})
        state["server_training"]["accumulated"]["sums"]["weight"] = torch.zeros(9)
        with pytest.raises(InvalidArgumentError, match="does not fit parameter weight"):
            other[1].load_state_dict(state)
        for changes in ({"merge": "sum"}, {"batches": 3}):
            fits = state["server_training"] | {"accumulated": state["server_training"]["accumulated"] | changes}
            with pytest.raises(InvalidArgumentError, match="not with accumulate=3 and merge='mean'"):
                other[1].load_state_dict({"server_training": fits})
        with pytest.raises(InvalidArgumentError, match="no state of a ServerOptimizer"):
            optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())

    only_worker_0(check)


def test_what_users_do_wrong_is_named():
    model, optimizer = line()
    for options, why in [
        ({"accumulate": 0}, "accumulate=0"),
        ({"accumulate": True}, "accumulate=True"),
        ({"accumulate": 1.5}, "accumulate=1.5"),
        ({"merge": "max"}, "merge='max'"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            line(name="never", **options)
    for samples in (0, -1, float("nan"), float("inf"), True, "3"):
        with pytest.raises(InvalidArgumentError, match="samples="):
            optimizer.step(samples=samples)
    early = line(overlap=True, accumulate=2)[1]
    with pytest.raises(InvalidArgumentError, match="samples=3 with overlap=True"):
        early.step(samples=3)
    shared = nn.Linear(2, 2, bias=False)
    with pytest.raises(InvalidArgumentError, match="a and b are one parameter"):
        gl.ServerOptimizer([("a", shared.weight), ("b", shared.weight)], rule=rules.SGD(lr=0.1), name="never")
    frozen = Line()
    frozen.rare.requires_grad_(False)
    trains = gl.ServerOptimizer(frozen.named_parameters(), rule=rules.SGD(lr=0.1))
    frozen.rare.requires_grad_(True)
    with pytest.raises(InvalidArgumentError, match="rare was added, replaced or unfrozen.*before you make the ServerOptimizer"):
        frozen(1.0, is_rare=True).backward()
    del trains
    gl.barrier("all were refused")


def test_one_thread_makes_steps():
    model, optimizer = line(mode=gl.Sync())
    model(1.0).backward()
    if gradlane.rank() == 0:
        waits = threading.Thread(target=optimizer.step)
        waits.start()
        while not optimizer._training._using.locked():
            pass
        with pytest.raises(FailedPreconditionError, match="another step of this ServerOptimizer"):
            optimizer.step()
        gl.barrier("worker 0 was refused")
        waits.join()
    else:
        gl.barrier("worker 0 was refused")
        optimizer.step()
    assert model.weight.tolist() == [-1.0] * 4
