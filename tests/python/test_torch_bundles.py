"""Gradients that the engine sends together are submitted together: one call for all small ones of a part."""

import pytest

torch = pytest.importorskip("torch")

import gradlane.torch as gl  # noqa: E402
from gradlane import _session  # noqa: E402
from gradlane.torch import _gradients  # noqa: E402
from gradlane.torch._bundles import Bundle, bundles_of  # noqa: E402
from torch import nn  # noqa: E402
from training import assert_equal_everywhere  # noqa: E402


class Calls:
    """Records the calls of a bundle."""

    def __init__(self):
        self.made = []

    def __call__(self, positions, gradients):
        self.made.append((list(positions), [gradient.item() for gradient in gradients]))
        return self

    def wait(self):
        return []


def one(value):
    return torch.tensor(float(value))


def test_a_bundle_is_submitted_with_its_last_gradient_in_the_order_of_the_parameters():
    calls = Calls()
    bundle = Bundle([2, 5, 9], calls)
    first = bundle.add(9, one(90))
    bundle.add(2, one(20))
    assert not calls.made and bundle.handle is None
    bundle.add(5, one(50))
    assert calls.made == [([2, 5, 9], [20.0, 50.0, 90.0])] and first.wait() == one(90)
    bundle.clear()
    bundle.add(2, one(1))
    assert bundle.handle is None, "each window has its own"


def test_who_leaves_a_bundle_keeps_nobody_waiting():
    calls = Calls()
    bundle = Bundle([0, 1, 2], calls)
    bundle.add(0, one(0))
    bundle.leave(2)
    assert not calls.made
    bundle.add(1, one(1))
    assert calls.made == [([0, 1], [0.0, 1.0])]
    bundle.clear()
    bundle.add(1, one(1))
    bundle.leave(0)
    assert calls.made[1:] == [([1], [1.0])]
    bundle.clear()
    bundle.leave(1)
    assert len(calls.made) == 2, "nothing is left to submit"


def test_a_bundle_has_the_known_parameters_of_one_part_and_device():
    host, other = torch.empty(1), torch.empty(1, device="meta")
    parameters = {0: host, 1: other, 2: host, 3: host, 4: other}
    names = {f"n{position}": position for position in parameters}
    found = bundles_of(parameters, names, [["n0", "foreign", "n1", "n2", "n4"], ["n3", "foreign 2"]], Calls())
    assert found.keys() == {0, 1, 2, 4} and found[0] is found[2] and found[1] is found[4] and found[0] is not found[1]


class Mixed(nn.Module):
    """Many small weights around a large one, and an embedding whose gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.small = nn.ModuleList([nn.Linear(4, 4) for _ in range(20)])
        self.large = nn.Linear(4, 60_000)
        self.embedding = nn.Embedding(6, 4, sparse=True)

    def forward(self, indices):
        inputs = self.embedding(indices)
        for layer in self.small:
            inputs = layer(inputs).tanh()
        return self.large(inputs).square().mean()


def trained(model, indices_of, steps=5):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        losses = [model(indices) for indices in indices_of(step)]
        (sum(losses) / len(losses)).backward()
        optimizer.step()
    return getattr(model, "module", model)


@pytest.mark.over("local", "shm", "quic")
@pytest.mark.workers(2)
def test_small_gradients_travel_by_one_call_and_large_and_sparse_ones_by_themselves(monkeypatch):
    calls = []
    for name in ("begin_in_place", "reduce_in_place"):
        called = getattr(_gradients, name)

        def counted(*arguments, name=name, called=called, **options):
            calls.append(name)
            return called(*arguments, **options)

        monkeypatch.setattr(_gradients, name, counted)

    def indices(rank, step):
        return torch.tensor([rank, 2 + step % 3, 5])

    torch.manual_seed(3)
    model = trained(gl.DistributedDataParallel(Mixed()), lambda step: [indices(gl.rank(), step)])
    assert calls.count("begin_in_place") == 5, "one a step"
    assert calls.count("reduce_in_place") == 5, "the large weight; its bias is small"
    assert any(len(names) > 40 for names in _session.session().companions())
    torch.manual_seed(3)
    reference = trained(Mixed(), lambda step: [indices(0, step), indices(1, step)])
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert_equal_everywhere(model, "mixed")
