"""`Embedding`, `EmbeddingBag` and `TableOptimizer`: PyTorch's sparse embeddings with rows on the servers, which many workers train."""

import copy
import pickle
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

import gradlane  # noqa: E402
import gradlane.torch as gl  # noqa: E402
from children import fork, refused  # noqa: E402
from gradlane import modes, rules  # noqa: E402
from gradlane.errors import InvalidArgumentError, MismatchError, NotFiniteError, UnsupportedError  # noqa: E402
from gradlane.tables import Table  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(2, servers=2), pytest.mark.over("shm", "quic")]

IDS, DIM, STEPS = 50, 4, 100
SGD = rules.SGD(lr=1.0)
"""Each row loses its gradient."""


def own(name):
    """The name of a table that no other worker uses."""
    return f"{name} of worker {gradlane.rank()}"


def made(name, rule=SGD, **options):
    return gl.Embedding(IDS, DIM, name=own(name), rule=rule, **options)


def rows_of(module, ids=range(IDS)):
    """The present rows; makes none."""
    return module.table.look(torch.tensor(list(ids)))


def peer_of(module, kind=nn.Embedding, **options):
    """PyTorch's module with the same rows."""
    peer = kind(IDS, DIM, padding_idx=module.padding_idx, **options)
    with torch.no_grad():
        peer.weight.copy_(rows_of(module))
        if module.padding_idx is not None:
            peer.weight[module.padding_idx] = 0.0
    return peer


def check_equal(ours, theirs, module, peer):
    """Outputs are equal, and so are the changes that their gradients make."""
    torch.testing.assert_close(ours, theirs)
    for output in (ours, theirs):
        (output * torch.arange(1.0, 1 + output.numel()).reshape(output.shape)).sum().backward()
    before = peer.weight.detach()
    gl.TableOptimizer(module).step()
    expected = before - peer.weight.grad
    kept = [row for row in range(IDS) if row != module.padding_idx]
    torch.testing.assert_close(rows_of(module, kept), expected[kept])


@pytest.mark.parametrize("padding", [None, 3, -1])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 0)])
def test_rows_and_gradients_are_those_of_pytorch(shape, padding):
    module = made(f"as PyTorch's {shape} {padding}", padding_idx=padding)
    peer = peer_of(module)
    ids = torch.randint(IDS, shape, generator=torch.Generator().manual_seed(1))
    if ids.numel() > 5:
        ids.view(-1)[:3] = torch.tensor([3, IDS - 1, 3])
    check_equal(module(ids), peer(ids), module, peer)
    torch.testing.assert_close(module(ids.int()), module(ids))


BAGGED = torch.tensor([3, 7, 7, 3, 9, 1, 3])
BAGS = {
    "with an empty one": ((BAGGED, torch.tensor([0, 2, 2, 5])), False),
    "with the last end": ((BAGGED, torch.tensor([0, 2, 3, 7])), True),
    "of one size": ((BAGGED[:6].reshape(2, 3),), False),
    "all empty": ((BAGGED[:0], torch.tensor([0, 0])), False),
    "by int32": ((BAGGED.int(), torch.tensor([0, 3], dtype=torch.int32)), False),
}
"""What the forward pass gets, and whether the last offset is an end."""


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("bags", BAGS)
def test_bags_are_those_of_pytorch(bags, mode, padding):
    given, is_end = BAGS[bags]
    options = {"mode": mode, "include_last_offset": is_end}
    name = own(f"bags {bags} {mode} {padding}")
    module = gl.EmbeddingBag(IDS, DIM, name=name, rule=SGD, padding_idx=padding, **options)
    peer = peer_of(module, nn.EmbeddingBag, **options)
    check_equal(module(*given), peer(*given), module, peer)


def test_weights_of_samples_have_gradients_too():
    module = gl.EmbeddingBag(IDS, DIM, name=own("weighted"), rule=SGD, mode="sum", padding_idx=2)
    peer = peer_of(module, nn.EmbeddingBag, mode="sum")
    ids, offsets = torch.tensor([1, 2, 2, 40, 1]), torch.tensor([0, 3])
    weights = [torch.arange(5.0, requires_grad=True) for _ in range(2)]
    check_equal(module(ids, offsets, weights[0]), peer(ids, offsets, weights[1]), module, peer)
    torch.testing.assert_close(weights[0].grad, weights[1].grad)


