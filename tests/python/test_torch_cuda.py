"""Training with CUDA tensors, over a driver that is not one: see `ondevice` for what it shows and what it cannot."""

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
import ondevice  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from conftest import IN_WORKER  # noqa: E402
from fakecuda import LAG_SECONDS, LIBRARY, counter, produce, user_stream  # noqa: E402
from ondevice import Carry, bring, bring_module, device_of  # noqa: E402
from training import (  # noqa: E402
    adamw,
    assert_close,
    assert_equal_everywhere,
    batches,
    by_cross_barrier,
    by_optimizer,
    by_wrapper,
    made,
    mine,
    mlp,
    sgd,
    step,
    trained_alone,
)

pytestmark = [
    pytest.mark.workers(2, settings={"cuda_lib": LIBRARY}, env={"FAKECUDA_DEVICES": "2"}),
    pytest.mark.over("shm"),
]

STEPS = 6


@pytest.fixture
def cuda(monkeypatch):
    if not IN_WORKER:
        yield
        return
    with ondevice.cuda_as_far_as_gradlane_sees(monkeypatch) as seen:
        yield seen


@pytest.fixture
def copied():
    """Bytes that the devices copied to the host and back since the test began."""
    if not IN_WORKER:
        return None

    def total():
        gl.synchronize()  # copies for which only a stream waits are counted when they are done
        return [counter(name, device) for name in ("bytes_d2h", "bytes_h2d") for device in (0, 1)]

    before = total()
    return lambda: [after - was for after, was in zip(total(), before, strict=True)]


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64], ids=str)
def test_every_form_reduces_where_the_tensor_lies(dtype, cuda, copied):
    def tensor():
        return bring((torch.arange(1000) % 50 * (gl.rank() + 1)).to(dtype))

    sums = torch.arange(1000) % 50 * 3
    forms = [
        (gl.push_pull, False),
        (gl.push_pull_, True),
        (lambda *a, **k: gl.synchronize(gl.push_pull_async(*a, **k)), False),
        (lambda *a, **k: gl.grouped_push_pull([a[0]], *a[1:], **k)[0], False),
        (lambda *a, **k: gl.grouped_push_pull_([a[0]], *a[1:], **k)[0], True),
    ]
    for number, (form, in_place) in enumerate(forms):
        given = tensor()
        result = form(given, f"form {number} {dtype}", op=gl.Sum)
        assert (result is given) == in_place and device_of(result) == 0
        assert torch.equal(result.long(), sums)
    assert copied() == [5 * given.nbytes, 0, 5 * given.nbytes, 0]


@pytest.mark.over("shm", "quic")
def test_tensors_of_a_process_set_are_reduced_in_host_memory_and_come_back(cuda, copied):
    both, sums = gl.ProcessSet([0, 1]), torch.arange(1000.0) * 3
    given = [bring(torch.arange(1000.0) * (gl.rank() + 1)) for _ in range(3)]
    reduced = gl.push_pull(given[0], "of a set", op=gl.Sum, process_set=both)
    gl.push_pull_(given[1], "of a set", op=gl.Sum, process_set=both)
    [grouped] = gl.grouped_push_pull_([given[2]], "group of a set", op=gl.Sum, process_set=both)
    assert all(device_of(tensor) == 0 and torch.equal(tensor, sums) for tensor in (reduced, given[1], grouped))
    gl.broadcast_(given[0], 1, process_set=both)
    assert torch.equal(given[0], torch.arange(1000.0) * 2)
    assert copied() == [0, 0, 0, 0], "the engine copies nothing"


def test_a_tensor_is_read_after_what_the_current_stream_was_still_to_write(cuda):
    cuda.stream[0] = user_stream(lag_seconds=LAG_SECONDS)
    tensor = bring(torch.zeros(50_000))
    produce(cuda.stream[0], tensor.data_ptr(), torch.full((50_000,), float(gl.rank() + 1)).numpy().tobytes())
    gl.push_pull_(tensor, "late", op=gl.Sum)
    assert (tensor == 3).all()


@pytest.mark.parametrize("compression", [gl.Compression.bf16, gl.Compression.fp16])
def test_what_is_narrowed_is_so_on_its_way_only_and_lands_where_the_tensor_lies(compression, cuda, copied):
    tensor = bring(torch.full((2, 3), 0.5 + gl.rank()))
    gl.push_pull_(tensor, f"narrow {compression}", compression=compression)
    assert (tensor == 1.0).all() and cuda.recorded == []
    assert copied() == [12, 0, 12, 0]


@pytest.mark.parametrize("compression", [gl.Compression.none, gl.Compression.bf16])
def test_what_is_strided_is_copied_back_and_its_memory_kept_for_the_stream_that_reads_it(compression, cuda):
    strided = bring(torch.arange(6.0).view(2, 3)).t()
    gl.push_pull_(strided, f"strided {compression}", op=gl.Sum, compression=compression)
    assert strided.t().tolist() == [[0, 2, 4], [6, 8, 10]] and cuda.recorded == [(3, 2)]


