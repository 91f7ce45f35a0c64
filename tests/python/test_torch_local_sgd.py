"""`LocalSGD`: models that each worker trains by itself, and that come together every few steps, to the formulas of the rules."""

import copy
import io
import math

import pytest

torch = pytest.importorskip("torch")

import gradlane  # noqa: E402
import gradlane.torch as gl  # noqa: E402
from gradlane.errors import (  # noqa: E402
    FailedPreconditionError,
    InvalidArgumentError,
    MismatchError,
    NotFiniteError,
    StallError,
)
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(3, servers=2), pytest.mark.over("shm", "quic")]

EVERY, EXCHANGES, RATE = 4, 6, 0.05
CLOSE = {"rtol": 0, "atol": 1e-6}


def made(seed, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).to(dtype)


def train(model, optimizer, rank, step):
    """A step of a worker, on data of its own."""
    draw = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(32, 6, generator=draw).to(model[0].weight.dtype)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), inputs[:, :2].sin() * (rank + 1)).backward()
    optimizer.step()


def started(exchange, *, every=EVERY, dtype=torch.float32, **options):
    """A model that differs between workers before it is given away, its optimizer with momentum, and its LocalSGD."""
    model = made(gradlane.rank(), dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    return model, optimizer, gl.LocalSGD(model.named_parameters(), optimizer, exchange=exchange, every=every, **options)


class Alone:
    """All workers in one process: they take the same local steps, and exchange by the formulas, one after the other."""

    def __init__(self, workers):
        self.x = [made(0) for _ in range(workers)]
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=RATE, momentum=0.5) for one in self.x]
        self.c = [one.detach().clone() for one in self.x[0].parameters()]
        self.o = [[one.clone() for one in self.c] for _ in self.x]

    def train(self, step):
        for rank, (model, optimizer) in enumerate(zip(self.x, self.optimizers, strict=True)):
            train(model, optimizer, rank, step)

    @torch.no_grad()
    def exchange(self, formula, rate):
        share = rate / len(self.x)
        for rank, model in enumerate(self.x):
            for x, o, c in zip(model.parameters(), self.o[rank], self.c, strict=True):
                formula(x, o, c, share)

    @torch.no_grad()
    def average_together(self, rate):
        for i, c in enumerate(self.c):
            models = [list(model.parameters())[i] for model in self.x]
            c += rate / len(models) * sum(x - o[i] for x, o in zip(models, self.o, strict=True))
            for x, o in zip(models, self.o, strict=True):
                x.copy_(c)
                o[i].copy_(c)


def average(x, o, c, share):
    c += share * (x - o)
    x.copy_(c)
    o.copy_(c)


def elastic(x, o, c, share):
    difference = x - c
    c += share * difference
    x -= share * difference


def geo(x, o, c, share):
    progress = share * (x - o)
    o += progress
    c += progress
    x += c - o
    o.copy_(c)


def exchanged(local, name):
    """Exchanges of all workers: where they do not wait for each other in the order of their ranks, as the oracle makes them."""
    if getattr(local.rule, "synchronous", False):
        local.exchange()
        return
    for rank in range(gradlane.size()):
        if rank == gradlane.rank():
            local.exchange()
        gl.barrier(f"{name}: {rank} has exchanged")


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize(
    ("exchange", "formula"),
    [
        (lambda rate: gl.exchanges.Average(rate, synchronous=False), average),
        (gl.exchanges.Elastic, elastic),
        (gl.exchanges.Geo, geo),
    ],
    ids=["average", "elastic", "geo"],
)
def test_a_rule_that_waits_for_nobody_is_its_formula(exchange, formula, rate):
    # More steps than there will be, so that the workers exchange where this says.
    model, optimizer, local = started(exchange(rate), every=10**6)
    alone = Alone(gradlane.size())
    for round in range(EXCHANGES):
        for step in range(EVERY):
            train(model, optimizer, gradlane.rank(), EVERY * round + step)
            assert local.step() is False
            alone.train(EVERY * round + step)
        exchanged(local, f"{formula.__name__} {round}")
        alone.exchange(formula, rate)
        for ours, theirs in zip(model.parameters(), alone.x[gradlane.rank()].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)
    assert local.steps == EXCHANGES * EVERY
    with local.server_weights():
        for ours, theirs in zip(model.parameters(), alone.c, strict=True):
            torch.testing.assert_close(ours.detach(), theirs, **CLOSE)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_synchronous_average_is_its_formula(rate):
    model, optimizer, local = started(gl.exchanges.Average(rate))
    alone = Alone(gradlane.size())
    for step in range(EXCHANGES * EVERY):
        train(model, optimizer, gradlane.rank(), step)
        before = [one.detach().clone() for one in model.parameters()]
        alone.train(step)
        assert local.step() == (step % EVERY == EVERY - 1)
        if step % EVERY < EVERY - 1:
            assert all(map(torch.equal, before, model.parameters())), "nothing comes from others between exchanges"
            continue
        alone.average_together(rate)
        for ours, theirs, c in zip(model.parameters(), alone.x[gradlane.rank()].parameters(), alone.c, strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)
            torch.testing.assert_close(ours.detach(), c, **CLOSE)


