"""Training on several workers is training on one: whatever the model, the optimizer and the way in."""

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
from gloo import gloo  # noqa: E402
from processes import run_python  # noqa: E402
from torch import distributed  # noqa: E402
from training import (  # noqa: E402
    adamw,
    assert_close,
    assert_equal_everywhere,
    batches,
    by_optimizer,
    by_wrapper,
    cnn,
    made,
    mine,
    mlp,
    sgd,
    step,
    trained_alone,
)

pytestmark = pytest.mark.over("quic")

STEPS, BATCHES = 50, 10
TOLERANCE = 5e-5
"""Absolute, on weights of about 1 in float32. Each step adds a few roundings, which the later ones enlarge."""


def by_comm_hook(model, optimizer):
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=gloo())
    wrapped.register_comm_hook(gl.State(model), gl.ddp_comm_hook)
    return wrapped, optimizer(wrapped.parameters())


def by_group(model, optimizer):
    """PyTorch's wrapper alone, over our process group, which is a second one beside that of Gloo."""
    gloo()
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=distributed.new_group(backend="gradlane"))
    return wrapped, optimizer(wrapped.parameters())


@pytest.mark.workers(2, 4, servers=2)
@pytest.mark.parametrize("optimizer", [sgd, adamw])
@pytest.mark.parametrize("model", [mlp, cnn])
@pytest.mark.parametrize("way_in", [by_wrapper, by_optimizer, by_comm_hook, by_group])
def test_training_equals_that_of_a_single_process(way_in, model, optimizer, request):
    check_parity(way_in, model, optimizer, request.node.name)


@pytest.mark.over("local", "shm")
@pytest.mark.workers(2, servers=2)
@pytest.mark.parametrize("way_in", [by_wrapper, by_optimizer, by_comm_hook, by_group])
def test_training_on_one_machine_equals_that_of_a_single_process(way_in, request):
    check_parity(way_in, cnn, adamw, request.node.name)


def check_parity(way_in, model, optimizer, name):
    """Trains on all workers, and compares with what a single process makes of the same batches."""
    local = made(model, seed=7 + gl.rank())  # different on purpose: rank 0 is broadcast
    trained, stepping = way_in(local, optimizer)
    losses = [step(trained, stepping, mine(batch)) for batch in batches(STEPS, different=BATCHES)]
    reference, _ = trained_alone(model, optimizer, STEPS, different=BATCHES)
    assert_close(local, reference, TOLERANCE)
    assert_equal_everywhere(local, name)
    assert sum(losses[-BATCHES:]) < sum(losses[:BATCHES])


@pytest.mark.workers(2)
@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}], ids=str)
def test_the_hook_gives_what_gloo_gives_through_a_rebuild_of_the_buckets(options):
    def gradients(hooked):
        model = made(lambda: torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]))
        # Buckets of about two layers each.
        ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=gloo(), bucket_cap_mb=0.03, **options)
        if hooked:
            ddp.register_comm_hook(gl.State(model), gl.ddp_comm_hook)
        for inputs, _ in batches(5):
            ddp.zero_grad()
            ddp(mine((inputs.flatten(1),))[0]).square().mean().backward()
            yield torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-7)


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    "rows", [([1, 2], [3, 4]), ([1, 2], [2, 3]), ([1, 1], [])], ids=["disjoint", "overlapping", "empty on one rank"]
)
def test_a_sparse_bucket_is_gathered_by_the_hook(rows):
    model = made(lambda: torch.nn.Embedding(10, 4, sparse=True))
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=gloo())
    ddp.register_comm_hook(gl.State(model), gl.ddp_comm_hook)
    ddp(torch.tensor(rows[gl.rank()], dtype=torch.int64)).sum().backward()
    assert model.weight.grad.is_sparse
    uses = torch.bincount(torch.tensor(rows[0] + rows[1]), minlength=10)
    assert model.weight.grad.to_dense().sum(1).tolist() == (uses * 4 / 2).tolist()


@pytest.mark.workers(2)
def test_a_state_needs_to_know_the_parameters():
    with pytest.raises(gl.Error, match="model= or names="):
        gl.State()


@pytest.mark.workers(2, alone=True)
def test_an_error_under_the_hook_surfaces_from_backward_with_its_type_and_text():
    model = made(mlp)
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=gloo())
    # Worker 1 sends another element type under the same name.
    compression = [gl.Compression.none, gl.Compression.fp16][gl.rank()]
    ddp.register_comm_hook(gl.State(model, compression=compression), gl.ddp_comm_hook)
    with pytest.raises(RuntimeError, match=r"MismatchError: tensor hook0/"):
        ddp(torch.zeros(2, 64)).sum().backward()


ALONE = """
import tempfile, torch, gradlane.torch as gl
from torch import distributed
gl.init()
store = distributed.FileStore(tempfile.mktemp(), 1)
distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.Linear(3, 1)
ddp = torch.nn.parallel.DistributedDataParallel(model)
ddp.register_comm_hook(gl.State(model), gl.ddp_comm_hook)
ddp(torch.ones(1, 3)).sum().backward()
print(model.weight.grad.tolist())
"""


def test_the_hook_works_in_a_job_of_one_too():
    ended = run_python(ALONE)
    assert (ended.code, ended.output.splitlines()[-1:]) == (0, ["[[1.0, 1.0, 1.0]]"]), ended.output


def scripted(model):
    return torch.jit.script(model)


def one_graph(model):
    return torch.compile(model, backend="eager", fullgraph=True)


@pytest.mark.workers(2)
@pytest.mark.parametrize("transform", [scripted, one_graph, lambda model: model], ids=["script", "fullgraph", "plain"])
@pytest.mark.parametrize("state_first", [True, False])
def test_a_model_with_a_state_can_be_scripted_and_compiled_as_one_graph(transform, state_first):
    model = made(mlp)
    state = gl.State(model) if state_first else None
    changed = transform(model)
    ddp = torch.nn.parallel.DistributedDataParallel(changed, process_group=gloo())
    ddp.register_comm_hook(state or gl.State(changed), gl.ddp_comm_hook)
    for step in range(2):
        ddp(torch.full((2, 64), float(gl.rank() + step))).sum().backward()
    gradients = gl.allgather_object([parameter.grad.tolist() for parameter in changed.parameters()], "of all")
    assert gradients[0] == gradients[1]
