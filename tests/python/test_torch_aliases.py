"""Tensors that share memory, in broadcasts and in wrappers; models that differ between workers."""

import pickle

import pytest

torch = pytest.importorskip("torch")

import gradlane.compat.byteps.torch as bps  # noqa: E402
import gradlane.compat.horovod.torch as hvd  # noqa: E402
import gradlane.torch as gl  # noqa: E402
from gradlane.errors import InvalidArgumentError  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("local", "shm")]

DOORS = {
    "gradlane": gl.broadcast_parameters,
    "byteps": lambda params: bps.broadcast_parameters(params, 0),
    "horovod": lambda params: hvd.broadcast_parameters(params, 0),
}


class Tied(nn.Module):
    """An embedding whose weight is also that of the head, as in GPT-2, and a buffer that has two names."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((2, 2), 1.0 + gl.rank()))
        self.register_buffer("flat", self.scale.view(-1))
        nn.init.constant_(self.head.weight, 1.0 + gl.rank())

    def forward(self, indices):
        return self.head(self.embedding(indices)) * self.scale.mean()


@pytest.mark.parametrize("door", DOORS)
def test_a_tensor_with_two_names_is_broadcast_once(door):
    model = Tied()
    before = gl.metrics()
    DOORS[door](model.state_dict())
    after = gl.metrics()
    assert model.head.weight is model.embedding.weight and bool((model.head.weight == 1).all())
    assert model.scale.tolist() == [[1.0, 1.0]] * 2
    moved = max(after[name] - before[name] for name in ("local_bytes", "pull_bytes"))
    assert 0 < moved < 2 * 6 * 4 * 4, "less than the weight twice"


@pytest.mark.parametrize("door", DOORS)
def test_tensors_that_overlap_are_refused_with_both_names(door):
    memory = torch.arange(8.0)
    for other in (memory[2:], memory[:4], memory[::2], memory.view(torch.int32)[:2]):
        with pytest.raises(InvalidArgumentError, match=r"(first.*second|second.*first).* overlap"):
            DOORS[door]({"first": memory, "second": other})


def test_interleaved_views_are_broadcast():
    memory = torch.full((8,), float(gl.rank()))
    gl.broadcast_parameters({"even": memory[::2], "odd": memory[1::2]}, root_rank=1)
    assert memory.tolist() == [1.0] * 8


def test_a_tensor_that_overlaps_itself_is_refused_by_name():
    with pytest.raises(InvalidArgumentError, match=r"wide .*expand\(\).*clone\(\)"):
        gl.broadcast_parameters({"wide": torch.ones(1).expand(4)})
    model = nn.Linear(2, 2)
    model.register_buffer("wide", torch.ones(1).expand(4))
    with pytest.raises(InvalidArgumentError, match=r"wide .*expand\(\).*clone\(\)"):
        gl.DistributedDataParallel(model)


def test_a_model_with_tied_weights_and_aliased_buffers_trains():
    model = gl.DistributedDataParallel(Tied())
    for _ in range(2):
        model.zero_grad()
        model(torch.tensor([gl.rank()])).sum().backward()
    gradients = gl.allgather_object(model.module.head.weight.grad.tolist(), "tied")
    assert gradients[0] == gradients[1]


def test_a_buffer_that_is_a_part_of_a_parameter_is_refused_with_both_names():
    model = nn.Linear(4, 4)
    model.register_buffer("row", model.weight.detach()[1])
    with pytest.raises(InvalidArgumentError, match=r"weight and \S*row .*overlap"):
        gl.DistributedDataParallel(model)


def test_an_optimizer_state_with_aliases_is_broadcast():
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    if gl.rank() == 0:
        shared = torch.full((3,), 7.0)
        part = torch.arange(4.0)
        for parameter, buffer in zip(parameters, (shared, shared, part[1:]), strict=True):
            optimizer.state[parameter] = {"momentum_buffer": buffer, "whole": part}
    gl.broadcast_optimizer_state(optimizer)
    moments = [optimizer.state[parameter]["momentum_buffer"].tolist() for parameter in parameters]
    assert moments == [[7.0] * 3, [7.0] * 3, [1.0, 2.0, 3.0]]


def other_models():
    """What worker 1 builds differently, and how the error names it."""
    return {
        "depth": (nn.Sequential(*[nn.Linear(2, 2) for _ in range(2 + gl.rank())]), r"worker 0 has no more, worker 1 has 2"),
        "shape": (nn.Sequential(nn.Linear(2, 2 + gl.rank())), r"0\.weight.*\[2, 2\].*\[3, 2\]"),
        "dtype": (
            nn.Sequential(nn.Linear(2, 2).to([torch.float32, torch.float64][gl.rank()])), r"0\.weight.*float32.*float64"
        ),
        "name": (nn.ModuleDict({["left", "right"][gl.rank()]: nn.Linear(2, 2)}), r"left\.weight.*right\.weight"),
    }


WRAPS = {
    "wrapper": gl.DistributedDataParallel,
    "optimizer": lambda m: gl.DistributedOptimizer(torch.optim.SGD(m.parameters(), 0.1), m.named_parameters()),
    "barrier": lambda m: gl.CrossBarrier(m, torch.optim.SGD(m.parameters(), 0.1)),
    "byteps": lambda m: bps.DistributedOptimizer(torch.optim.SGD(m.parameters(), 0.1), m.named_parameters()),
    "horovod": lambda m: hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), 0.1), m.named_parameters()),
    "broadcast": lambda m: gl.broadcast_parameters(m.state_dict()),
    "broadcast of byteps": lambda m: bps.broadcast_parameters(m.state_dict(), 0),
    "broadcast of horovod": lambda m: hvd.broadcast_parameters(m.state_dict(), 0),
}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("difference", ["depth", "shape", "dtype", "name"])
def test_models_that_differ_are_told_apart_at_once_on_every_rank(difference, wrap):
    model, complaint = other_models()[difference]
    with pytest.raises(gl.MismatchError, match=complaint) as caught:
        WRAPS[wrap](model)
    assert sorted(caught.value.ranks) == [0, 1]


def test_a_parameter_that_is_frozen_on_one_worker_is_named():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(gl.rank() == 0)
    with pytest.raises(gl.MismatchError, match="worker 0 has bias.*worker 1 has no more"):
        gl.DistributedDataParallel(model)


def test_a_weight_that_is_tied_on_one_worker_is_named():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    if gl.rank() == 1:
        model[1].weight = model[0].weight
    with pytest.raises(gl.MismatchError, match=r"1\.weight"):
        gl.broadcast_parameters(model.state_dict())


def test_several_forward_passes_may_come_before_their_backward_passes():
    class Buffered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
            self.register_buffer("scale", torch.full((4,), 2.0))

        def forward(self, inputs):
            return self.norm(self.layer(inputs)) * self.scale

    model = gl.DistributedDataParallel(Buffered())
    outputs = [model(torch.randn(3, 4)) for _ in range(2)]
    sum(output.square().sum() for output in outputs).backward()
    outputs = [model(torch.randn(3, 4)) for _ in range(2)]
    means = gl.allgather_object(model.module.norm.running_mean.tolist(), "means")
    assert means[0] != means[1], "of the second pass"
    outputs[1].sum().backward()
    outputs[0].sum().backward()


def numpy_scalar():
    import numpy

    return numpy.array(0.1)


@pytest.mark.parametrize(
    "value, complaint", [(numpy_scalar, "ndarray"), (lambda: print, "builtin_function"), (lambda: torch.float32, "dtype")]
)
def test_a_state_that_the_root_cannot_send_is_an_error_on_all_workers(value, complaint):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    if gl.rank() == 0:
        optimizer.param_groups[0]["odd"] = value()
    with pytest.raises(InvalidArgumentError, match=complaint):
        gl.broadcast_optimizer_state(optimizer)
    optimizer.param_groups[0].pop("odd", None)
    gl.broadcast_optimizer_state(optimizer)


def test_an_object_that_the_root_cannot_send_is_an_error_on_all_workers():
    expected = (TypeError, AttributeError, pickle.PicklingError) if gl.rank() == 0 else InvalidArgumentError
    with pytest.raises(expected, match=r"pickle|<lambda>"):
        gl.broadcast_object((lambda: None) if gl.rank() == 0 else None)
    assert gl.broadcast_object(gl.rank()) == 0


class Many(nn.Module):
    """Buffers of all kinds: small and large ones, one with two names, and 200 that are alike."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        for index in range(200):
            self.register_buffer(f"small{index}", torch.full((3,), float(index)))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("phase", torch.tensor([1 + 2j]))
        self.register_buffer("short", torch.ones(5, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("transposed", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("nothing", torch.zeros(0))
        self.register_buffer("large", torch.zeros(1 << 19))
        self.register_buffer("again", self.count)

    def forward(self, inputs):
        return self.layer(inputs)


def buffers_of(model):
    return {name: tensor.tolist() for name, tensor in model.module.named_buffers()}


def test_buffers_follow_those_of_rank_0_in_few_messages():
    model = gl.DistributedDataParallel(Many())
    model(torch.ones(1, 2))
    before = gl.metrics()["submissions"]
    model(torch.ones(1, 2))
    assert gl.metrics()["submissions"] - before <= 3, "the small ones, the large one, and the one without elements"
    if gl.rank() == 0:
        with torch.no_grad():
            for name, buffer in model.module.named_buffers():
                buffer.copy_(~buffer if name == "mask" else buffer + 1)
    versions = {name: buffer._version for name, buffer in model.module.named_buffers()}
    model(torch.ones(1, 2))
    found = gl.allgather_object(buffers_of(model), "buffers")
    assert found[0] == found[1] and found[0]["small3"] == [4.0] * 3 and found[0]["mask"] == [False, True]
    assert found[0]["transposed"] == [[1, 4], [2, 5], [3, 6]] and model.module.again.item() == 8
    written = {name for name, buffer in model.module.named_buffers() if buffer._version != versions[name]}
    assert written == (set() if gl.rank() == 0 else set(found[0]) - {"nothing"})


def test_buffers_that_were_replaced_follow_too():
    model = gl.DistributedDataParallel(Many())
    model(torch.ones(1, 2))
    model.module.small3 = torch.full((4,), float(gl.rank()))
    model.module.mask.data = torch.full((2,), gl.rank() == 0)
    model(torch.ones(1, 2))
    assert model.module.small3.tolist() == [0.0] * 4 and model.module.mask.tolist() == [True, True]
    copied = pickle.loads(pickle.dumps(model.module))
    assert copied.small3.tolist() == [0.0] * 4