PAIRS = {
    "SparseAdam": (rules.SparseAdam(lr=0.01), lambda weights: torch.optim.SparseAdam(weights, lr=0.01)),
    "Adagrad": (rules.Adagrad(lr=0.1), lambda weights: torch.optim.Adagrad(weights, lr=0.1)),
    "SGD": (rules.SGD(lr=0.1), lambda weights: torch.optim.SGD(weights, lr=0.1)),
}


@pytest.mark.workers(1, servers=1)
def test_a_hundred_steps_are_those_of_pytorch_with_one_server():
    check_steps()


@pytest.mark.workers(1, servers=3)
def test_a_hundred_steps_are_those_of_pytorch_with_three_servers():
    check_steps()


@pytest.mark.workers(1, servers=5)
def test_a_hundred_steps_are_those_of_pytorch_with_five_servers():
    check_steps()


@pytest.mark.workers(1, servers=3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_hundred_steps_of_rows_of_half_precision_are_near_those_of_pytorch(dtype):
    # Below 4, neighbours of bfloat16 are 2**-6 apart, and of float16 2**-9. A row makes about 24 steps, and each moves it by half of that
    # on average if it moves it by chance at all: a standard deviation of at most 5 halves. No value is further away than seven of them.
    apart = {"bfloat16": 2.0**-6, "float16": 2.0**-9}[dtype]
    check_steps(7 * 2.5 * apart, dtype=dtype)


def check_steps(bound=1e-6, **settings):
    for kind, (rule, optimizer) in PAIRS.items():
        module = made(f"steps of {kind} {settings}", rule, **settings)
        peer = peer_of(module, sparse=True)
        optimizers = gl.TableOptimizer(module), optimizer(peer.parameters())
        for step in range(STEPS):
            draw = torch.Generator().manual_seed(step)
            ids, targets = torch.randint(IDS, (6, 2), generator=draw), torch.randn(6, 2, DIM, generator=draw)
            for one, of in zip((module, peer), optimizers, strict=True):
                of.zero_grad()
                nn.functional.mse_loss(one(ids), targets, reduction="sum").backward()
                of.step()
        apart = rows_of(module) - peer.weight
        assert apart.abs().max().item() <= bound and abs(apart.mean().item()) <= bound / 7, (kind, apart.abs().max(), apart.mean())


def test_each_gradient_of_all_workers_counts_once():
    module = gl.Embedding(IDS, DIM, name="counted", rule=SGD, init="zero", scale=0.0)
    optimizer = gl.TableOptimizer(module)
    mine = torch.zeros(IDS)
    draw = torch.Generator().manual_seed(gradlane.rank())
    for _ in range(50):
        ids = torch.randint(IDS, (20,), generator=draw)
        module(ids).sum().backward()
        optimizer.step()
        mine += ids.bincount(minlength=IDS)
    gl.barrier("all have counted")
    total = gl.push_pull(mine, "what all have counted", op=gradlane.Sum)
    assert torch.equal(rows_of(module), -total[:, None].expand(IDS, DIM))
    gl.barrier("all have looked")


@pytest.mark.parametrize("kind", [gl.Embedding, gl.EmbeddingBag])
def test_modules_say_how_servers_keep_their_rows(kind):
    module = kind(IDS, DIM, name=own(f"kept {kind.__name__}"), rule=SGD, dtype="bfloat16")
    rows = module(torch.tensor([[1, 2]]))
    kept = module.table.look([1, 2])
    assert rows.dtype == torch.float32 and "dtype=bf16" in repr(module) and not (kept.view("int32") & 0xFFFF).any()
    with pytest.raises(InvalidArgumentError, match="dtype=torch.bfloat16; give one of float32"):
        kind(IDS, DIM, name="wrong", rule=SGD, dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", [gl.Embedding, gl.EmbeddingBag])
def test_workers_that_wait_for_each_other_train_as_one_process_with_all_batches(kind):
    is_bag = kind is gl.EmbeddingBag
    mode = {"table_mode" if is_bag else "mode": modes.Sync()}
    module = kind(IDS, DIM, name=f"together {is_bag}", rule=rules.Adagrad(lr=0.1), **mode)
    peer = peer_of(module, nn.EmbeddingBag if is_bag else nn.Embedding, sparse=True)
    optimizers = gl.TableOptimizer(module), torch.optim.Adagrad(peer.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizers[1].zero_grad()
        for rank in range(gradlane.size()):
            draw = torch.Generator().manual_seed(1000 * rank + step)
            # At some steps a worker has no ids.
            ids = torch.randint(IDS, (step % 5 * (rank + 1), 2), generator=draw)
            for one in (module, peer) if rank == gradlane.rank() else (peer,):
                if ids.numel():
                    loss = (one(ids) - rank).square().sum()
                    (loss if one is module else loss / gradlane.size()).backward()
        for optimizer in optimizers:
            optimizer.step()
    gl.barrier(f"trained together {is_bag}")
    torch.testing.assert_close(rows_of(module), peer.weight.detach(), atol=1e-6, rtol=1e-5)
    gl.barrier(f"compared together {is_bag}")


def test_an_evaluation_makes_no_rows_and_leaves_no_gradients():
    module = made("evaluated")
    ids = torch.arange(9)
    with torch.no_grad():
        looked = module(ids)
    module.eval()
    module.prefetch(ids)
    torch.testing.assert_close(module(ids), looked)
    assert not module(ids).requires_grad and module.table.stats().rows == 0
    module.train()
    torch.testing.assert_close(module(ids), looked)
    assert module.table.stats().rows == 9


def test_a_padding_is_zeros_and_has_no_row():
    module = made("padded", rules.SparseAdam(lr=0.1), padding_idx=5)
    optimizer = gl.TableOptimizer(module)
    ids = torch.tensor([[5, 1], [5, 5]])
    for _ in range(2):
        output = module(ids)
        assert torch.equal(output[1], torch.zeros(2, DIM))
        output.sum().backward()
        optimizer.step()
    assert module.table.stats().rows == 1


def test_what_cannot_be_is_refused_by_name():
    module = made("refuses")
    for ids, why in [
        (torch.tensor([1, IDS]), f"no id {IDS}; give ids from 0 to {IDS - 1}"),
        (torch.tensor([[-7], [3]]), "no id -7"),
        (torch.tensor([1.0]), "ids of torch.float32; give int64"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            module(ids)
        with pytest.raises(InvalidArgumentError, match=why):
            module.prefetch(ids)
    assert module.table.stats().rows == 0
    for error, options in [
        (UnsupportedError, {"max_norm": 1.0}),
        (UnsupportedError, {"scale_grad_by_freq": True}),
        (InvalidArgumentError, {"padding_idx": IDS}),
        (InvalidArgumentError, {"scale": -1.0}),
    ]:
        with pytest.raises(error, match=next(iter(options))):
            made("refused", **options)
    with pytest.raises(InvalidArgumentError, match="num_embeddings=0"):
        gl.Embedding(0, DIM, name="none", rule=SGD)
    with pytest.raises(InvalidArgumentError, match="mode='min'"):
        gl.EmbeddingBag(IDS, DIM, name="none", rule=SGD, mode="min")
    with pytest.raises(InvalidArgumentError, match=r"no gl\.Embedding"):
        gl.TableOptimizer(nn.Embedding(4, 2))


def test_a_forward_pass_without_a_backward_pass_leaves_nothing():
    module = made("forgotten")
    optimizer = gl.TableOptimizer(module)
    before = rows_of(module)
    output = module(torch.arange(5))
    rows = weakref.ref(output.grad_fn.next_functions[0][0].variable)
    optimizer.step()
    assert torch.equal(rows_of(module), before)
    assert rows().shape == (5, DIM)
    del output
    assert rows() is None, "the rows are not kept"


def test_gradients_add_up_until_the_step_and_zero_grad_drops_them():
    module = made("added up")
    optimizer = gl.TableOptimizer(nn.ModuleDict({"embedding": module}))
    before = rows_of(module)
    with pytest.raises(ZeroDivisionError):
        module(torch.tensor([1, 2])).sum().backward()
        1 // 0  # noqa: B018
    optimizer.zero_grad()
    output = module(torch.tensor([2, 3, 3])).sum()
    output.backward(retain_graph=True)
    module(torch.tensor([[3, 4]])).sum().backward()
    output.backward(retain_graph=True)
    optimizer.step()
    changes = torch.tensor([0.0, 0.0, 2.0, 5.0, 1.0])
    torch.testing.assert_close(before[:5] - rows_of(module, range(5)), changes[:, None].expand(5, DIM))
    optimizer.step()
    output.backward()
    optimizer.step()
    changes += torch.tensor([0.0, 0.0, 1.0, 2.0, 0.0])
    torch.testing.assert_close(before[:5] - rows_of(module, range(5)), changes[:, None].expand(5, DIM))


def test_modules_of_one_name_have_one_table_and_make_one_step():
    """By the rule of Adagrad, two steps would be another change than one by the sum."""
    adagrad = rules.Adagrad(lr=0.1)
    module = made("shared", adagrad)
    bag = gl.EmbeddingBag(IDS, DIM, mode="sum", name=own("shared"), rule=adagrad)
    peer = peer_of(module)
    plain = torch.optim.Adagrad(peer.parameters(), lr=0.1)
    ids = torch.tensor([[1, 2], [2, 9]])
    module(ids).sum().backward()
    (3 * bag(ids)).sum().backward()
    (peer(ids).sum() + 3 * peer(ids).sum()).backward()
    gl.TableOptimizer([module, bag]).step()
    plain.step()
    torch.testing.assert_close(rows_of(module), peer.weight.detach())
    other = gl.Embedding(IDS, DIM, name=own("shared"), rule=rules.Adagrad(lr=0.2))
    with pytest.raises(MismatchError, match=r"lr=0\.1.*lr=0\.2"):
        other(ids)


def test_the_model_has_no_parameter_of_it_and_a_copy_has_the_same_rows():
    model = nn.Sequential(made("copied"), nn.Linear(DIM, 1))
    assert [name for name, _ in model.named_parameters()] == list(model.state_dict()) == ["1.weight", "1.bias"]
    ids = torch.tensor([4, 8])
    model[0].prefetch(ids)
    model(ids).sum().backward()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = rows_of(model[0])
        gl.TableOptimizer(copied).step()
        assert torch.equal(rows_of(model[0]), before), "gradients are not copied"
        copied[0](ids).sum().backward()
        gl.TableOptimizer(copied).step()
        torch.testing.assert_close(before[ids] - rows_of(model[0])[ids], torch.ones(2, DIM))
    assert own("copied") in repr(model)


def test_a_wrapper_averages_the_other_parameters_alone():
    torch.manual_seed(gradlane.rank())
    model = nn.Sequential(made("wrapped"), nn.Linear(DIM, 1))
    wrapped = gl.DistributedDataParallel(model)
    dense = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    before = rows_of(model[0])
    for _ in range(3):
        wrapped(torch.tensor([2 + gradlane.rank()])).sum().backward()
        gl.TableOptimizer(wrapped).step()
        dense.step()
        dense.zero_grad()
    weights = gl.allgather_object(model[1].weight.tolist())
    assert weights[0] == weights[1]
    changed = (before != rows_of(model[0])).any(1).nonzero().flatten().tolist()
    assert changed == [2 + gradlane.rank()], "rows are this worker's own"


def test_prefetched_rows_are_used_once_by_a_pass_with_the_same_ids(monkeypatch):
    module = made("prefetched")
    optimizer = gl.TableOptimizer(module)
    pulls, pull = [], Table.pull_async
    monkeypatch.setattr(Table, "pull_async", lambda table, ids: pulls.append(ids.tolist()) or pull(table, ids))
    first, second = torch.tensor([2, 1, 2]), torch.tensor([1, 7])
    module.prefetch(first)
    first_rows = module(first)
    module.prefetch(second)
    first_rows.sum().backward()
    optimizer.step()
    stale, fresh = module(second), module(torch.tensor([1, 7]))
    assert pulls == [[1, 2], [1, 7], [1, 7]]
    torch.testing.assert_close(stale[0] - fresh[0], torch.ones(DIM), msg="it was fetched before the step")
    module.prefetch(second)
    second.fill_(3)
    assert module(second).equal(rows_of(module, [3, 3])) and module(torch.tensor([1, 7])).equal(fresh)
    assert len(pulls) == 5, "the last pass took what was prefetched"


def test_threads_train_one_module_together():
    module = made("by threads")
    before = rows_of(module)
    errors = []

    def train():
        try:
            for _ in range(20):
                module.prefetch(torch.tensor([1, 2]))
                module(torch.tensor([1, 2])).sum().backward()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gl.TableOptimizer(module).step()
    assert not errors
    torch.testing.assert_close(before[1:3] - rows_of(module, [1, 2]), torch.full((2, DIM), 60.0))


def test_a_forked_child_is_refused():
    module = made("in a child")
    optimizer = gl.TableOptimizer(module)
    ids = torch.tensor([1, 2])
    module(ids).sum().backward()
    module.prefetch(ids)
    if gradlane.rank() == 0:
        fork(lambda: refused(lambda: module(ids)))
        fork(lambda: refused(lambda: module(ids + 1)))
        fork(lambda: refused(optimizer.step))
    before = rows_of(module)
    optimizer.step()
    torch.testing.assert_close(before[1:3] - rows_of(module, ids), torch.ones(2, DIM))


def test_a_compiled_model_trains_as_without_compilation():
    torch._dynamo.reset()
    torch.manual_seed(3)
    model = nn.Sequential(made("compiled", padding_idx=1), nn.Tanh(), nn.Linear(DIM, 1))
    plain = copy.deepcopy(model)
    plain[0] = made("not compiled", padding_idx=1)
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(3):
        ids = torch.arange(4 + step)
        for one in (compiled, plain):
            one(ids).square().sum().backward()
            gl.TableOptimizer(one).step()
    torch.testing.assert_close(rows_of(model[0]), rows_of(plain[0]))
    torch.testing.assert_close(model[2].weight.grad, plain[2].weight.grad)


def test_a_penalty_on_gradients_has_the_gradients_of_pytorch():
    module = made("penalised")
    peer = peer_of(module)
    ids = torch.tensor([6, 1, 6])

    def penalised(one):
        output = one(ids)
        [gradient] = torch.autograd.grad(output.pow(3).sum(), output, create_graph=True)
        return gradient.square().sum()

    penalised(module).backward()
    penalised(peer).backward()
    gl.TableOptimizer(module).step()
    torch.testing.assert_close(rows_of(module), (peer.weight - peer.weight.grad).detach())


def test_autocast_takes_rows_as_those_of_pytorch():
    model = nn.Sequential(made("cast"), nn.Linear(DIM, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(torch.tensor([1]))
        assert model[0](torch.tensor([1])).dtype == torch.float32 and output.dtype == torch.bfloat16
    output.sum().backward()
    gl.TableOptimizer(model).step()


def test_a_scaler_finds_the_gradients_and_leaves_out_steps_that_are_not_finite():
    model = made("scaled")
    optimizer, scaler = gl.TableOptimizer(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    ids, before = torch.tensor([1, 2]), rows_of(model)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(factor * model(ids).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(before[ids] - rows_of(model, ids), torch.ones(2, DIM))
    assert scaler.get_scale() == 512.0


def test_gradients_can_be_clipped_and_those_that_are_not_finite_are_named():
    good, bad = made("good"), made("bad")
    optimizer = gl.TableOptimizer([good, bad])
    ids, before = torch.tensor([1]), rows_of(good)
    (5 * good(ids)).sum().backward()
    norm = nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    assert norm == 10.0
    (float("nan") * bad(ids)).sum().backward()
    for _ in range(2):
        with pytest.raises(NotFiniteError, match=own("bad")):
            optimizer.step()
    torch.testing.assert_close(before[ids] - rows_of(good, ids), torch.full((1, DIM), 0.5), msg="it was sent once")
    optimizer.zero_grad()
    optimizer.step()


def test_rules_follow_the_steps_that_the_optimizer_is_given():
    ids = torch.tensor([1])
    adam = rules.SparseAdam(lr=0.1)
    changes = []
    for name, step in (("from 0", 0), ("from 1000", 1000), ("its own", None)):
        module = made(f"steps {name}", adam, init="zero", scale=0.0)
        optimizer = gl.TableOptimizer(module, step=step)
        module(ids).sum().backward()
        optimizer.step()
        changes.append(rows_of(module, ids)[0, 0].item())
    # Without the correction for early steps, the first one is of (1 - beta1) / sqrt(1 - beta2) = 3.16 times the rate.
    assert changes == pytest.approx([-0.1, -0.1 * 3.162 * (1 - 0.999**1001) ** 0.5, -0.1], rel=1e-3)
