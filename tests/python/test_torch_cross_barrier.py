"""`CrossBarrier`: the bits of a plain run, whatever the script does between steps, and clear words where that cannot be."""

import copy
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from gradlane.errors import CancelledError, FailedPreconditionError, InvalidArgumentError  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim.lr_scheduler import OneCycleLR, StepLR  # noqa: E402
from training import assert_equal_everywhere, batches, cnn, made, mine, mlp, sgd  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("quic")]

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, lr=3e-3, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=3e-3),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=3e-3, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=3e-3, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
}


def crossed(model, optimizer, **options):
    return gl.CrossBarrier(model, optimizer, **options)


def plain(model, optimizer, **options):
    options.pop("opaque", None)
    return gl.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def backward(model, batch):
    inputs, labels = mine(batch)
    F.cross_entropy(model(inputs), labels).backward()


def trained(wrap, train, model=mlp, optimizer=sgd, **options):
    """The state after `train`, of model and optimizer."""
    trainee = made(model)
    stepping = wrap(trainee, optimizer(trainee.parameters()), **options)
    train(trainee, stepping)
    return trainee.state_dict(), stepping.state_dict()


def assert_same_bits(train, **options):
    """A training ends with the same bits with and without the barrier."""
    (ours, our_state), (theirs, their_state) = (trained(wrap, train, **options) for wrap in (crossed, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert our_state["param_groups"] == their_state["param_groups"]
    assert flat(our_state["state"]) == flat(their_state["state"])


def flat(state):
    return {
        (number, key): value.tolist() if isinstance(value, torch.Tensor) else value
        for number, of in state.items()
        for key, value in of.items()
    }


def usual(model, optimizer, steps=5):
    for batch in batches(steps):
        optimizer.zero_grad()
        backward(model, batch)
        optimizer.step()


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("model", [mlp, cnn], ids=["mlp", "cnn"])
def test_the_bits_are_those_of_a_plain_run(model, optimizer):
    assert_same_bits(usual, model=model, optimizer=optimizer)


def test_it_stays_an_optimizer_of_its_class():
    model = made(mlp)
    given = torch.optim.AdamW(model.parameters(), lr=0.5)
    optimizer = gl.CrossBarrier(model, given)
    assert optimizer is given and isinstance(optimizer, torch.optim.AdamW) and type(optimizer).__name__ == "AdamW"
    optimizer.remove()
    assert type(optimizer) is torch.optim.AdamW


def test_parts_that_travel_on_their_own_have_the_same_bits():
    def wide():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.Linear(1024, 10))

    assert_same_bits(usual, model=wide)


def test_gradients_cleared_before_or_after_the_forward_pass_or_by_the_model_or_to_zeros():
    def train(model, optimizer):
        for number, batch in enumerate(batches(8)):
            inputs, labels = mine(batch)
            match number % 4:
                case 0:
                    optimizer.zero_grad()
                case 1:
                    model.zero_grad()
                case 2:
                    optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(inputs), labels)
            if number % 4 == 3:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert_same_bits(train)


def test_gradients_that_nobody_clears_add_up():
    def train(model, optimizer):
        for batch in batches(4):
            backward(model, batch)
            optimizer.step()

    assert_same_bits(train)


