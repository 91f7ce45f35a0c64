"""Training with every codec: with its recommended options it gets where uncompressed training gets, and all workers stay equal."""

import functools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import gradlane.torch as gl  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from gradlane import _core  # noqa: E402
from process_group import HOOKS  # noqa: E402
from process_group import group as group  # noqa: E402  a fixture of each test here
from sklearn.datasets import load_digits  # noqa: E402
from torch import nn  # noqa: E402
from training import assert_equal_everywhere, made  # noqa: E402

pytestmark = [pytest.mark.over("quic"), pytest.mark.workers(2, servers=2)]

STEPS = 120
BATCH = 128

RECOMMENDED = {
    gl.Compression.fp16: 0.5,
    gl.Compression.bf16: 0.5,
    gl.Compression.bf16(stochastic=True): 0.5,
    gl.Compression.int8: 0.254,
    gl.Compression.int8(stochastic=True): 0.254,
    gl.Compression.fp8_e4m3: 0.254,
    gl.Compression.fp8_e5m2(stochastic=True): 0.254,
    gl.Compression.int4(feedback=True): 0.129,
    gl.Compression.int4(stochastic=True): 0.129,
    gl.Compression.randomk(k=500_000, feedback=True): 0.5,
    gl.Compression.topk(k=100_000, feedback=True): 0.14,
    gl.Compression.onebit(feedback=True): 0.032,
    gl.Compression.dithering(feedback=True): 0.25,
    gl.Compression.lossless: 1.0,
}
"""Each codec with options with which it trains, and the bytes that it sends, divided by those of float32."""

SMALL = 0.06
"""The share of parameters in small tensors, which may travel in other ways."""


def net():
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


@functools.cache
def digits():
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def final_loss(wrap):
    """The loss over all digits after training, and the bytes that this worker pushed for each parameter and step."""
    images, labels = digits()
    model = made(net)
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.5)
    draw = torch.Generator().manual_seed(1)
    before = gl.metrics()["push_bytes"]
    for _ in range(STEPS):
        batch = torch.randint(len(images), (BATCH,), generator=draw)[gl.rank() :: gl.size()]
        optimizer.zero_grad()
        F.cross_entropy(wrapped(images[batch]), labels[batch]).backward()
        optimizer.step()
    pushed = gl.metrics()["push_bytes"] - before
    assert_equal_everywhere(model, "trained")
    with torch.no_grad():
        loss = F.cross_entropy(model(images), labels).item()
    return loss, pushed / STEPS / sum(parameter.numel() for parameter in model.parameters())


def by_wrapper(compression):
    return lambda model: gl.DistributedDataParallel(model, compression=compression)


@functools.cache
def loss_without():
    return final_loss(by_wrapper(gl.Compression.none))[0]


def test_every_codec_has_options_with_which_it_trains():
    tried = {compression.codec.partition(":")[0] for compression in RECOMMENDED}
    assert tried == set(_core.names_table()["codecs"]) - {"none"}


@pytest.mark.parametrize("compression", RECOMMENDED, ids=lambda compression: compression.codec)
def test_training_gets_where_it_gets_without_compression_with_fewer_bytes(compression):
    loss, bytes_each = final_loss(by_wrapper(compression))
    assert loss < loss_without() * 1.1 + 0.01
    assert bytes_each < 4 * (RECOMMENDED[compression] + SMALL)


@pytest.mark.parametrize(
    "compression", [one for one in RECOMMENDED if "feedback" not in one.codec], ids=lambda compression: compression.codec
)
def test_ddp_of_pytorch_gets_there_over_a_group_with_a_codec(compression):
    """All weights are equal on all workers."""
    members = dist.new_group(pg_options=gl.ProcessGroupOptions(compression))
    loss, bytes_each = final_loss(lambda model: nn.parallel.DistributedDataParallel(model, process_group=members))
    assert loss < loss_without() * 1.1 + 0.01
    assert bytes_each < 4 * (RECOMMENDED[compression] + SMALL)


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_pytorch_get_there_over_our_process_group(hook):
    def wrap(model):
        wrapped = nn.parallel.DistributedDataParallel(model)
        wrapped.register_comm_hook(*HOOKS[hook][0]())
        return wrapped

    assert final_loss(wrap)[0] < loss_without() * 1.1 + 0.01


def test_a_hundredth_of_the_elements_is_enough_only_with_feedback():
    kept, lost = [final_loss(by_wrapper(gl.Compression.topk(feedback=feedback)))[0] for feedback in (True, False)]
    assert kept < 1.5 * loss_without() < 0.5 * lost, (kept, lost)


def test_random_elements_do_not_train_without_feedback_because_they_vary_too_much():
    lost, _ = final_loss(by_wrapper(gl.Compression.randomk(compress_all=True)))
    assert not lost < 10 * loss_without(), lost  # not a number, or large
