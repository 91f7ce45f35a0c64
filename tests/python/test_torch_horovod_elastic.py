"""Scripts for Elastic Horovod: they run as they are, go on without lost workers, and take in others."""

from __future__ import annotations

import ast
import importlib
import os
import re
import signal
import sys

import gradlane.compat.horovod  # so that `import horovod` works
import pytest
import torch
from gradlane.errors import Error, InvalidArgumentError, RootLostError, StallError
from processes import SAY, Running, over, run_all

hvd = importlib.import_module("horovod.torch")
exceptions = importlib.import_module("horovod.common.exceptions")
sampling = importlib.import_module("gradlane.compat.horovod.torch.elastic.sampler")

RUN = [sys.executable, "-m", "gradlane", "run"]


def run_job(script, tmp_path, *options, transport):
    place = tmp_path / "train.py"
    place.write_text(script)
    return [*RUN, *options, "--", sys.executable, "-m", "gradlane.compat.horovod", str(place), str(tmp_path)], {
        **over(transport),
        "OMP_NUM_THREADS": "1",
    }


BEGIN = (
    SAY
    + """
import signal, sys
from pathlib import Path
import torch
import horovod.torch as hvd

folder = Path(sys.argv[1])
stop, died = folder / "stop", folder / "died"
hvd.init()
torch.manual_seed(os.getpid())  # each worker begins with weights of its own
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(range(120), seed=3)
loader = torch.utils.data.DataLoader(range(120), batch_size=2, sampler=sampler)
resets, calls = [], []

def on_state_reset():
    resets.append(hvd.size())
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * hvd.size()

def train_one(batch):
    optimizer.zero_grad()
    inputs = torch.arange(4.0) + batch.view(-1, 1) / 120
    model(inputs).square().mean().backward()
    optimizer.step()
    # Who took part, and whether it is time to end.
    total = hvd.allreduce(torch.tensor([10.0 ** hvd.rank(), stop.exists()]), op=hvd.Sum, name="total")
    return int(total[0]), bool(total[1])
"""
)

TRAINING = (
    BEGIN
    + """
@hvd.elastic.run
def train(state):
    calls.append(hvd.size())
    while True:
        for at, batch in enumerate(loader):
            if (hvd.rank(), state.step) == (1, 5) and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            total, stopped = train_one(batch)
            state.seen.setdefault(state.epoch, []).extend(hvd.allgather(batch, name="batch").tolist())
            if state.runs and state.runs[-1][0] == total:
                state.runs[-1][1] += 1
            else:
                state.runs.append([total, 1])
            state.step += 1
            if stopped:
                return "stopped"
            sampler.record_batch(at, 2)
            state.commit()
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        if state.runs[-1] == [111, state.runs[-1][1]] and len(state.runs) > 2 and state.runs[-1][1] > 30:
            stop.touch()

state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0, runs=[], seen={})
state.register_reset_callbacks([on_state_reset])
assert train(state) == "stopped"
weights = [p.sum().item() for p in model.parameters()] + [optimizer.param_groups[0]["lr"]]
say(f"end {hvd.rank()} of {hvd.size()}: {[weights, state.epoch, state.step, state.runs, state.seen]} {[resets, calls]}")
"""
)