def test_several_backward_passes_accumulate():
    def train(model, optimizer):
        for number, batch in enumerate(batches(6)):
            backward(model, batch)
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()

    assert_same_bits(train, backward_passes_per_step=2)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_takes_the_learning_rate_of_its_time(when):
    def run(wrap):
        model = made(mlp)
        optimizer = sgd(model.parameters())
        before = StepLR(optimizer, 2, 0.1) if when == "before" else None
        optimizer = wrap(model, optimizer)
        scheduler = before or OneCycleLR(optimizer, 0.2, total_steps=20)
        for batch in batches(6):
            optimizer.zero_grad()
            backward(model, batch)
            optimizer.step()
            scheduler.step()
        return model.state_dict()

    ours, theirs = run(crossed), run(plain)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_groups_keep_their_own_settings():
    def optimizer(parameters):
        parameters = list(parameters)
        groups = [{"params": parameters[::2], "lr": 0.5}, {"params": parameters[1::2], "weight_decay": 0.1}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    assert_same_bits(usual, optimizer=optimizer)


class Branches(nn.Module):
    """Uses one of two branches, both, or none."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = nn.Linear(64, 10), nn.Linear(64, 10), nn.Linear(3, 3)
        self.taken = ""

    def forward(self, inputs):
        inputs = inputs.flatten(1)
        return sum((getattr(self, name)(inputs) for name in self.taken.split()), torch.zeros(len(inputs), 10))


def test_parameters_that_some_or_all_workers_leave_out_are_as_in_a_plain_run():
    def train(model, optimizer):
        for number, batch in enumerate(batches(6)):
            model.taken = ["left right", "left", ("right", "left")[gl.rank()]][number % 3]
            optimizer.zero_grad()
            backward(model, batch)
            optimizer.step()
        optimizer.state_dict()  # waits, while synchronize() of the plain one would take part in a window
        assert model.never.weight.grad is None

    assert_same_bits(train, model=Branches)


def test_a_worker_without_any_gradient_takes_part():
    def train(model, optimizer):
        for batch in batches(3):
            optimizer.zero_grad()
            model.taken = "left"
            if gl.rank() == 0:
                backward(model, batch)
            optimizer.step()

    assert_same_bits(train, model=Branches)


class Shared(nn.Module):
    """One weight in two modules."""

    def __init__(self):
        super().__init__()
        self.into, self.out, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.out.weight = self.into.weight

    def forward(self, inputs):
        return self.last(self.out(F.relu(self.into(inputs.flatten(1)))))


def test_a_weight_that_two_modules_share_is_updated_once():
    assert_same_bits(usual, model=Shared)


class Attention(nn.Module):
    """Uses a weight of a module that is never called, and an own parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.attention, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(64, 10)

    def forward(self, inputs):
        rows = inputs.flatten(2).view(-1, 8, 8) * self.scale
        return self.last(self.attention(rows, rows, rows)[0].flatten(1))


def test_attention_uses_weights_of_a_module_that_it_does_not_call():
    assert_same_bits(usual, model=Attention)


class Bypassing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, inputs):
        return F.linear(self.first(inputs.flatten(1)), self.last.weight)


def test_a_weight_used_without_its_module_is_noticed_and_can_be_announced():
    model = made(Bypassing)
    optimizer = crossed(model, sgd(model.parameters()))
    first, second = batches(2)
    backward(model, first)
    optimizer.step()
    with pytest.raises(FailedPreconditionError, match=r"last\.weight was used .* opaque="):
        backward(model, second)
    assert_same_bits(usual, model=Bypassing, opaque=(Bypassing,))

    def synchronized(model, optimizer):
        for batch in batches(4):
            optimizer.zero_grad()
            optimizer.synchronize()
            backward(model, batch)
            optimizer.step()
            optimizer.state_dict()

    assert_same_bits(synchronized, model=Bypassing)


def test_parts_of_a_model_may_be_in_eval_mode():
    def model():
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64).eval(), nn.Linear(64, 10))

    assert_same_bits(usual, model=model)


def test_weights_made_by_other_hooks_are_made_of_updated_parameters():
    def model():
        return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 10)))

    assert_same_bits(usual, model=model)


def test_clipping_works_after_synchronize():
    def train(model, optimizer):
        for batch in batches(4):
            optimizer.zero_grad()
            backward(model, batch)
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

    assert_same_bits(train)


