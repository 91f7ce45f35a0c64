"""`EmbeddingBagCollection`: the embeddings of many columns in one table."""

import copy

import pytest

torch = pytest.importorskip("torch")

import gradlane  # noqa: E402
import gradlane.torch as gl  # noqa: E402
from gradlane import rules  # noqa: E402
from gradlane.errors import InvalidArgumentError  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.workers(1, servers=2), pytest.mark.over("shm", "quic")]

COLUMNS = {"user": 40, "item": 25, "day": 7}
DIM = 4


def batches(steps):
    """Ids for each step: bags of one size, bags with offsets of which one is empty, and ids of int32."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield {
            "user": torch.randint(40, (3, 2), generator=draw),
            "item": (torch.randint(25, (5,), generator=draw), torch.tensor([0, 2, 2])),
            "day": torch.randint(7, (3, 1), generator=draw).int(),
        }


def outputs_of(modules, batch):
    """Those of PyTorch's modules."""
    return {column: modules[column](*given) if isinstance(given, tuple) else modules[column](given) for column, given in batch.items()}


def loss_of(outputs):
    return sum((output * torch.arange(1.0, 1 + output.numel()).reshape(output.shape)).sin().sum() for output in outputs.values())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_hundred_steps_are_those_of_a_module_for_each_column(mode):
    ours = gl.EmbeddingBagCollection(COLUMNS, DIM, mode=mode, name=f"columns {mode}", rule=rules.Adagrad(lr=0.1))
    theirs = nn.ModuleDict({column: nn.EmbeddingBag(count, DIM, mode=mode) for column, count in COLUMNS.items()})
    with torch.no_grad():
        for column, count in COLUMNS.items():
            theirs[column].weight.copy_(ours.group[column].look(torch.arange(count)))
    optimizer, peer = gl.TableOptimizer(ours), torch.optim.Adagrad(theirs.parameters(), lr=0.1)
    for batch in batches(100):
        optimizer.zero_grad()
        peer.zero_grad()
        found, expected = ours(batch), outputs_of(theirs, batch)
        assert list(found) == list(COLUMNS)
        for column in COLUMNS:
            torch.testing.assert_close(found[column], expected[column], rtol=1e-5, atol=1e-5)
        loss_of(found).backward()
        loss_of(expected).backward()
        optimizer.step()
        peer.step()
    for column, count in COLUMNS.items():
        torch.testing.assert_close(ours.group[column].look(torch.arange(count)), theirs[column].weight.detach(), rtol=1e-5, atol=1e-5)


def test_a_pass_is_one_exchange_with_each_server_and_so_is_a_step():
    ours = gl.EmbeddingBagCollection(COLUMNS, DIM, name="exchanges", rule=rules.SGD(lr=1.0))
    optimizer = gl.TableOptimizer(ours)
    all_ids = {column: torch.arange(count).reshape(1, -1) for column, count in COLUMNS.items()}

    def exchanges(use):
        before = gradlane.metrics()["pushes"]
        result = use()
        return gradlane.metrics()["pushes"] - before, result

    ours(all_ids)
    alone, _ = exchanges(lambda: ours.table.pull(torch.arange(72)))
    passed, outputs = exchanges(lambda: ours(all_ids))
    loss_of(outputs).backward()
    stepped, _ = exchanges(optimizer.step)
    assert passed == stepped == alone > 0


def test_rows_that_were_prefetched_are_used_by_the_next_pass():
    ours = gl.EmbeddingBagCollection(COLUMNS, DIM, name="prefetched", rule=rules.SGD(lr=1.0))
    batch = next(batches(1))
    expected = ours(batch)
    ours.prefetch(batch)
    before = gradlane.metrics()["pushes"]
    found = ours(batch)
    assert gradlane.metrics()["pushes"] == before
    assert all(torch.equal(found[column], expected[column]) for column in COLUMNS)


def test_an_evaluation_makes_no_rows_and_a_copy_has_the_same_ones():
    ours = gl.EmbeddingBagCollection(COLUMNS, DIM, name="evaluated", rule=rules.SGD(lr=1.0))
    ours.eval()
    ours({"day": torch.tensor([[1, 2]])})
    assert ours.table.stats().rows == 0 and not list(ours.parameters())
    ours.train()
    expected = ours({"day": torch.tensor([[1, 2]])})["day"]
    assert torch.equal(copy.deepcopy(ours)({"day": torch.tensor([[1, 2]])})["day"], expected)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"days": torch.tensor([[1]])}, "no table 'days'; it has user, item, day"),
        ({"day": torch.tensor([[7]])}, "column day: ids from 7 to 7; give ids from 0 to 6"),
        ({"user": torch.tensor([[1]]), "day": torch.tensor([[-1]])}, "column day: ids from -1"),
        ({"day": torch.tensor([[1.0]])}, "column day: ids of torch.float32"),
        ({}, "give ids for each column"),
        (torch.tensor([[1]]), "give ids for each column"),
    ],
)
def test_what_is_wrong_is_named(columns, named):
    ours = gl.EmbeddingBagCollection(COLUMNS, DIM, name="wrong", rule=rules.SGD(lr=1.0))
    with pytest.raises(InvalidArgumentError, match=named):
        ours(columns)
    assert ours.table.stats().rows == 0


def test_what_bags_are_is_checked():
    with pytest.raises(InvalidArgumentError, match="mode='last'"):
        gl.EmbeddingBagCollection(COLUMNS, DIM, mode="last", name="checked", rule=rules.SGD(lr=1.0))
