"""Operations on tensors, and what brings workers to the same state before they train."""

import inspect
import os
import pickle

import pytest

torch = pytest.importorskip("torch")

import gradlane  # noqa: E402
import gradlane.torch as gl  # noqa: E402
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from training import adamw, assert_close, assert_equal_everywhere, batches, made, mine, mlp, step  # noqa: E402

pytestmark = [pytest.mark.workers(2), pytest.mark.over("local", "shm", "quic")]

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_is_averaged_into_a_new_tensor(dtype):
    tensor = torch.full((2, 3), 2 * gl.rank() + 1).to(dtype)
    average = gl.push_pull(tensor, f"average {dtype}")
    assert average.dtype == dtype and average.tolist() == [[2] * 3] * 2
    assert tensor.tolist() == [[2 * gl.rank() + 1] * 3] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_nan_and_infinity_propagate(dtype):
    tensor = torch.tensor([[float("nan"), float("inf"), 1.0], [1.0, 1.0, 1.0]][gl.rank()], dtype=dtype)
    total = gl.push_pull(tensor, f"special {dtype}", op=gl.Sum)
    assert total[0].isnan() and total[1].isinf() and total[2] == 2


def test_the_underscore_means_in_place():
    tensor = torch.full((3,), float(gl.rank()))
    assert gl.push_pull_(tensor, "in place", op=gl.Sum) is tensor
    assert tensor.tolist() == [1.0] * 3
    parameter = nn.Parameter(torch.full((3,), float(gl.rank())))
    gl.push_pull_(parameter, "parameter")
    assert parameter.tolist() == [0.5] * 3


def test_the_names_and_arguments_of_byteps_work():
    tensor = torch.ones(3)
    assert gl.push_pull(tensor, average=False, name="old", version=0, priority=0).tolist() == [2.0] * 3
    assert gl.push_pull_inplace(tensor, average=True, name="old in place").tolist() == [1.0] * 3
    handle = gl.push_pull_async_inplace(tensor, average=False, name="old async")
    assert gl.synchronize(handle) is tensor and gl.poll(handle)
    gl.declare("just a name")


def test_all_forms_take_the_same_arguments():
    forms = [gl.push_pull, gl.push_pull_, gl.push_pull_async, gl.push_pull_async_]
    [arguments] = {tuple(inspect.signature(form).parameters.values()) for form in forms}
    assert [argument.name for argument in arguments][:3] == ["tensor", "name", "op"]
    tensor = torch.ones(3)
    for form in forms:
        with pytest.raises(TypeError, match="averaged"):
            form(tensor, "misspelt", averaged=True)
        with pytest.raises(gradlane.InvalidArgumentError, match="takes tensor, name by position"):
            form(tensor, "by position", gl.Sum)


def test_strided_tensors_are_copied_and_copied_back():
    matrix = torch.arange(6.0).view(2, 3) * (gl.rank() + 1)
    assert gl.push_pull(matrix.t(), "transposed").tolist() == (torch.arange(6.0).view(2, 3).t() * 1.5).tolist()
    gl.push_pull_(matrix[:, 1], "column", op=gl.Sum)
    assert matrix[:, 1].tolist() == [3.0, 12.0] and matrix[0, 0] == 0


@pytest.mark.over("local")
def test_views_that_negate_or_conjugate_their_memory_are_reduced_by_their_values():
    memory = torch.tensor([1.0, 2.0]) * (gl.rank() + 1)
    view = torch._neg_view(memory)
    assert gl.push_pull(view, "negated", op=gl.Sum).tolist() == [-3.0, -6.0]
    gl.push_pull_(view, "negated in place", op=gl.Max)
    assert view.tolist() == [-1.0, -2.0] and memory.tolist() == [1.0, 2.0]
    memory *= gl.rank() + 1
    [mean] = gl.grouped_push_pull([view], "negated group")
    gl.grouped_push_pull_([view], "negated group in place")
    assert mean.tolist() == view.tolist() == [-1.5, -3.0]
    memory += gl.rank()
    gl.broadcast_parameters({"negated": view})
    assert view.tolist() == [-1.5, -3.0]
    conjugate = torch.tensor([complex(gl.rank(), gl.rank() + 1)]).conj()
    gl.broadcast_(conjugate, name="conjugated")
    assert conjugate.tolist() == [-1j] and conjugate.is_conj()
    with pytest.raises(gl.Error, match="resolve_neg"):
        gradlane.push_pull(view, "negated without PyTorch")