@pytest.mark.over("shm", "quic")
def test_a_worker_is_killed_and_started_again(transport, tmp_path):
    job = run_job(TRAINING, tmp_path, "-n", "3", "-s", "1", "--elastic", "2:3", "--restarts", "3", transport=transport)
    [ended] = run_all([job], timeout=90)
    assert ended.code == 0 and "killed by signal 9 (SIGKILL)" in ended.output, ended.output
    ends = re.findall(r"^end (\d of \d): (\[.*\]) (\[\[.*\]\])$", ended.output, re.MULTILINE)
    assert sorted(who for who, _, _ in ends) == ["0 of 3", "1 of 3", "2 of 3"], ended.output
    # All have the same state, with the weights and the learning rate.
    [state] = {state for _, state, _ in ends}
    (*_, rate), epochs, steps, runs, seen = ast.literal_eval(state)
    assert rate == 0.01 * 3
    # The two that were left were ranks 0 and 2 until they heard of the loss, and 0 and 1 from that commit on.
    assert runs[0] == [111, 5] and [total for total, _ in runs] in ([111, 101, 11, 111], [111, 101, 111]), runs
    assert steps == sum(count for _, count in runs)
    calls = sorted(ast.literal_eval(calls) for _, _, calls in ends)
    assert calls[0] == [[], [3]] and calls[1] == calls[2] and calls[1] in ([[2, 3], [3, 2, 3]], [[3], [3, 3]]), calls
    # In whole epochs without the loss, no index is left out. If they did not divide, the first ones of an epoch came again.
    for epoch in range(1, epochs):
        assert set(seen[epoch]) == set(range(120)) and len(seen[epoch]) <= 122, (epoch, seen[epoch])
    if runs[0][1] + runs[1][1] < 20:  # the lost batch only
        assert len(set(range(120)) - set(seen[0])) <= 2 * runs[1][1], seen[0]
    assert any(sorted(seen[epoch]) == list(range(120)) for epoch in range(1, epochs))


LEAVING = (
    BEGIN
    + """
@hvd.elastic.run
def train(state):
    calls.append(hvd.size())
    say(f"trains {hvd.rank()} of {hvd.size()}")
    while True:
        for batch in loader:
            total, stopped = train_one(batch)
            if stopped:
                return total
            state.check_host_updates()

state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
state.register_reset_callbacks([on_state_reset])
say(f"pid {hvd.rank()} {os.getpid()}")
total = train(state)
root = hvd.broadcast_object(os.getpid(), root_rank=0)  # rank 0 is the first of those that are left
mean = hvd.broadcast(torch.tensor([hvd.rank()]), 1)
hvd.broadcast_parameters(model.state_dict(), 0)
hvd.broadcast_optimizer_state(optimizer, 0)
try:
    hvd.broadcast(torch.ones(1), 2)
except ValueError as error:
    assert "root_rank=2 in a job of 2 workers" in str(error), error
say(f"end {hvd.rank()} of {hvd.size()}: {total} {root == os.getpid()} {mean.item()} {resets} {calls}")
"""
)


@pytest.mark.over("shm", "quic")
def test_a_worker_leaves_after_sigterm_and_those_that_are_left_have_ranks_without_gaps(transport, tmp_path):
    command, env = run_job(LEAVING, tmp_path, "-n", "3", "-s", "1", "--elastic", "2:3", transport=transport)
    with Running(command, env=env) as job:
        pids = dict(job.line("pid ").split()[1:] for _ in range(3))
        for _ in range(3):
            job.line("trains ")
        os.kill(int(pids["0"]), signal.SIGTERM)
        for _ in range(2):
            assert job.line("trains ").endswith(" of 2")
        (tmp_path / "stop").touch()
        ended = job.end(30)
    lines = sorted(line for line in ended.output.splitlines() if line.startswith("end "))
    assert ended.code == 0, ended.output
    assert lines == ["end 0 of 2: 11 True 1 [2] [3, 2]", "end 1 of 2: 11 False 1 [2] [3, 2]"], ended.output


ROOT = (
    BEGIN
    + """
@hvd.elastic.run
def train(state):
    calls.append((hvd.size(), state.done))
    while state.done < 6:
        state.done += 1
        if (hvd.rank(), state.done, hvd.size()) == (0, 3, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        assert hvd.broadcast_object(state.done, root_rank=0, name="schedule") == state.done
        train_one(torch.tensor([1.0]))
        state.commit()

state = hvd.elastic.TorchState(model, optimizer, done=0)
train(state)
say(f"end {hvd.rank()} of {hvd.size()}: {calls}")
"""
)


@pytest.mark.over("shm")
def test_a_lost_root_brings_all_back_to_their_last_commit(transport, tmp_path):
    options = ["-n", "3", "-s", "1", "-o", "on_worker_loss=continue"]
    [ended] = run_all([run_job(ROOT, tmp_path, *options, transport=transport)], timeout=60)
    lines = sorted(line for line in ended.output.splitlines() if line.startswith("end "))
    calls = "[(3, 0), (2, 2)]"
    assert ended.code == 0 and lines == [f"end 0 of 2: {calls}", f"end 1 of 2: {calls}"], ended.output


