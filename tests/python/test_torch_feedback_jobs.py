"""Error feedback over the end of a job: a training goes on in new processes, with other servers and other workers."""

from __future__ import annotations

import sys

import pytest
from processes import SAY, over, run_all

pytest.importorskip("torch")

JOB = (
    SAY
    + """
import hashlib, sys, warnings
import torch
import gradlane.torch as gl

what, folder = sys.argv[1:3]
gl.init()
torch.set_num_threads(1)
CODECS = {
    "int4": gl.Compression.int4(feedback=True),
    "onebit": gl.Compression.onebit(feedback=True),
    "topk": gl.Compression.topk(k=10_000, feedback=True),
}
models, optimizers = {}, {}
for name, codec in CODECS.items():
    torch.manual_seed(3)
    # Of 1 MiB, in several parts, and small ones that share a part.
    models[name] = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 16), torch.nn.Linear(16, 16))
    sgd = torch.optim.SGD(models[name].parameters(), lr=0.05, momentum=0.9)
    optimizers[name] = gl.DistributedOptimizer(
        sgd, ((f"{name}.{key}", value) for key, value in models[name].named_parameters()), codec
    )

def steps(first, last):
    for step in range(first, last):
        for name, model in models.items():
            torch.manual_seed(100 * step + gl.rank())
            optimizers[name].zero_grad()
            model(torch.randn(8, 512)).square().mean().backward()
            optimizers[name].step()

def digest(name):
    whole = hashlib.sha256()
    for parameter in models[name].parameters():
        whole.update(parameter.detach().numpy().tobytes())
    return whole.hexdigest()[:16]

def path(name):
    return f"{folder}/{name}-{gl.rank() % 2}.pt"

def answers(name):
    kept = optimizers[name].state_dict()["gradlane_feedback"]["tensors"]
    return {label: tensors["answers"] for label, tensors in kept.items() if "answers" in tensors}

if what == "save":
    steps(0, 3)
    for name in models:
        torch.save((models[name].state_dict(), optimizers[name].state_dict()), path(name))
else:
    for name in models:
        weights, state = torch.load(path(name))
        models[name].load_state_dict(weights)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            optimizers[name].load_state_dict(state)
        found, saved = answers(name), state["gradlane_feedback"]["tensors"]
        assert len(found) == (0 if name == "topk" else 3), found.keys()
        assert all(torch.equal(tensor, saved[label]["answers"]) and tensor.any() for label, tensor in found.items())
steps(3, 6)
for name in models:
    say(f"{name} of worker {gl.rank()}: {digest(name)}")
gl.shutdown()
"""
)


def run(what, folder, transport, servers, workers=2):
    """What a job of so many servers and workers says, sorted."""
    program = [sys.executable, "-c", JOB, what, str(folder)]
    launch = [sys.executable, "-m", "gradlane", "run", "-n", str(workers), "-s", str(servers), "--"]
    [ended] = run_all([([*launch, *program], over(transport) | {"GRADLANE_MIN_COMPRESS_BYTES": "512"})], timeout=120)
    assert ended.code == 0, ended.output
    return sorted(line for line in ended.output.splitlines() if " of worker " in line)


@pytest.mark.over("shm", "quic")
def test_a_training_goes_on_in_new_processes_as_if_it_had_not_stopped(tmp_path, transport):
    """To the bit, on as many servers as before and on others."""
    uninterrupted = run("save", tmp_path, transport, servers=1)
    assert len(uninterrupted) == 6
    for servers in (1, 2) if transport == "shm" else (2,):
        assert run("load", tmp_path, transport, servers) == uninterrupted, servers


@pytest.mark.over("shm")
def test_more_workers_go_on_with_what_the_servers_kept(tmp_path, transport):
    run("save", tmp_path, transport, servers=2)
    said = run("load", tmp_path, transport, servers=1, workers=3)
    assert len({line.partition(" of worker ")[0] + line.partition(":")[2] for line in said}) == 3, said