def test_a_group_is_averaged_at_once():
    tensors = [torch.full((n,), float(gl.rank())) for n in (1, 5, 0, 3)]
    averages = gl.grouped_push_pull(tensors, "group")
    assert [average.tolist() for average in averages] == [[0.5], [0.5] * 5, [], [0.5] * 3]


def test_groups_have_the_forms_that_tensors_have():
    def tensors():
        return [
            torch.full((2, 3), float(gl.rank())),
            torch.arange(6).view(2, 3).t() * gl.rank(),
            nn.Parameter(torch.ones(1)),
        ]

    for form, in_place in [
        (gl.grouped_push_pull, False),
        (gl.grouped_push_pull_, True),
        (lambda *a, **k: gl.synchronize(gl.grouped_push_pull_async(*a, **k)), False),
        (lambda *a, **k: gl.synchronize(gl.grouped_push_pull_async_(*a, **k)), True),
    ]:
        given = tensors()
        results = form(given, "forms", op=gl.Sum)
        assert [result.tolist() for result in results] == [[[1.0] * 3] * 2, [[0, 3], [1, 4], [2, 5]], [2.0]]
        assert [result is tensor for result, tensor in zip(results, given, strict=True)] == [in_place] * 3
        if not in_place:
            assert all(torch.equal(before, after) for before, after in zip(tensors(), given, strict=True))
    half = gl.grouped_push_pull([torch.tensor([1.0 + 2**-20])], "narrow", compression=gl.Compression.bf16)
    # Workers that add among themselves send nothing, so nothing is rounded.
    travels = os.environ["GRADLANE_LOCAL_REDUCE"] == "off"
    assert half[0].dtype == torch.float32 and half[0].item() == (1.0 if travels else 1.0 + 2**-20)


def test_a_group_with_a_tensor_that_cannot_be_reduced_is_refused_by_its_name():
    for bad, complaint in [
        (torch.ones(3, dtype=torch.bool), r"refused\.1: .*view it as uint8"),
        (torch.ones(3).to_sparse(), r"refused\.1: .*to_dense"),
        (torch.ones(3, device="meta"), r"refused\.1: .*meta"),
        (5, r"refused\.1: .*not a torch.Tensor"),
    ]:
        for form in (gl.grouped_push_pull, gl.grouped_push_pull_):
            with pytest.raises(gl.Error, match=complaint):
                form([torch.ones(3), bad], "refused")


@pytest.mark.parametrize(("compression", "error"), [(gl.Compression.fp16, 2**-11), (gl.Compression.bf16, 2**-8)])
def test_compression_costs_its_rounding_only(compression, error):
    tensor = torch.tensor([1.0 + 2**-20, 3.14159])
    average = gl.push_pull(tensor, f"compressed {error}", compression=compression)
    assert average.dtype == torch.float32 and torch.allclose(average, tensor, rtol=error, atol=0)
    assert gl.push_pull(torch.tensor([7]), f"integer {error}", compression=compression).tolist() == [7]


def test_push_pull_is_differentiable():
    tensor = torch.ones(3, requires_grad=True)
    (gl.push_pull(tensor, "differentiable") * (gl.rank() + 1)).sum().backward()
    assert tensor.grad.tolist() == [1.5] * 3
    with pytest.raises(gl.Error, match="has no gradient"):
        gl.push_pull(tensor, "not differentiable", op=gl.Max)


@pytest.mark.over("local")
@pytest.mark.parametrize("form", ["grouped_push_pull", "grouped_push_pull_async", "push_pull_async"])
def test_every_form_that_makes_new_tensors_is_differentiable(form):
    first, second = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    if form == "push_pull_async":
        handle = gl.push_pull_async(first * 2, form, op=gl.Sum)
        with torch.no_grad():
            sums = [gl.synchronize(handle)]
    else:
        sums = getattr(gl, form)([first * 2, torch.ones(2), second], form, op=gl.Sum)
        sums = sums if form == "grouped_push_pull" else gl.synchronize(sums)
        assert [total.requires_grad for total in sums] == [True, False, True]
        (sums[2].sum() * (gl.rank() + 1)).backward()
        assert second.grad.tolist() == [3.0] * 2 and first.grad.tolist() == [0.0] * 3
        sums = gl.grouped_push_pull([first * 2], f"{form} again", op=gl.Sum)
    first.grad = None
    (sums[0].sum() * (gl.rank() + 1)).backward()
    assert first.grad.tolist() == [6.0] * 3
    with pytest.raises(gl.Error, match="has no gradient"):
        getattr(gl, form)([first] if "grouped" in form else first, f"{form} max", op=gl.Max)