def test_a_synchronous_average_of_rate_1_is_the_mean_of_the_models_bit_by_bit_alike():
    model, optimizer, local = started(gl.exchanges.Average())
    for step in range(EVERY - 1):
        train(model, optimizer, gradlane.rank(), step)
        local.step()
    models = gl.allgather_object([one.detach().clone() for one in model.parameters()])
    local.exchange()
    for place, ours in enumerate(model.parameters()):
        torch.testing.assert_close(ours.detach(), sum(one[place] for one in models) / len(models), **CLOSE)
    after = gl.allgather_object([one.detach().tolist() for one in model.parameters()])
    assert all(one == after[0] for one in after)


def test_by_geo_the_servers_get_the_whole_progress_of_each():
    model, _, local = started(gl.exchanges.Geo())
    first = [one.detach().clone() for one in model.parameters()]
    with torch.no_grad():
        for one in model.parameters():
            one += gradlane.rank() + 1
    # Two thirds of what is left stay each time.
    for _ in range(math.ceil(math.log(1e-8) / math.log(2 / 3))):
        local.exchange()
    gl.barrier("all have sent their progress")
    with local.server_weights():
        for one, before in zip(model.parameters(), first, strict=True):
            torch.testing.assert_close(one.detach(), before + sum(range(1, gradlane.size() + 1)), rtol=0, atol=1e-5)


