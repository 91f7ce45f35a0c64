"""`DistributedDataParallel`: which parameters take part, when gradients are complete, what is said of mistakes."""

import copy
import gc
import io
import pickle
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from gradlane.errors import InvalidArgumentError  # noqa: E402
from gradlane.torch import _in_flight  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim import SGD  # noqa: E402
from training import (  # noqa: E402
    assert_close,
    assert_equal_everywhere,
    batches,
    cnn,
    made,
    mine,
    mlp,
    sgd,
    step,
    trained_alone,
)

pytestmark = [pytest.mark.workers(2, servers=2), pytest.mark.over("quic")]


class Branches(nn.Module):
    """Two layers of which a forward pass takes those that it is told."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 1, bias=False)
        self.right = nn.Linear(4, 1, bias=False)

    def forward(self, inputs, *names):
        return sum(getattr(self, name)(inputs) for name in names)


ONES = torch.ones(1, 4)


def test_the_wrapper_shows_the_module_and_takes_its_arguments():
    module = made(mlp)
    wrapped = gl.DistributedDataParallel(module, device_ids=None, bucket_cap_mb=25)
    assert wrapped.module is module
    assert list(wrapped.state_dict()) == [f"module.{name}" for name in module.state_dict()]


def test_parameters_and_buffers_of_rank_0_are_where_all_start():
    module = nn.Sequential(made(cnn, seed=gl.rank()), nn.BatchNorm1d(10))
    module[1].running_mean.fill_(gl.rank())
    gl.DistributedDataParallel(module)
    assert_equal_everywhere(module, "start")
    assert module[1].running_mean.eq(0).all()


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_runs_its_module_and_does_not_train_until_it_is_wrapped(way):
    model = gl.DistributedDataParallel(made(mlp))
    batch = next(batches(1))
    step(model, sgd(model.parameters()), mine(batch))
    match way:
        case "deepcopy":
            copied = copy.deepcopy(model)
        case "pickle":
            copied = pickle.loads(pickle.dumps(model))
        case _:
            torch.save(model, file := io.BytesIO())
            copied = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    inputs, labels = mine(batch)
    for training in (True, False):
        assert torch.equal(copied.train(training)(inputs), model.train(training)(inputs))
    if gl.rank() == 0:  # alone
        copied.zero_grad()
        for _ in range(2):
            with pytest.raises(gl.Error, match=r"parameter \d\.(weight|bias) .*a copy averages nothing.* wrap its module"):
                F.cross_entropy(copied(inputs), labels).backward()
        with copied.no_sync(), pytest.raises(gl.Error, match="a copy averages nothing"):
            F.cross_entropy(copied(inputs), labels).backward()
        with torch.no_grad():  # a moving average
            for average, parameter in zip(copied.parameters(), model.parameters(), strict=True):
                average.lerp_(parameter, 0.0)
    again = gl.DistributedDataParallel(copied.module)
    for wrapped in (model.train(), again.train()):
        wrapped.zero_grad()
        F.cross_entropy(wrapped(inputs), labels).backward()
    ours, theirs = ([parameter.grad for parameter in wrapped.parameters()] for wrapped in (again, model))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), "wrapped anew"


def test_a_lazy_module_must_run_first():
    lazy = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    with pytest.raises(InvalidArgumentError, match=r"lazy module .* first forward pass"):
        gl.DistributedDataParallel(lazy)
    lazy(torch.ones(1, 4))
    gl.DistributedDataParallel(lazy)


def test_gradients_are_complete_when_backward_returns():
    model = gl.DistributedDataParallel(Branches())
    (model(ONES * (gl.rank() + 1), "left", "right")).sum().backward()
    assert model.module.left.weight.grad.tolist() == [[1.5] * 4]


def test_gradients_are_copied_once_into_what_a_server_of_this_machine_reads_and_not_over_a_network(transport):
    model = gl.DistributedDataParallel(nn.Linear(500, 200, bias=False))
    before = gl.metrics()
    model(torch.ones(1, 500)).sum().backward()
    after = gl.metrics()
    copies = {"shm": 1, "quic": 0}[transport]
    assert after["copied_bytes"] - before["copied_bytes"] == copies * (after["push_bytes"] - before["push_bytes"])
    marks = 1 + gl.size()  # one byte a parameter and a worker
    assert after["push_bytes"] - before["push_bytes"] == 500 * 200 * 4 + marks


def test_no_sync_accumulates_and_communicates_once():
    model = gl.DistributedDataParallel(made(mlp))
    optimizer = sgd(model.parameters())
    gradient_bytes = sum(p.numel() * 4 for p in model.parameters())
    passes = 4
    shares = [mine(batch) for batch in batches(passes)]
    before = gl.metrics()["push_bytes"]
    with model.no_sync():
        for inputs, labels in shares[:-1]:
            (F.cross_entropy(model(inputs), labels) / passes).backward()
    assert gl.metrics()["push_bytes"] == before
    (F.cross_entropy(model(shares[-1][0]), shares[-1][1]) / passes).backward()
    assert gl.metrics()["push_bytes"] - before == gradient_bytes + len(list(model.parameters())) + gl.size()
    optimizer.step()

    reference = made(mlp)
    stepping = sgd(reference.parameters())
    for inputs, labels in batches(passes):
        (F.cross_entropy(reference(inputs), labels) / passes).backward()
    stepping.step()
    assert_close(model, reference)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_both_ways_to_clear_gradients_work(set_to_none):
    model = gl.DistributedDataParallel(Branches())
    for _ in range(3):
        model.zero_grad(set_to_none)
        model(ONES * (gl.rank() + 1), "left", "right").sum().backward()
    assert model.module.right.weight.grad.tolist() == [[1.5] * 4]


def test_a_parameter_without_a_gradient_is_named_with_its_ranks_on_every_rank():
    model = gl.DistributedDataParallel(Branches())
    for _ in range(2):  # the error is not the end: the ranks stay in step
        with pytest.raises(gl.UnusedParametersError, match=r"right\.weight on rank 1\.") as caught:
            model(ONES, *(["left", "right"], ["left"])[gl.rank()]).sum().backward()
        assert caught.value.parameters == {"right.weight": [1]}
    model.zero_grad()
    model(ONES, "left", "right").sum().backward()


def test_workers_may_take_different_branches_if_they_say_so():
    model = gl.DistributedDataParallel(Branches(), find_unused_parameters=True)
    for _ in range(2):
        model.zero_grad()
        model(ONES * 2, ["left", "right"][gl.rank()]).sum().backward()
        assert model.module.left.weight.grad.tolist() == [[1.0] * 4]
        assert model.module.right.weight.grad.tolist() == [[1.0] * 4]


def test_a_parameter_that_nobody_used_keeps_no_gradient():
    model = gl.DistributedDataParallel(Branches(), find_unused_parameters=True)
    model(ONES, "left").sum().backward()
    assert model.module.right.weight.grad is None


def test_frozen_parameters_are_left_alone():
    module = Branches()
    module.left.requires_grad_(False)
    model = gl.DistributedDataParallel(module)
    model(ONES, "left", "right").sum().backward()
    assert module.left.weight.grad is None and module.right.weight.grad is not None


def test_a_module_without_trainable_parameters_is_refused():
    with pytest.raises(gl.Error, match="nothing to average"):
        gl.DistributedDataParallel(nn.ReLU())


def test_tied_weights_are_summed_once():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    model = gl.DistributedDataParallel(module)
    inputs = torch.arange(8.0).view(2, 4)
    model(inputs[gl.rank() : gl.rank() + 1]).sum().backward()
    distributed, module[0].weight.grad = module[0].weight.grad, None
    module(inputs).sum().div(2).backward()
    assert torch.allclose(distributed, module[0].weight.grad)


def test_empty_scalar_and_strided_parameters_take_part():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.empty = nn.Parameter(torch.zeros(0, 3))
            self.scalar = nn.Parameter(torch.tensor(2.0))
            self.columns = nn.Parameter(torch.arange(6.0).view(2, 3).t())

        def forward(self, factor):
            return self.empty.sum() + self.scalar * factor + (self.columns * factor).sum()

    model = gl.DistributedDataParallel(Odd())
    for _ in range(2):
        model.zero_grad()
        model(float(gl.rank() + 1)).backward()
        assert model.module.empty.grad.shape == (0, 3)
        assert model.module.scalar.grad.item() == 1.5
        assert model.module.columns.grad.tolist() == [[1.5, 1.5]] * 3


def test_gradients_that_are_not_contiguous_are_copied_back_to_their_place():
    module = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    model = gl.DistributedDataParallel(module)
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(2, 3, 6, 6, generator=generator).to(memory_format=torch.channels_last)
    model(inputs[gl.rank() : gl.rank() + 1]).sum().backward()
    distributed, module.weight.grad = module.weight.grad, None
    module(inputs).sum().div(2).backward()
    assert torch.allclose(distributed, module.weight.grad, atol=1e-5)


def test_a_thousand_small_parameters_and_a_large_one():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.small = nn.ParameterList([nn.Parameter(torch.full((i % 7 + 1,), 1.0)) for i in range(1000)])
            self.large = nn.Parameter(torch.ones(3_000_000))

        def forward(self, factor):
            return sum(p.sum() * factor for p in self.small) + self.large.sum() * factor

    model = gl.DistributedDataParallel(Many())
    model(float(gl.rank() + 1)).backward()
    assert all(bool((p.grad == 1.5).all()) for p in model.parameters())


def test_a_parameter_added_or_unfrozen_later_is_refused():
    module = Branches()
    model = gl.DistributedDataParallel(module)
    module.extra = nn.Linear(4, 1)
    with pytest.raises(gl.Error, match=r"extra\.weight was added"):
        model(ONES, "left", "right", "extra")
    with torch.no_grad():
        model(ONES, "extra")  # evaluation averages nothing


def test_buffers_follow_rank_0_in_training_only():
    model = gl.DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)))
    for batch in batches(3):
        model(mine(batch)[0]).sum().backward()
    model.eval()
    model(mine(batch)[0])
    model.train()
    before = model.module[2].running_mean.clone()
    model(mine(batch)[0])
    means = gl.allgather_object(before.tolist(), "means before")
    assert means[0] != means[1], "each worker saw its own batch"
    batches_tracked = gl.allgather_object(model.module[2].num_batches_tracked.item(), "tracked")
    assert batches_tracked == [4, 4]


def test_buffers_may_be_left_alone():
    model = gl.DistributedDataParallel(nn.BatchNorm1d(3), broadcast_buffers=False)
    model(torch.full((2, 3), float(gl.rank())) + torch.arange(2.0).view(2, 1)).sum().backward()
    before = gl.metrics()["pull_bytes"]
    with model.no_sync():
        model(torch.randn(2, 3)).sum().backward()
    assert gl.metrics()["pull_bytes"] == before


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_changes_nothing(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)

        def forward(self, inputs):
            hidden = self.first(inputs.flatten(1)).relu()
            hidden = checkpoint(self.middle, hidden, use_reentrant=reentrant)
            return checkpoint(self.last, hidden.relu(), use_reentrant=reentrant)

    model = gl.DistributedDataParallel(made(Checkpointed))
    optimizer = sgd(model.parameters())
    for batch in batches(3):
        step(model, optimizer, mine(batch))
    reference, _ = trained_alone(Checkpointed, sgd, 3)
    assert_close(model, reference)


def test_a_gradient_taken_by_autograd_grad_is_the_workers_own():
    model = gl.DistributedDataParallel(Branches())
    inputs = ONES.clone().requires_grad_()
    before = gl.metrics()["push_bytes"]
    [gradient] = torch.autograd.grad(model(inputs, "left", "right").sum(), inputs, create_graph=True)
    assert gl.metrics()["push_bytes"] == before
    gradient.square().sum().backward()  # a gradient penalty: now the parameters get theirs
    assert_equal_gradients(model)


@pytest.mark.parametrize("width", [4, 60_000], ids=["small", "large"])
def test_a_graph_of_gradients_is_kept_with_one_warning(width, monkeypatch):
    monkeypatch.setattr(_in_flight, "_has_warned_of_graph", False)
    model = gl.DistributedDataParallel(nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model.zero_grad()
            model(ONES * (gl.rank() + 1)).square().sum().backward(create_graph=True)
            assert all(parameter.grad.requires_grad for parameter in model.parameters())
    assert sum("create_graph=True): the gradients are averaged" in str(warning.message) for warning in caught) == 1
    assert_equal_gradients(model)
    model.zero_grad()  # breaks the circle of parameters and graphs


def test_hooks_after_the_average_see_it_and_end():
    model = gl.DistributedDataParallel(Branches(), find_unused_parameters=True)
    seen = []
    handle = model.register_post_average_hook(lambda parameter: seen.append((parameter, parameter.grad.tolist())))
    with model.no_sync():
        model(ONES, "left").sum().backward()
    assert not seen
    model.zero_grad()
    model(ONES * (gl.rank() + 1), "left").sum().backward()
    [(parameter, gradient)] = seen
    assert parameter is model.module.left.weight and gradient == [[1.5] * 4]
    handle.remove()
    model(ONES, "left").sum().backward()
    assert len(seen) == 1
    with pytest.raises(gl.Error, match="a copy .* averages nothing"):
        copy.deepcopy(model).register_post_average_hook(print)


@pytest.mark.parametrize("policy", ["allgather", "dense"])
@pytest.mark.parametrize(
    "rows", [([0, 1], [2, 3]), ([1, 2], [2, 2]), ([4], [])], ids=["disjoint", "overlapping", "empty on one rank"]
)
def test_sparse_gradients_are_averaged(policy, rows):
    model = gl.DistributedDataParallel(nn.Embedding(6, 3, sparse=True), sparse=policy)
    model(torch.tensor(rows[gl.rank()], dtype=torch.int64)).sum().backward()
    gradient = model.module.weight.grad
    expected = torch.zeros(6, 3)
    for row in rows[0] + rows[1]:
        expected[row] += 0.5
    assert gradient.is_sparse == (policy == "allgather")
    assert torch.equal(gradient.to_dense(), expected)


@pytest.mark.over("local", "shm", "quic")
def test_sparse_gradients_with_ever_new_rows_leave_few_names():
    model = gl.DistributedDataParallel(nn.Embedding(1000, 4, sparse=True))
    for rows in range(20, 220):
        model.zero_grad()
        mine_alone = torch.arange(rows) + gl.rank() * 500
        model(mine_alone).sum().backward()
        gradient = model.module.weight.grad
        assert gradient.is_sparse and gradient.indices().size(1) == 2 * rows
        assert torch.equal(gradient.values(), torch.full((2 * rows, 4), 0.5))
        if rows == 20:
            first = gl.layout().count("part ")
    # An index and four numbers take 24 bytes, 20 to 219 rows 480 to 5256: blocks from 256 to 4096 bytes, of two ranks.
    assert gl.layout().count("part ") - first <= 2 * 5


@pytest.mark.over("local", "shm", "quic")
@pytest.mark.parametrize("rows", [10, 1000])
def test_sparse_gradients_cost_what_their_rows_cost(rows, transport):
    model = gl.DistributedDataParallel(nn.Embedding(10_000, 16, sparse=True))

    def moved():
        gl.barrier("between steps")
        before = gl.metrics()
        model.zero_grad()
        model(torch.arange(rows) + gl.rank()).sum().backward()
        return {name: value - before.get(name, 0) for name, value in gl.metrics().items()}

    moved()  # the first step also tells what was used
    counted = moved()
    mine_alone = rows * (8 + 16 * 4)
    most = mine_alone + max(mine_alone // 20, 255) + 64  # lengths, and which parameters were used
    if transport == "local":
        assert 2 * mine_alone <= counted["local_bytes"] <= 2 * most
    else:
        assert mine_alone <= counted["push_bytes"] <= most
        assert 2 * mine_alone <= counted["pull_bytes"] <= 2 * most


@pytest.mark.parametrize("compression", [gl.Compression.fp16, gl.Compression.bf16])
def test_compressed_gradients_travel_narrow_and_arrive_wide(compression):
    model = gl.DistributedDataParallel(nn.Linear(100, 10, bias=False), compression=compression)
    before = gl.metrics()["push_bytes"]
    model(torch.full((1, 100), gl.rank() + 1.0)).sum().backward()
    assert gl.metrics()["push_bytes"] - before == 100 * 10 * 2 + 1 + gl.size()
    gradient = model.module.weight.grad
    assert gradient.dtype == torch.float32 and bool((gradient == 1.5).all())


def test_half_precision_models_train():
    model = gl.DistributedDataParallel(nn.Linear(4, 1, bias=False).bfloat16())
    model((ONES * (gl.rank() + 1)).bfloat16()).sum().backward()
    assert model.module.weight.grad.dtype == torch.bfloat16
    assert model.module.weight.grad.tolist() == [[1.5] * 4]


def test_infinity_on_one_rank_makes_all_ranks_skip_the_same_step():
    model = gl.DistributedDataParallel(made(mlp))
    optimizer = sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    scales = []
    for number, batch in enumerate(batches(3)):
        inputs, labels = mine(batch)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        if number == 1 and gl.rank() == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert gl.allgather_object(scales, "scales") == [[8.0, 4.0, 4.0]] * 2
    assert_equal_everywhere(model, "after the skip")


def test_autocast_to_bfloat16_trains():
    model = gl.DistributedDataParallel(made(mlp))
    optimizer = sgd(model.parameters())
    for inputs, labels in map(mine, batches(3)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    assert_equal_everywhere(model, "autocast")


def test_two_wrappers_do_not_meet():
    first, second = (gl.DistributedDataParallel(nn.Linear(4, n, bias=False)) for n in (1, 2))
    (first(ONES).sum() + second(ONES * (gl.rank() + 1)).sum()).backward()
    assert first.module.weight.grad.tolist() == [[1.0] * 4]
    assert second.module.weight.grad.tolist() == [[1.5] * 4] * 2


def test_a_gradient_is_averaged_by_one_wrapper_or_optimizer():
    model = Branches()
    wrapper = gl.DistributedDataParallel(model)
    for wrap in (gl.DistributedDataParallel, lambda m: gl.DistributedOptimizer(SGD(m.parameters(), 0.1))):
        with pytest.raises(gl.Error, match="averaged already"):
            wrap(model)
    wrapper(ONES * (gl.rank() + 1), "left", "right").sum().backward()
    assert_equal_gradients(model)
    del wrapper
    gl.DistributedDataParallel(model)


@pytest.mark.parametrize(
    "wrap", [gl.DistributedDataParallel, lambda m: gl.DistributedOptimizer(SGD(m.parameters(), 0.1))]
)
def test_who_averages_gradients_is_freed_with_its_last_reference(wrap):
    model = Branches()
    wrapper = wrap(model)
    output = wrapper(ONES, "left", "right") if isinstance(wrapper, nn.Module) else model(ONES, "left", "right")
    output.sum().backward()
    freed = [weakref.ref(wrapper), weakref.ref(model.left.weight)]
    del wrapper, output
    gc.collect()
    assert freed[0]() is None and not model.left.weight._post_accumulate_grad_hooks
    del model
    gc.collect()
    assert freed[1]() is None


def test_data_loader_processes_do_not_disturb_the_job():
    from torch.utils.data import DataLoader, TensorDataset

    model = gl.DistributedDataParallel(Branches())
    data = TensorDataset(torch.ones(8, 4))
    for (inputs,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"):
        model.zero_grad()
        model(inputs, "left", "right").mean().backward()
    assert model.module.left.weight.grad.tolist() == [[1.0] * 4]


def test_device_ids_say_where_the_module_is():
    with pytest.raises(gl.Error, match=r"device_ids=\[0\], but the module is on cpu"):
        gl.DistributedDataParallel(Branches(), device_ids=[0])


def test_a_module_without_memory_is_refused():
    with pytest.raises(gl.UnsupportedError, match="meta"):
        gl.DistributedDataParallel(nn.Linear(2, 2, device="meta"))


@pytest.mark.workers(2, alone=True)
def test_a_model_of_another_shape_is_a_mismatch_on_every_rank():
    with pytest.raises(gl.MismatchError, match=r"weight") as caught:
        gl.DistributedDataParallel(nn.Linear(3 + gl.rank(), 2))
    assert sorted(caught.value.ranks) == [0, 1]


@pytest.mark.workers(2, alone=True, settings={"step_timeout": "2s"})
def test_a_worker_that_runs_no_backward_is_named_by_the_others():
    model = gl.DistributedDataParallel(Branches())
    output = model(ONES, "left", "right").sum()
    if gl.rank() == 0:
        with pytest.raises(gl.StallError) as caught:
            output.backward()
        assert caught.value.missing_ranks == [1]
        with pytest.raises(gl.StallError):  # and it stays failed: the ranks are out of step
            model(ONES, "left", "right").sum().backward()


def assert_equal_gradients(model):
    gradients = [parameter.grad.tolist() for parameter in model.parameters()]
    both = gl.allgather_object(gradients, "gradients")
    assert both[0] == both[1]