def test_clipping_gradients_on_their_way_is_refused_by_name():
    model = made(mlp)
    optimizer = crossed(model, sgd(model.parameters()))
    backward(model, next(batches(1)))
    with pytest.raises(FailedPreconditionError, match=r"1\.weight.*synchronize\(\)"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(FailedPreconditionError, match="on its way"):
        model[1].weight.grad.mul_(2.0)
    optimizer.step()
    optimizer.synchronize()
    assert model[1].weight.grad.norm() > 0


def test_a_scaler_works_after_synchronize():
    model = made(mlp)
    optimizer = crossed(model, sgd(model.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    for number, batch in enumerate(batches(3)):
        inputs, labels = mine(batch)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        if number == 1 and gl.rank() == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 4.0
    assert_equal_everywhere(model, "after the skip")


def test_hooks_of_a_step_see_what_they_see_in_a_plain_run():
    def train(model, optimizer):
        norms = []

        def note(*_):
            norms.append([parameter.grad.norm().item() for parameter in model.parameters()])
            norms.append([parameter.norm().item() for parameter in model.parameters()])

        optimizer.register_step_pre_hook(note)
        optimizer.register_step_post_hook(note)
        usual(model, optimizer)
        seen.append(norms)

    seen = []
    assert_same_bits(train)
    assert seen[0] == seen[1] and len(seen[0]) == 20


def test_evaluation_sees_updated_weights():
    def train(model, optimizer):
        usual(model, optimizer, steps=2)
        inputs = next(batches(1))[0]
        model.eval()
        outputs.append(model(inputs).tolist())
        model.train()
        usual(model, optimizer, steps=1)
        with torch.no_grad():
            outputs.append(model(inputs).tolist())
        usual(model, optimizer, steps=1)
        with torch.inference_mode():
            outputs.append(model(inputs).tolist())
        usual(model, optimizer, steps=2)

    outputs = []
    assert_same_bits(train)
    assert outputs[:3] == outputs[3:]


def test_one_worker_alone_saves_a_checkpoint_and_training_goes_on():
    model = made(mlp)
    optimizer = crossed(model, sgd(model.parameters()))
    usual(model, optimizer, steps=2)
    if gl.rank() == 0:
        saved = model.state_dict(), optimizer.state_dict()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.synchronize()
        assert torch.equal(saved[0]["1.weight"], model[1].weight)
    usual(model, optimizer, steps=2)
    assert_equal_everywhere(model, "after the checkpoint")


def test_a_loaded_state_is_not_updated_by_the_step_before():
    model = made(mlp)
    optimizer = crossed(model, sgd(model.parameters()))
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fresh = optimizer.state_dict()
    usual(model, optimizer, steps=1)
    model.load_state_dict(initial)
    optimizer.load_state_dict(fresh)
    assert torch.equal(model[1].weight, initial["1.weight"]) and not optimizer.state_dict()["state"]
    usual(model, optimizer)
    expected, _ = trained(plain, usual)
    assert all(torch.equal(model.state_dict()[name], expected[name]) for name in expected)


def test_autocast_around_the_forward_pass_does_not_reach_the_update():
    def train(model, optimizer):
        for batch in batches(4):
            inputs, labels = mine(batch)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()

    assert_same_bits(train, optimizer=OPTIMIZERS["AdamW"])


@pytest.mark.parametrize("compression", [gl.Compression.fp16, gl.Compression.bf16], ids=["fp16", "bf16"])
def test_narrower_types_on_the_wire(compression):
    assert_same_bits(usual, compression=compression)


def test_recomputed_activations():
    from torch.utils.checkpoint import checkpoint

    class Recomputing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)])

        def forward(self, inputs):
            inputs = inputs.flatten(1)
            for layer in self.layers:
                inputs = checkpoint(layer, inputs, use_reentrant=False)
            return inputs

    assert_same_bits(usual, model=Recomputing)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("compiled", ["afterwards", "before", "before and called", "before, another of its class"])
def test_a_compiled_model_gets_the_same_bits(name, compiled):
    def train(wrap):
        torch._dynamo.reset()
        model = made(mlp)
        call = torch.compile(made(mlp) if "another" in compiled else model, backend="aot_eager")
        if compiled not in ("afterwards", "before"):
            call(mine(next(batches(1)))[0])
        optimizer = wrap(model, OPTIMIZERS[name](model.parameters()))
        if compiled == "afterwards" or "another" in compiled:
            call = torch.compile(model, backend="aot_eager")
        for batch in batches(4):
            optimizer.zero_grad()
            backward(call, batch)
            optimizer.step()
        return model.state_dict()

    ours, theirs = train(crossed), train(plain)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_copies_of_model_and_optimizer_are_plain_ones():
    model = made(mlp)
    optimizer = crossed(model, sgd(model.parameters()))
    for batch in batches(2):
        optimizer.zero_grad()
        backward(model, batch)
        optimizer.step()
        optimizer.synchronize()
        copies = copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))
        for copied, own in copies:
            assert isinstance(own, torch.optim.SGD) and not hasattr(own, "synchronize")
            assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), model.parameters(), strict=True))
            own.step()  # without gradients
            backward(copied, batch)
            with pytest.raises(FailedPreconditionError, match=r"parameter 0\.0 .*a copy averages nothing"):
                own.step()
    assert_equal_everywhere(model, "after the copies")