@pytest.mark.over("local")
def test_a_gradient_of_a_gradient_is_reduced_too():
    tensor = torch.full((2,), 3.0, requires_grad=True)
    cube = gl.push_pull(tensor, "twice", op=gl.Sum) ** 3
    [gradient] = torch.autograd.grad(cube.sum(), tensor, create_graph=True)
    gradient.sum().backward()
    # With the sum s = 6: each of two workers adds 3 s^2, and then 6 s for each of the two, twice.
    assert gradient.tolist() == [216.0] * 2 and tensor.grad.tolist() == [144.0] * 2


@pytest.mark.over("local")
def test_what_autograd_has_saved_is_known_to_have_changed():
    for name, reduce in {
        "alone": gl.push_pull_,
        "together": lambda tensor, name: gl.grouped_push_pull_([tensor], name),
        "sent": lambda tensor, name: gl.broadcast_(tensor, name=name),
    }.items():
        weight = torch.ones(2, requires_grad=True)
        saved = torch.ones(2)
        product = weight * saved
        reduce(saved, f"saved {name}")
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


@pytest.mark.over("local")
def test_what_autograd_has_computed_is_not_changed_in_place():
    weight = torch.ones(2, requires_grad=True)
    for reduce in (gl.push_pull_, gl.push_pull_async_):
        with pytest.raises(gl.Error, match=r"use push_pull, or tensor.detach"):
            reduce(weight * 2, "computed")
    for reduce in (gl.grouped_push_pull_, gl.grouped_push_pull_async_):
        with pytest.raises(gl.Error, match=r"computed\.1.*use push_pull, or tensor.detach"):
            reduce([torch.ones(2), weight * 2], "computed")
    with pytest.raises(gl.Error, match=r"use push_pull, or tensor.detach"):
        gl.broadcast_(weight * 2, name="computed")
    with torch.no_grad():
        assert gl.push_pull_(weight * (gl.rank() + 1), "not recorded").tolist() == [1.5] * 2
    with torch.inference_mode():
        assert gl.push_pull_(torch.ones(2), "inference", op=gl.Sum).tolist() == [2.0] * 2


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        (torch.ones(3, dtype=torch.bool), "view it as uint8"),
        (torch.ones(3, dtype=torch.int16), "supported"),
        (torch.ones(3).to_sparse(), "to_dense"),
        (torch.ones(3, device="meta"), "meta"),
    ],
    ids=str,
)
def test_what_cannot_be_reduced_is_refused_with_advice(tensor, complaint):
    with pytest.raises(gl.Error, match=complaint):
        gl.push_pull(tensor, "refused")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: gl.push_pull(torch.ones(2), "said", op="sum"), r"op='sum' is no reduction; use gradlane.Sum"),
        (lambda: gl.push_pull_(torch.ones(2), "said", op=dist.ReduceOp.AVG), r"use gradlane.Average"),
        (
            lambda: gl.grouped_push_pull([torch.ones(2)], "said", op="product"),
            r"use gradlane.Average, Sum, Min, Max or",
        ),
        (lambda: gl.push_pull(torch.ones(2), "said", compression="fp16"), r"use Compression.fp16"),
        (lambda: gl.grouped_push_pull([torch.ones(2)], "said", compression=16), r"use one of Compression"),
        (lambda: gl.DistributedOptimizer(adamw([parameter()]), op="sum"), r"use gradlane.Sum"),
        (lambda: gl.DistributedOptimizer(adamw([parameter()]), compression="bf16"), r"use Compression.bf16"),
        (lambda: gl.push_pull([1.0, 2.0], "said"), r"list is not a torch.Tensor"),
        (
            lambda: gl.grouped_push_pull([torch.ones(2), memoryview(b"12")], "said"),
            r"said.1: memoryview is not a torch",
        ),
        (lambda: gl.declare({"said": [1.0]}), r"said: list is not a torch.Tensor"),
    ],
)
def test_what_is_no_argument_is_refused_with_advice(call, complaint):
    with pytest.raises(gl.Error, match=complaint) as caught:
        call()
    assert isinstance(caught.value, ValueError)