def test_elastic_never_replaces_a_model_and_parks_it_for_a_test():
    model, optimizer, local = started(gl.exchanges.Elastic(0.3))
    for step in range(3 * EVERY):
        train(model, optimizer, gradlane.rank(), step)
        local.step()
    gl.barrier("all have trained")
    before = [one.detach().clone() for one in model.parameters()]
    everyone = gl.allgather_object(before)
    assert not any(torch.equal(everyone[0][0], other[0]) for other in everyone[1:])
    with local.server_weights():
        within = gl.allgather_object([one.detach().tolist() for one in model.parameters()])
        assert all(one == within[0] for one in within)
        for use in (local.step, local.exchange, local.server_weights().__enter__, optimizer.step):
            with pytest.raises(FailedPreconditionError, match="server_weights"):
                use()
    assert all(map(torch.equal, before, model.parameters()))
    with pytest.raises(ZeroDivisionError), local.server_weights():
        1 / 0  # noqa: B018
    assert all(map(torch.equal, before, model.parameters())), "also behind an error"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("exchange", "moved"),
    [(gl.exchanges.Average(), 1), (gl.exchanges.Average(synchronous=False), 1), (gl.exchanges.Geo(), 3)],
    ids=str,
)
def test_progress_that_is_too_small_for_half_precision_adds_up(exchange, moved, dtype):
    weight = nn.Parameter(torch.ones(5, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    local = gl.LocalSGD([("weight", weight)], optimizer, exchange=exchange, every=EVERY)
    # Worker 0 goes on by the last bit of the type in three rounds. A third of that is rounded away, and in sums of that type
    # nobody would ever move.
    last_bit = torch.finfo(dtype).eps
    for round in range(40):
        if gradlane.rank() == 0 and round < 3:
            with torch.no_grad():
                weight += last_bit
        exchanged(local, f"{exchange} {dtype} {round}")
    exchanged(local, f"{exchange} {dtype} end")
    assert weight.tolist() == [1 + moved * last_bit] * 5


def test_float64_is_exchanged_as_it_is():
    model, optimizer, local = started(gl.exchanges.Average(), dtype=torch.float64)
    train(model, optimizer, gradlane.rank(), 1)
    models = gl.allgather_object(model[0].weight.detach().clone())
    local.exchange()
    torch.testing.assert_close(model[0].weight.detach(), sum(models) / len(models), rtol=0, atol=1e-15)


def test_a_worker_that_raises_between_exchanges_goes_on():
    model, optimizer, local = started(gl.exchanges.Average())
    alone = Alone(gradlane.size())
    for step in range(EVERY):
        if gradlane.rank() == 1 and step == 2:
            with pytest.raises(RuntimeError, match="mat1 and mat2"):
                model(torch.ones(1, 5))
        train(model, optimizer, gradlane.rank(), step)
        alone.train(step)
        local.step()
    alone.average_together(1.0)
    for ours, theirs in zip(model.parameters(), alone.c, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, **CLOSE)


@pytest.mark.workers(3, servers=2, settings={"step_timeout": "2s"}, alone=True)
def test_a_worker_that_exchanges_alone_gets_the_deadline_as_the_others_do_and_all_go_on():
    model, optimizer, local = started(gl.exchanges.Average())
    train(model, optimizer, gradlane.rank(), 1)
    before = [one.detach().clone() for one in model.parameters()]
    if gradlane.rank() == 0:
        with pytest.raises(StallError, match="no contribution from ranks 1, 2"):
            local.exchange()
    gl.barrier("it has waited in vain", timeout=30.0)
    if gradlane.rank() != 0:
        with pytest.raises(StallError, match="no contribution from ranks 1, 2"):
            local.exchange()
    assert all(map(torch.equal, before, model.parameters()))
    local.exchange()
    after = gl.allgather_object([one.detach().tolist() for one in model.parameters()])
    assert all(one == after[0] for one in after)


def test_a_worker_that_has_missed_an_exchange_is_not_averaged_with_the_others():
    model, optimizer, local = started(gl.exchanges.Average())
    local.exchange()
    state = local.state_dict()
    if gradlane.rank() == 1:
        local._exchanged -= 1  # as if it had been interrupted in the middle
    for _ in range(2):
        with pytest.raises(FailedPreconditionError, match=r"another one 0 to 1.*load a state"):
            local.exchange()
    local.load_state_dict(state)
    local.exchange()


@pytest.mark.parametrize("exchange", [gl.exchanges.Average(), gl.exchanges.Geo()], ids=str)
def test_a_model_that_has_diverged_is_exchanged_with_nobody(exchange):
    model, _, local = started(exchange)
    if gradlane.rank() == 1:
        with torch.no_grad():
            model[2].bias[0] = math.nan
    if gradlane.rank() == 1 or isinstance(exchange, gl.exchanges.Average):
        with pytest.raises(NotFiniteError, match=r"parameter 2\.bias") as raised:
            local.exchange()
        assert raised.value.tensor == "2.bias"
    gl.barrier(f"it was refused {exchange}")
    with local.server_weights():
        assert all(one.isfinite().all() for one in model.parameters())


def test_a_state_goes_on_where_it_was_and_another_rule_is_refused():
    for exchange in (gl.exchanges.Average(), gl.exchanges.Average(synchronous=False), gl.exchanges.Elastic(), gl.exchanges.Geo()):
        model, optimizer, local = started(exchange, every=10**6)
        for step in range(3):
            train(model, optimizer, gradlane.rank(), step)
            local.step()
        exchanged(local, f"{exchange} to save")
        train(model, optimizer, gradlane.rank(), 3)
        local.step()
        file = io.BytesIO()
        torch.save([one.state_dict() for one in (model, optimizer, local)], file)
        gl.barrier(f"{exchange} saved by all")
        exchanged(local, f"{exchange} goes on")
        expected = [one.detach().clone() for one in model.parameters()]
        file.seek(0)
        state = torch.load(file)
        again, other, resumed = started(exchange, every=10**6)
        for one, saved in zip((again, other, resumed), state, strict=True):
            one.load_state_dict(saved)
        assert resumed.steps == 4
        exchanged(resumed, f"{exchange} goes on again")
        for ours, theirs in zip(again.parameters(), expected, strict=True):
            torch.testing.assert_close(ours.detach(), theirs, **CLOSE)
        if exchange != gl.exchanges.Average():
            continue
        of_geo = dict(state[2], exchange="geo:rate=1.0")
        for wrong, why in ((of_geo, "by geo:rate=1.0, and"), (state[1], "no state of a LocalSGD"), (None, "no state")):
            with pytest.raises(InvalidArgumentError, match=why):
                resumed.load_state_dict(wrong)
        small = {label: torch.ones(1) for label in state[2]["shared"]}
        told = r"parameter 0\.bias" if gradlane.rank() == 1 else r"worker 1 could not take part.*parameter 0\.bias"
        with pytest.raises(InvalidArgumentError, match=told):
            resumed.load_state_dict(dict(state[2], shared=small) if gradlane.rank() == 1 else state[2])


def test_an_optimizer_that_leaves_steps_out_is_told_of():
    model, optimizer, local = started(gl.exchanges.Average(), may_skip=True)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(EVERY):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 6)).sum() * (math.inf if step % 2 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert local.step() == (step == EVERY - 1)


def test_what_cannot_be_is_refused_by_name():
    model = made(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    named, rule = list(model.named_parameters()), gl.exchanges.Average()
    lone = nn.Parameter(torch.ones(3, 7))
    more = torch.optim.SGD([*model.parameters(), lone], lr=0.1)
    integers = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    for given, optimizer, exchange, every, why in [
        (named, sgd, "average", 8, "gradlane.torch.exchanges"),
        (named, sgd, gradlane.Average, 8, "gradlane.torch.exchanges"),
        (named, sgd, rule, 0, "every=0"),
        (named, sgd, rule, -1, "every=-1"),
        (named, sgd, rule, 2.5, r"every=2\.5"),
        (named, model, rule, 8, "optimizer is Sequential"),
        (model.parameters(), sgd, rule, 8, "named_parameters"),
        ([], sgd, rule, 8, "nothing to train"),
        ([("a", named[0][1]), ("b", named[0][1])], sgd, rule, 8, "a and b are one parameter"),
        (named[:2], sgd, rule, 8, "that is not among named_parameters"),
        (named, more, rule, 8, r"of shape \[3, 7\] that is not among"),
        ([*named, ("lone", lone)], sgd, rule, 8, "does not train parameter lone"),
        ([("z", integers)], torch.optim.SGD([integers], lr=0.1), rule, 8, "parameter z is complex64"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            gl.LocalSGD(given, optimizer, exchange=exchange, every=every, name="never")
    for timeout, why in ((1.0, "GRADLANE_STEP_TIMEOUT"), ("soon", "give seconds")):
        with pytest.raises(InvalidArgumentError, match=why):
            gl.LocalSGD(named, sgd, exchange=rule, every=8, timeout=timeout, name="never")
    for rate in (0, -1, math.nan, math.inf, True, "1", None):
        with pytest.raises(InvalidArgumentError, match="rate="):
            gl.exchanges.Geo(rate)
    with pytest.raises(InvalidArgumentError, match="synchronous=1"):
        gl.exchanges.Average(synchronous=1)
    local = gl.LocalSGD(named, sgd, exchange=gl.exchanges.Geo(), every=8, name="refuses")
    with pytest.raises(FailedPreconditionError, match=r"optimizer\.step\(\)"):
        local.step()
    with pytest.raises(FailedPreconditionError, match="not copied"):
        copy.deepcopy(local)
    for wrap in (
        lambda: gl.LocalSGD(named, sgd, exchange=rule, every=8, name="twice"),
        lambda: gl.DistributedDataParallel(model),
        lambda: gl.DistributedOptimizer(sgd, named_parameters=named),
    ):
        with pytest.raises(InvalidArgumentError, match="wrap a model once"):
            wrap()
    sgd.add_param_group({"params": [lone]})
    with pytest.raises(InvalidArgumentError, match="not among named_parameters"):
        local.exchange()
    sgd.param_groups.pop()
    model.half()
    with pytest.raises(InvalidArgumentError, match=r"parameter 0\.weight is float16 .* was float32"):
        local.exchange()


def test_frozen_parameters_stay_where_they_are():
    model = made(gradlane.rank())
    kept = model[0].weight.detach().clone()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    local = gl.LocalSGD(model.named_parameters(), optimizer, exchange=gl.exchanges.Average(), every=1)
    train(model, optimizer, gradlane.rank(), 1)
    assert local.step()
    assert torch.equal(model[0].weight, kept)
    others = gl.allgather_object(model[2].weight.tolist())
    assert all(one == others[0] for one in others)


def test_another_rule_number_or_model_is_told_to_all_who_give_it():
    rank = gradlane.rank()
    for exchange, every, told in (
        (gl.exchanges.Geo(1.0 + rank), 8, r"worker 0 has the exchange geo:rate=1\.0 every 8 steps, worker 1 has geo:rate=2\.0"),
        (gl.exchanges.Geo(), 8 + rank, "every 8 steps, worker 1 has geo:rate=1.0 every 9 steps"),
    ):
        with pytest.raises(MismatchError, match=told) as raised:
            started(exchange, every=every, name="two rules")
        assert raised.value.field == "exchange"
    wide = nn.Sequential(nn.Linear(6 + rank, 16), nn.Tanh(), nn.Linear(16, 2))
    with pytest.raises(MismatchError, match=r"0\.weight"):
        optimizer = torch.optim.SGD(wide.parameters(), lr=0.1)
        gl.LocalSGD(wide.named_parameters(), optimizer, exchange=gl.exchanges.Average(), every=8, name="two models")