def test_a_sparse_gradient_is_refused_unless_made_dense():
    def run(wrap):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), sparse_as_dense=True)
        for number in range(3):
            optimizer.zero_grad()
            model(torch.tensor([number, gl.rank()])).sum().backward()
            optimizer.step()
        return model.state_dict()

    ours, theirs = run(crossed), run(plain)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    model = nn.Embedding(3, 2, sparse=True)
    crossed(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(gl.UnsupportedError, match="weight is sparse; give sparse_as_dense"):
        model(torch.tensor([1])).sum().backward()


def test_a_backward_pass_that_fails_half_way_is_completed_by_synchronize():
    model = made(mlp)
    optimizer = crossed(model, sgd(model.parameters()))
    first, second = batches(2)

    def fail(_):
        raise RuntimeError("in the middle")

    inputs, labels = mine(first)
    hidden = model[2](model[1](model[0](inputs)))
    hidden.register_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        F.cross_entropy(model[3](hidden), labels).backward()
    with pytest.raises(FailedPreconditionError, match=r"zero_grad\(\).*3\.(weight|bias)"):
        optimizer.zero_grad()
    with pytest.raises(FailedPreconditionError, match=r"synchronize\(\)"):
        backward(model, second)
    optimizer.synchronize()
    optimizer.zero_grad()
    usual(model, optimizer, steps=2)
    assert_equal_everywhere(model, "after a failed backward pass")


def test_removed_it_leaves_a_plain_optimizer_and_a_plain_model():
    model = made(mlp)
    with crossed(model, sgd(model.parameters())) as optimizer:
        usual(model, optimizer, steps=2)
        backward(model, next(batches(1)))
        with pytest.raises(FailedPreconditionError, match=r"remove\(\)"):
            optimizer.remove()
        optimizer.step()
    assert type(optimizer) is torch.optim.SGD and not model._forward_pre_hooks
    before = model[1].weight.detach().clone()
    if gl.rank() == 0:  # nobody else takes part any more
        optimizer.zero_grad()
        backward(model, next(batches(1)))
        optimizer.step()
        assert not torch.equal(model[1].weight, before)


def test_an_error_inside_the_context_is_not_waited_for():
    model = made(mlp)
    optimizer = sgd(model.parameters())
    with pytest.raises(KeyError), crossed(model, optimizer):
        if gl.rank() == 0:
            backward(model, next(batches(1)))
        raise KeyError("mine")
    assert type(optimizer) is torch.optim.SGD and not model._forward_pre_hooks


class Counting(torch.optim.SGD):
    """Counts its steps in its groups, as some optimizers outside of PyTorch do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def test_what_it_cannot_do_is_said_at_once():
    model = made(mlp)
    optimizer = crossed(model, sgd(model.parameters()))
    with pytest.raises(gl.UnsupportedError, match="closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(FailedPreconditionError, match="add the group before"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(InvalidArgumentError, match="distributed already"):
        crossed(model, optimizer)
    with pytest.raises(InvalidArgumentError, match="distributed already"):
        gl.DistributedOptimizer(optimizer)
    with pytest.raises(gl.UnsupportedError, match="LBFGS"):
        crossed(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(InvalidArgumentError, match=r"not the model's: 0\.4"):
        crossed(model, sgd([*model.parameters(), nn.Parameter(torch.ones(1))]), named_parameters=None)
    with pytest.raises(InvalidArgumentError, match="averages its gradients by itself"):
        other = made(mlp)
        crossed(gl.DistributedDataParallel(other), sgd(other.parameters()))
    with pytest.raises(InvalidArgumentError, match="averaged already"):
        crossed(model, sgd(model.parameters()))


def test_an_optimizer_that_counts_in_its_groups_is_found_out():
    model = made(mlp)
    optimizer = crossed(model, Counting(model.parameters(), lr=0.1))
    backward(model, next(batches(1)))
    optimizer.step()
    with pytest.raises(gl.UnsupportedError, match="Counting changes steps of its groups"):
        optimizer.synchronize()
    with pytest.raises(gl.UnsupportedError):  # and it stays so: some parameters are ahead of others
        optimizer.step()


def test_a_parameter_that_is_unfrozen_later_is_refused():
    model = made(mlp)
    model[1].bias.requires_grad_(False)
    optimizer = crossed(model, sgd(model.parameters()))
    model[1].bias.requires_grad_(True)
    with pytest.raises(InvalidArgumentError, match=r"parameter 1\.bias .*unfrozen"):
        optimizer.step()


def test_a_layer_does_not_wait_for_the_layers_behind_it():
    """The second worker keeps the last layer's gradient back until the first worker has used its updated first layer."""
    # Too large to share a part with another.
    model = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 300, bias=False))
    gl.broadcast_parameters(model.state_dict())
    optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=1.0))
    before = model[0].weight.detach().clone()
    ones = torch.ones(1, 300)
    if gl.rank() == 0:
        model(ones).sum().backward()
        optimizer.step()
        used = threading.Event()
        model[0].register_forward_hook(lambda *_: used.set())
        forward = threading.Thread(target=lambda: model(ones))
        forward.start()
        assert used.wait(15.0), "the first layer waited for the last one"
        assert not torch.equal(model[0].weight, before)
        gl.broadcast_object("go on", 0, "used")
        forward.join(15.0)
    else:
        # Autograd makes the last layer's gradient first, so this worker makes both by hand.
        gradients = torch.autograd.grad(model(ones).sum(), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer._barrier.updates._gradient(0)
        assert gl.broadcast_object(None, 0, "used") == "go on"
        optimizer.step()
    assert_equal_everywhere(model, "both layers")


def test_an_error_that_knows_no_tensor_gets_the_name_of_the_parameter():
    model = made(mlp)
    optimizer = crossed(model, sgd(model.parameters()))
    if gl.rank() == 0:  # alone, so nothing can have arrived
        backward(model, next(batches(1)))
        window = optimizer._barrier.updates._window
        # All of them, because the memory of one is in use as long as the others of its part are on their way.
        for position, _ in enumerate(model.parameters()):
            window.on_its_way(position).transfer.cancel()
        with pytest.raises(CancelledError, match=r"^gradient of 1\.weight: "):
            optimizer.synchronize()
        optimizer.remove()


@pytest.mark.workers(2, alone=True, settings={"step_timeout": "2s"})
def test_a_worker_that_does_not_step_is_named_at_the_next_wait_with_the_parameter():
    model = made(mlp)
    optimizer = crossed(model, sgd(model.parameters()))
    if gl.rank() == 0:
        first, second = batches(2)
        backward(model, first)
        optimizer.step()
        with pytest.raises(gl.StallError, match=r"1\.weight") as caught:
            backward(model, second)
        assert caught.value.missing_ranks == [1]
        for call in (optimizer.step, optimizer.synchronize, model.state_dict):
            with pytest.raises(gl.StallError):
                call()
        optimizer.remove()
        assert type(optimizer) is torch.optim.SGD
        model.state_dict()


def test_after_an_error_the_plain_optimizer_finds_no_placeholder():
    model = made(mlp)
    with pytest.raises(ValueError, match="of the user"), crossed(model, sgd(model.parameters())) as optimizer:
        backward(model, next(batches(1)))
        raise ValueError("of the user")
    assert type(optimizer) is torch.optim.SGD
    assert all(parameter.grad is None for parameter in model.parameters())
    optimizer.zero_grad(set_to_none=False)