def parameter():
    return nn.Parameter(torch.ones(2))


def test_an_unknown_keyword_names_the_function_that_was_called():
    for function in (gl.push_pull, gl.push_pull_async_, gl.grouped_push_pull):
        with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got .*'prio'; it takes tensors?, name, op"):
            function(torch.ones(2), "said", prio=1)


def test_a_worker_that_contradicts_itself_is_told_so():
    gl.push_pull(torch.ones(2), "changed here")
    with pytest.raises(gl.MismatchError, match=r"used it with shape \[2\] before, and now with shape \[3\]"):
        gl.push_pull(torch.ones(3), "changed here")


def test_weights_that_add_up_to_zero_name_the_tensor():
    with pytest.raises(gl.Error, match="tensor weighted: the weights of round 0 add up to 0"):
        gl.push_pull(torch.ones(2), "weighted", op=gl.WeightedAverage, weight=0.0)


def test_parameters_of_any_kind_are_broadcast_bit_for_bit():
    def state(rank):
        return {
            "weights": torch.full((2, 3), float(rank)),
            "special": torch.tensor([float("nan"), -0.0]) if rank else torch.zeros(2),
            "mask": torch.tensor([True, False]) if rank else torch.zeros(2, dtype=torch.bool),
            "complex": torch.full((2,), complex(rank, 1)),
            "short": torch.tensor(rank, dtype=torch.int16),
            "count": torch.tensor(rank),
            "strided": torch.arange(6.0).view(2, 3).t() * rank,
            "empty": torch.zeros(0),
        }

    mine = state(gl.rank())
    gl.broadcast_parameters(mine, root_rank=1)
    for name, expected in state(1).items():
        assert torch.equal(bits(mine[name]), bits(expected)), name


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def test_what_is_no_tensor_cannot_be_broadcast_as_a_parameter():
    with pytest.raises(gl.Error, match=r"params\['extra'\] is int"):
        gl.broadcast_parameters({"extra": 5})
    with pytest.raises(gl.Error, match="twice"):
        gl.broadcast_parameters([("a", torch.zeros(1)), ("a", torch.zeros(1))])


@pytest.mark.parametrize("optimizer", [adamw, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.LBFGS])
def test_optimizer_state_of_the_root_reaches_workers_that_never_stepped(optimizer, monkeypatch):
    model = made(mlp)
    stepping = optimizer(model.parameters())
    if gl.rank() == 0:
        stepping.param_groups[0]["lr"] = 0.03
        for inputs, _ in batches(2):

            def closure(inputs=inputs):
                stepping.zero_grad()
                loss = model(inputs).square().mean()
                loss.backward()
                return loss

            stepping.step(closure)
    with monkeypatch.context() as patch:
        # Servers deliver the bytes, and unpickling would run what they say.
        patch.delattr(pickle, "loads")
        gl.broadcast_optimizer_state(stepping)
    assert stepping.param_groups[0]["lr"] == 0.03
    ours = gl.allgather_object(stepping.state_dict(), "optimizer state")
    assert str(ours[0]) == str(ours[1])


def test_a_training_that_is_saved_and_resumed_goes_on_the_same(tmp_path_factory):
    def start(seed):
        model = made(mlp, seed)
        wrapped = gl.DistributedDataParallel(model)
        return wrapped, adamw(wrapped.parameters())

    model, optimizer = start(1)
    work = [mine(batch) for batch in batches(6)]
    for batch in work[:3]:
        step(model, optimizer, batch)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()} if gl.rank() == 0 else None
    path = tmp_path_factory.mktemp("checkpoint") / "checkpoint.pt"
    torch.save(saved, path)
    for batch in work[3:]:
        step(model, optimizer, batch)

    resumed, stepping = start(2)
    if gl.rank() == 0:
        checkpoint = torch.load(path)
        resumed.load_state_dict(checkpoint["model"])
        stepping.load_state_dict(checkpoint["optimizer"])
    gl.broadcast_parameters(resumed.state_dict())
    gl.broadcast_optimizer_state(stepping)
    for batch in work[3:]:
        step(resumed, stepping, batch)
    assert_close(resumed, model, tolerance=0.0)
    assert_equal_everywhere(resumed, "resumed")