def test_a_group_may_lie_on_two_devices_and_on_the_cpu(cuda, copied):
    tensors = [torch.full((100,), float(index)) for index in range(6)]
    for index, tensor in enumerate(tensors):
        if index % 3 < 2:
            bring(tensor, index % 3)
    gl.grouped_push_pull_(tensors, "mixed", op=gl.Sum)
    assert [tensor[0].item() for tensor in tensors] == [0, 2, 4, 6, 8, 10]
    assert copied() == [800, 800, 800, 800]


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("optimizer", [sgd, adamw])
@pytest.mark.parametrize("way_in", [by_wrapper, by_optimizer, by_cross_barrier])
def test_training_equals_that_of_a_single_process(way_in, optimizer, cuda, copied, request):
    local = bring_module(made(mlp, seed=7 + gl.rank()))  # different on purpose: rank 0 is broadcast
    trained, stepping = way_in(local, optimizer)
    before = copied()
    for batch in batches(STEPS):
        step(trained, stepping, mine(batch))
    if way_in is by_cross_barrier:
        stepping.remove()
    each_step = sum(parameter.nbytes for parameter in local.parameters())
    assert [after - was for after, was in zip(copied(), before, strict=True)] == [STEPS * each_step, 0] * 2
    reference, _ = trained_alone(mlp, optimizer, STEPS)
    assert_close(local, reference)
    assert_equal_everywhere(local, request.node.name)


class Halves(torch.nn.Module):
    """A model on two devices and the CPU, which a forward pass goes through in turn."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = torch.nn.Linear(64, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 10)

    def forward(self, inputs):
        # The reference, which lies on the CPU as a whole, stays there.
        carry = (lambda tensor, _: tensor) if device_of(self.first.weight) is None else Carry.apply
        hidden = F.relu(self.first(carry(inputs.flatten(1), 0)))
        hidden = F.relu(self.second(carry(hidden, 1)))
        return self.last(carry(hidden, None))


@pytest.mark.parametrize("way_in", [by_wrapper, by_optimizer])
def test_a_model_on_two_devices_and_the_cpu_trains_as_one(way_in, cuda, copied, request):
    local = made(Halves, seed=7 + gl.rank())
    bring_module(local.first, 0)
    bring_module(local.second, 1)
    trained, stepping = way_in(local, sgd)
    before = copied()
    for batch in batches(STEPS):
        step(trained, stepping, mine(batch))
    sizes = [STEPS * sum(p.nbytes for p in part.parameters()) for part in (local.first, local.second)]
    assert [after - was for after, was in zip(copied(), before, strict=True)] == [*sizes, *sizes]
    reference, _ = trained_alone(Halves, sgd, STEPS)
    assert_close(local, reference)
    assert_equal_everywhere(local, request.node.name)


def test_accumulated_passes_are_sent_once_and_gradients_that_stay_are_reduced_in_place(cuda, copied):
    model = bring_module(made(mlp))
    wrapped, stepping = by_wrapper(model, sgd)
    before = copied()[0]
    for number, batch in enumerate(batches(4)):
        inputs, labels = mine(batch)
        if number == 1:
            stepping.zero_grad(set_to_none=False)  # the gradients stay where they lie, as views of a bucket do
        places = [p.grad.data_ptr() for p in model.parameters() if p.grad is not None]
        if number % 2 == 0:
            with wrapped.no_sync():
                F.cross_entropy(wrapped(inputs), labels).backward()
        else:
            F.cross_entropy(wrapped(inputs), labels).backward()
            assert places == [p.grad.data_ptr() for p in model.parameters()]
    assert copied()[0] - before == 2 * sum(parameter.nbytes for parameter in model.parameters())


def test_an_infinite_gradient_of_one_worker_makes_all_skip_the_step(cuda):
    model = bring_module(made(mlp)).to(torch.float32)
    wrapped, stepping = by_wrapper(model, sgd)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    weights = [parameter.clone() for parameter in model.parameters()]
    for number, (inputs, labels) in enumerate(map(mine, batches(2))):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(wrapped(inputs).float(), labels)
        if number == 0 and gl.rank() == 1:
            loss = loss * float("inf")
        stepping.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(stepping)
        scaler.update()
        is_same = all(map(torch.equal, weights, model.parameters()))
        assert (is_same, scaler.get_scale()) == (number == 0, 4.0)


def test_optimizer_state_of_the_root_reaches_workers_that_never_stepped(cuda):
    model = bring_module(made(mlp))
    stepping = adamw(model.parameters())
    if gl.rank() == 0:
        inputs, labels = next(batches(1))
        F.cross_entropy(model(inputs), labels).backward()
        stepping.step()
    gl.broadcast_optimizer_state(stepping)
    ours = gl.allgather_object(str(stepping.state_dict()["state"]), "optimizer state")
    assert ours[0] == ours[1] and "exp_avg" in ours[0]


class Bucket:
    """What PyTorch's wrapper gives to a hook."""

    def __init__(self, buffer, parameters):
        self._buffer, self._parameters = buffer, parameters

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def is_last(self):
        return True


def test_the_hook_averages_a_bucket_where_it_lies(cuda, copied):
    model = bring_module(made(mlp))
    buffer = bring(torch.full((5000,), float(gl.rank())))
    for compression in (gl.Compression.none, gl.Compression.bf16):
        state = gl.State(model, compression=compression)
        buffer.fill_(gl.rank())
        average = gl.ddp_comm_hook(state, Bucket(buffer, list(model.parameters()))).wait()
        assert average.data_ptr() == buffer.data_ptr() and (average == 0.5).all()
    assert copied() == [30_000, 0, 30_000, 0]
