"""What BytePS's own scripts import and ask for, beside the operations."""

import importlib

import gradlane.compat.byteps  # so that `import byteps` works
import pytest
import torch
from gradlane.compat import _unnamed
from processes import over, run_as_it_is, run_python

bps = importlib.import_module("byteps.torch")

OVER_ALL = pytest.mark.over("local", "shm", "quic")


@pytest.mark.parametrize(
    ("module", "instead"),
    [
        ("mxnet", "gradlane.push_pull"),
        ("misc", "BytePS's repository"),
        ("server", "bpslaunch"),
    ],
)
def test_modules_that_only_byteps_has_say_what_to_use_instead(module, instead):
    with pytest.raises(ModuleNotFoundError, match=rf"byteps\.{module} does not exist here; .*{instead}"):
        importlib.import_module(f"byteps.{module}")


def test_the_cross_barrier_has_all_names_of_byteps_torch():
    module = importlib.import_module("byteps.torch.cross_barrier")
    assert all(getattr(module, name) is getattr(bps, name) for name in bps.__all__)
    assert "CrossBarrier" in module.__all__


def test_the_basics_are_the_functions_as_methods():
    basics = importlib.import_module("byteps.common").BytePSBasics(__file__, "c_lib")
    module = importlib.import_module("byteps.common")
    names = [name for name in module.__all__ if name != "BytePSBasics"]
    assert all(getattr(basics, name) is getattr(module, name) for name in names)


PLACES = """
import gradlane.compat.byteps, importlib
bps = importlib.import_module("{module}")

def place():
    return bps.rank(), bps.size(), bps.local_rank(), bps.local_size()

assert place() == (0, 1, 0, 1), "before the first job"
bps.init()
inside = place()
assert inside[1] == 2
bps.suspend()
assert place() == inside, "between suspend and resume"
print("rank", inside[0], "ended well", flush=True)
"""


# Two processes of PyTorch for each: what they have in common with a transport is in `test_torch_byteps.py`.
@pytest.mark.over("quic")
@pytest.mark.parametrize("module", ["byteps.torch", "byteps.torch.ops", "byteps.torch.cross_barrier", "byteps.common"])
def test_ranks_outside_of_a_job(module, transport, tmp_path):
    ended = run_as_it_is("byteps", PLACES.format(module=module), tmp_path, env=over(transport))
    assert ended.code == 0 and ended.output.count("ended well") == 2, ended.output


@OVER_ALL
@pytest.mark.workers(2)
@pytest.mark.parametrize("device_ids", [None, [0], [0, 1], [torch.device("cuda:0")]], ids=str)
def test_a_module_on_the_cpu_takes_any_device_ids(device_ids):
    wrapper = importlib.import_module("byteps.torch.parallel").DistributedDataParallel
    model = wrapper(torch.nn.Linear(2, 1), device_ids)
    model(torch.full((1, 2), 1.0 + bps.rank())).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.5, 1.5]]


@OVER_ALL
@pytest.mark.workers(2)
def test_more_shapes_without_a_name_than_names_are_kept(monkeypatch):
    monkeypatch.setattr(_unnamed, "_recent", type(_unnamed._recent)(lambda: _unnamed.RecentNames(8)))
    for length in [*range(1, 41), 1, 40]:
        assert bps.push_pull(torch.ones(length), False).tolist() == [2.0] * length
        assert bps.push_pull_inplace(torch.ones(length), False).tolist() == [2.0] * length
        handles = [bps.push_pull_async_inplace(torch.ones(length), False) for _ in range(2)]
        assert [bps.synchronize(handle).sum().item() for handle in handles] == [2.0 * length] * 2
    tensor = torch.ones(3, requires_grad=True)
    bps.push_pull(tensor, False).sum().backward()
    assert tensor.grad.tolist() == [2.0] * 3
    assert len(_unnamed._recent[None]._names) <= 8


@pytest.mark.parametrize("switch", ["0", " 0 "])
def test_a_timeline_that_is_switched_off_is_not_written(switch, tmp_path):
    code = "import gradlane; gradlane.init(); gradlane.shutdown()"
    ended = run_python(code, env={"BYTEPS_TRACE_DIR": str(tmp_path), "BYTEPS_TRACE_ON": switch})
    assert ended.code == 0 and not list(tmp_path.iterdir()), ended.output