ORDINARY = (
    BEGIN
    + """
@hvd.elastic.run
def train(state, upto, *, factor):
    for state.batch in range(state.batch, upto):
        train_one(torch.tensor([1.0]))
        if state.batch % 3 == 0:
            state.commit()
    return state.batch * factor

state = hvd.elastic.TorchState(model, optimizer, batch=0)
assert train(state, 7, factor=10) == 60
# A second training begins with the state of rank 0.
state.batch = 7 + hvd.rank()
assert train(state, 9, factor=1) == 8
model.weight.data.fill_(hvd.rank())
state.sync()
say(f"end {hvd.rank()}: {model.weight.sum().item()} {optimizer.param_groups[0]['lr']} {resets}")
"""
)


@pytest.mark.over("local", "shm")
def test_a_job_that_is_not_elastic_runs_the_script_like_any_other(transport, tmp_path):
    [ended] = run_all([run_job(ORDINARY, tmp_path, "-n", "2", "-s", "1", transport=transport)], timeout=60)
    lines = sorted(line for line in ended.output.splitlines() if line.startswith("end "))
    assert ended.code == 0 and lines == ["end 0: 0.0 0.02 []", "end 1: 0.0 0.02 []"], ended.output


def of_rank(monkeypatch, rank, size):
    monkeypatch.setattr(sampling, "rank", lambda: rank)
    monkeypatch.setattr(sampling, "size", lambda: size)


def samplers(monkeypatch, size, *arguments, **options):
    """One for each worker of a job."""
    made = []
    for rank in range(size):
        of_rank(monkeypatch, rank, size)
        made.append(hvd.elastic.ElasticSampler(*arguments, **options))
    return made


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_index_is_dealt_out_once_an_epoch(monkeypatch, shuffle):
    ours = samplers(monkeypatch, 3, range(12), shuffle, seed=1)
    epochs = []
    for epoch in range(2):
        for rank, sampler in enumerate(ours):
            of_rank(monkeypatch, rank, 3)
            sampler.set_epoch(epoch)
        shares = [list(sampler) for sampler in ours]
        assert [len(sampler) for sampler in ours] == [4, 4, 4] == [len(share) for share in shares]
        assert sorted(sum(shares, [])) == list(range(12))
        epochs.append(shares)
    assert (epochs[0] == epochs[1]) != shuffle
    assert shuffle or epochs[0] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_what_is_left_is_dealt_out_to_those_that_are_left(monkeypatch):
    first, second, third = samplers(monkeypatch, 3, range(17), shuffle=False)
    shares = [list(sampler) for sampler in (first, second, third)]
    assert shares == [[0, 3, 6, 9, 12, 15], [1, 4, 7, 10, 13, 16], [2, 5, 8, 11, 14, 0]], "the first one fills up"
    for sampler in (first, second, third):
        sampler.record_batch(0, 2)
        sampler.record_batch(1, 2)
    assert first.get_indices(1, 2) == [6, 9] and first.get_indices(1, 4) == [12, 15]
    again = []
    for rank, sampler in enumerate((first, third)):
        of_rank(monkeypatch, rank, 2)
        sampler.load_state_dict(sampler.state_dict())
        again.append(list(sampler))
    assert again == [[12, 14, 16], [13, 15, 12]]
    of_rank(monkeypatch, 1, 4)
    first.record_indices([12, 13, 14, 15])
    first.reset()
    assert list(first) == [16], "also where more workers are than indices"
    first.record_indices([16])
    first.reset()
    assert list(first) == [] and len(first) == 0
    first.set_epoch(1)
    assert len(first) == 5


def test_the_state_of_a_sampler_has_to_be_one(monkeypatch):
    of_rank(monkeypatch, 0, 1)
    sampler = hvd.elastic.ElasticSampler(range(4), shuffle=False)
    sampler.record_indices([1, 2])
    saved = sampler.state_dict()
    sampler.record_indices([3])
    other = hvd.elastic.ElasticSampler(range(4), shuffle=False)
    other.load_state_dict(saved)
    assert (other.epoch, list(other)) == (0, [0, 3])
    with pytest.raises(InvalidArgumentError, match="has the entries epoch, processed_num"):
        sampler.load_state_dict({"epoch": 0, "processed_num": 4})


@pytest.fixture
def alone(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("GRADLANE_", "OMPI_", "PMI")):
            monkeypatch.delenv(name)
    hvd.init()
    yield
    hvd.shutdown()


def a_state(**values):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return hvd.elastic.TorchState(model, optimizer, **values)


def step(state):
    state.optimizer.zero_grad()
    state.model(torch.ones(1, 2)).sum().backward()
    state.optimizer.step()


@pytest.mark.usefixtures("alone")
def test_a_state_goes_back_to_its_last_commit():
    sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
    deals = torch.utils.data.DistributedSampler(range(8), 1, 0)
    state = a_state(epoch=1, history=[1], sampler=sampler, deals=deals)
    step(state)
    sampler.record_batch(0, 2)
    deals.set_epoch(4)
    state.history.append(2)
    state.commit()
    weights, moment = state.model.weight.detach().clone(), state.optimizer.state_dict()["state"][0]["momentum_buffer"].clone()
    step(state)
    sampler.record_batch(1, 2)
    deals.set_epoch(5)
    state.history.append(3)
    state.epoch = 2
    for _ in range(2):  # what was saved is not what is trained with
        state.restore()
        assert torch.equal(state.model.weight, weights) and (state.epoch, state.history) == (1, [1, 2])
        assert torch.equal(state.optimizer.state_dict()["state"][0]["momentum_buffer"], moment)
        assert list(sampler) == [2, 3, 4, 5, 6, 7] and state.sampler is sampler and deals.epoch == 4
        step(state)


@pytest.mark.usefixtures("alone")
def test_run_calls_a_training_again_after_a_failure_that_may_pass():
    calls = []

    @hvd.elastic.run
    def train(state, *errors):
        calls.append(state.done)
        state.done += 1
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return state.done

    state = a_state(done=0)
    assert train(state, RootLostError("lost")) == 1 and calls == [0, 0]
    calls.clear()
    # Behind the same commit it would come again and again.
    with pytest.raises(Error, match="second"):
        train(state, exceptions.HorovodInternalError("first"), RootLostError("second"))
    with pytest.raises(StallError):
        train(state, *[StallError("too late")] * 4)
    calls.clear()
    state.done = 5
    assert train(state, exceptions.HostsUpdatedInterrupt()) == 7, "nothing goes back"


@pytest.mark.usefixtures("alone")
def test_a_state_of_a_script_has_values_of_its_own():
    events = []

    class Own(hvd.elastic.State):
        def save(self):
            events.append("save")

        def restore(self):
            events.append("restore")

        def sync(self):
            events.append("sync")

    state = Own(hvd.broadcast_object, hvd.rank)

    @hvd.elastic.run
    def train(state):
        state.commit()
        if events.count("save") == 1:
            raise RootLostError("lost")

    train(state)
    assert events == ["sync", "save", "restore", "save"]
    state.commit()  # outside of `run` it only saves
    with pytest.raises(NotImplementedError, match="must define sync"):
        hvd.elastic.State().sync()


@pytest.mark.usefixtures("alone")
def test_names_of_methods_are_no_values():
    with pytest.raises(InvalidArgumentError, match="cannot be called commit"):
        hvd.elastic.ObjectState(commit=1)


@pytest.mark.usefixtures("alone")
def test_sigterm_ends_the_process_in_order():
    @hvd.elastic.run
    def train(state):
        for state.batch in range(5):
            if state.batch == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            state.commit()

    state = a_state(batch=0)
    with pytest.raises(SystemExit) as ended:
        train(state)
    assert ended.value.code == 0 and state.batch == 2
