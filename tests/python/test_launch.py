"""How a process finds its job: which variables count, in which order, and that each launcher's way leads to a sum."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys

import gradlane
import pytest
from gradlane import _bootstrap, _core
from processes import LAUNCH_NAMES, LAUNCH_VARIABLES, SAY, free_port, over, run_all

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
DMLC = {
    "DMLC_ROLE": "worker",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
    "DMLC_WORKER_ID": "1",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "2",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
# As srun sets them in a step; a batch script without a step is a single process.
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "n[0-3]",
    "SLURM_TASKS_PER_NODE": "2(x4)",
}
TENSORFLOW = {
    "TF_CONFIG": json.dumps(
        {"cluster": {"chief": ["n0:1"], "worker": ["n1:1", "n2:1"]}, "task": {"type": "worker", "index": 1}}
    )
}

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(LAUNCH_VARIABLES) or name in LAUNCH_NAMES:
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("env", "source", "rank", "size", "local_rank"),
    [
        ({}, "single", 0, 1, 0),
        (TORCHRUN, "torchrun", 3, 4, 1),
        (DMLC, "dmlc", 1, 2, 0),
        (DMLC | {"BYTEPS_LOCAL_RANK": "1", "BYTEPS_LOCAL_SIZE": "2"}, "dmlc", 3, 4, 1),
        (MPI, "mpi", 2, 4, 0),
        (SLURM, "slurm", 5, 8, 1),
        (DMLC | TORCHRUN | MPI | SLURM, "dmlc", 1, 2, 0),
        (TENSORFLOW, "tf_config", 2, 3, 0),
        (TORCHRUN | TENSORFLOW | MPI | SLURM, "torchrun", 3, 4, 1),
        (TENSORFLOW | MPI | SLURM, "tf_config", 2, 3, 0),
        (MPI | SLURM, "mpi", 2, 4, 0),
        (SLURM | {"GRADLANE_RANK": "1", "GRADLANE_SIZE": "2"}, "gradlane", 1, 2, 0),
    ],
)
def test_the_environment_says_who_a_worker_is(monkeypatch, env, source, rank, size, local_rank):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    launch = _core.detect_launch({})
    assert (launch["source"], launch["rank"], launch["size"], launch["local_rank"]) == (source, rank, size, local_rank)


def test_arguments_go_before_the_environment(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    launch = _core.detect_launch({"rank": "0", "size": "8"})
    assert (launch["rank"], launch["size"]) == (0, 8)


def test_a_misspelt_variable_is_warned_of_once():
    script = "import gradlane; gradlane.init(); gradlane.push_pull(bytearray(8), 'x'); gradlane.print_config()"
    launch = [sys.executable, "-m", "gradlane", "run", "-n", "1", "--"]
    for launcher in ([], launch):
        command = ([*launcher, sys.executable, "-c", script], {"GRADLANE_STEP_TIMEOT": "9s"})
        [ended] = run_all([command], timeout=60)
        by_the_worker = [line for line in ended.output.splitlines() if line.startswith("gradlane: ")]
        assert ended.code == 0 and ["STEP_TIMEOT" in line for line in by_the_worker] == [True], ended.output


@pytest.mark.parametrize("missing", ["DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_WORKER_ID"])
def test_a_half_set_launch_names_the_missing_variable(monkeypatch, missing):
    for name, value in DMLC.items():
        if name != missing:
            monkeypatch.setenv(name, value)
    with pytest.raises(gradlane.ConfigError, match=missing):
        _core.detect_launch({})


def test_a_rank_beyond_the_size_is_refused():
    with pytest.raises(gradlane.ConfigError):
        _core.detect_launch({"rank": "2", "size": "2"})


def test_gradlane_run_starts_workers_and_servers():
    command = [sys.executable, "-m", "gradlane", "run", "-n", "3", "-s", "2", "--", sys.executable, "-c", SUM_OF_RANKS]
    check_sums(run_all([(command, {})], timeout=60), workers=3)


@pytest.mark.over("local", "shm", "quic")
def test_gradlane_run_lets_its_workers_enter_one_job_after_another(transport):
    again = SUM_OF_RANKS + "gradlane.shutdown()\ngradlane.init()\n" + REPORT.replace("ranks", "again")
    third = "gradlane.shutdown()\ngradlane.init()\n" + REPORT.replace("ranks", "a third time")
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "2", "--", sys.executable, "-c", again + third]
    [ended] = run_all([(command, over(transport))], timeout=90)
    assert ended.code == 0, ended.output
    assert ended.output.count("of 2 got 3.") == 6, ended.output


def test_gradlane_run_returns_the_code_of_the_worker_that_failed():
    failing = "import os, sys; sys.exit(5 if os.environ['GRADLANE_RANK'] == '1' else 0)"
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "--", sys.executable, "-c", failing]
    assert run_all([(command, {})], timeout=60)[0].code == 5


GOES_ON = SAY + """
import numpy, signal, gradlane
gradlane.init()
rank = gradlane.rank()
for step in range(20):
    if (rank, step) == (1, 5):
        os.kill(os.getpid(), signal.SIGKILL)
    total = gradlane.push_pull(numpy.full(1000, 10.0**rank), "gradient", op=gradlane.Sum)[0]
    assert total == (101.0 if step >= 5 else 111.0), (step, total)
# Ranks stay as they are, and what counts workers counts those that are left.
assert gradlane.size() == 2 and gradlane.allgather(rank, "ranks") == [0, 2]
assert gradlane.broadcast_object(rank, 2) == 2
places = [numpy.zeros(1), numpy.zeros(1)]
gradlane.all_gather(numpy.full(1, float(rank)), places, "places")
assert [place[0] for place in places] == [0.0, 2.0]
out = numpy.zeros(1)
gradlane.reduce_scatter(numpy.array([1.0, 5.0]), out, "halves", op=gradlane.Sum)
assert out == [2.0, 10.0][rank // 2]
# A set of two is not everybody, although two are left.
if rank == 0:
    assert gradlane.push_pull(numpy.ones(1), "pair", op=gradlane.Sum, process_set=gradlane.ProcessSet([0, 1])) == 1.0
for call in (
    lambda: gradlane.broadcast(numpy.ones(1), 1, "from lost"),
    lambda: gradlane.reduce(numpy.ones(1), "to lost", 1, op=gradlane.Sum),
):
    try:
        call()
        raise SystemExit("it needs the lost worker")
    except gradlane.RootLostError as error:
        assert error.root == "worker 1" and "lost" in error.tensor, error
gradlane.barrier("all of this is done")
gradlane.shutdown()
say(f"rank {rank} is done")
"""


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("servers", [0, 2])
def test_gradlane_run_goes_on_without_a_killed_worker_if_the_job_does(transport, servers):
    command = [sys.executable, "-m", "gradlane", "run", "-n", "3", "-s", str(servers), "-o", "on_worker_loss=continue"]
    [ended] = run_all([([*command, "--", sys.executable, "-c", GOES_ON], over(transport))], timeout=60)
    assert ended.code == 0 and "worker 1 killed by signal 9 (SIGKILL)" in ended.output, ended.output
    assert {"rank 0 is done", "rank 2 is done"} <= set(ended.output.splitlines()), ended.output


@pytest.mark.over("shm")
def test_a_job_ends_if_a_loss_leaves_fewer_workers_than_it_must_have(transport):
    command = [sys.executable, "-m", "gradlane", "run", "-n", "3", "-s", "1", "-o", "on_worker_loss=continue", "-o"]
    script = ["--", sys.executable, "-c", GOES_ON]
    ended, refused = run_all([([*command, f"min_workers={count}", *script], over(transport)) for count in (3, 4)], timeout=60)
    assert ended.code != 0 and "is done" not in ended.output and "lost worker 1 on" in ended.output, ended.output
    assert refused.code != 0 and "min_workers: is 4, and the job has 3 workers" in refused.output, refused.output


def test_a_job_that_would_go_on_ends_at_once_if_a_worker_ends_before_it_formed():
    script = "import os, sys, gradlane; sys.exit(7) if os.environ['GRADLANE_RANK'] == '1' else gradlane.init()"
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "-o", "on_worker_loss=continue"]
    [ended] = run_all([([*command, "--", sys.executable, "-c", script], {})], timeout=60)
    assert ended.code == 7 and "before the job formed: worker 1 exited with code 7" in ended.output, ended.output


@pytest.mark.over("shm", "quic")
def test_gradlane_run_fails_if_no_worker_is_left(transport):
    failing = "import os, sys, gradlane; gradlane.init(); sys.exit(5 + int(os.environ['GRADLANE_RANK']))"
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "-o", "on_worker_loss=continue"]
    [ended] = run_all([([*command, "--", sys.executable, "-c", failing], over(transport))], timeout=60)
    assert ended.code in (5, 6), ended.output


@pytest.mark.parametrize("sealed", [False, True])
def test_torchrun_needs_no_server(tmp_path, sealed):
    pytest.importorskip("torch")
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    environment = {"OMP_NUM_THREADS": "1"} | ({"GRADLANE_SECRET_FILE": str(secret)} if sealed else {})
    script = tmp_path / "worker.py"
    script.write_text(SUM_OF_RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    check_sums(run_all([(command, environment)], timeout=90), workers=2)


def test_torchrun_starts_a_failed_job_again(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "worker.py"
    script.write_text(
        SAY
        + """
import numpy as np
import gradlane

gradlane.init()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = gradlane.push_pull(np.ones(2, np.float32), "ones", op=gradlane.Sum)
if attempt == 0 and gradlane.rank() == 1:
    os._exit(3)
gradlane.barrier("all are there")
say(f"attempt {attempt}, rank {gradlane.rank()}: {total.tolist()}")
"""
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    [ended] = run_all([([*command, "--max-restarts", "1", str(script)], {"OMP_NUM_THREADS": "1"})], timeout=120)
    assert ended.code == 0, ended.output
    for rank in range(2):
        assert f"attempt 1, rank {rank}: [2.0, 2.0]" in ended.output, ended.output


PROCESS_GROUP = (
    SAY
    + """
import torch
import torch.distributed as dist
import gradlane.torch as gl

dist.init_process_group("gradlane")
tensor = torch.full((2,), 1.0 + dist.get_rank())
dist.all_reduce(tensor)
say(f"rank {dist.get_rank()} is {gl.rank()}: {tensor.tolist()}")
dist.destroy_process_group()
"""
)


def test_torchrun_starts_a_process_group(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "worker.py"
    script.write_text(PROCESS_GROUP)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    [ended] = run_all([(command, {"OMP_NUM_THREADS": "1"})], timeout=90)
    assert ended.code == 0, ended.output
    for rank in range(2):
        assert f"rank {rank} is {rank}: [3.0, 3.0]" in ended.output


def test_a_process_group_without_an_agent_joins_workers_of_hosts_that_share_no_folder(tmp_path):
    pytest.importorskip("torch")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GRADLANE_SECRET_FILE": str(secret)}
    hosts = [
        common | {"RANK": str(rank), "GRADLANE_MACHINE": f"host-{rank}", "GRADLANE_STATE_DIR": str(tmp_path / str(rank))}
        for rank in range(2)
    ]
    ended = run_all([([sys.executable, "-c", PROCESS_GROUP], host) for host in hosts], timeout=90)
    for rank, worker in enumerate(ended):
        assert worker.code == 0, worker.output
        assert f"rank {rank} is {rank}: [3.0, 3.0]" in worker.output


def test_with_a_secret_nothing_in_the_store_of_torchrun_lets_anybody_in(monkeypatch):
    store = Store()
    monkeypatch.setattr(_bootstrap, "_common_store", lambda given, timeout, generation: store)

    def meet(settings, rank=0, **entrance):
        launch = _bootstrap.Launch("torchrun", rank, 2, 0, 1, 0, 2, 0, 1.0, ("none", 0, False), entrance)
        return _bootstrap._meet(launch, entrance, settings, 0, None, while_joining)

    def find(settings):
        return meet(settings, rank=1, way="find", job="night")[1]

    while_joining = contextlib.ExitStack()
    plan = {"bind": "127.0.0.1:0", "workers": 2, "servers": 1, "coordinator_only": False}
    store.set("rank 1 asks", "a word of a job that failed")
    with contextlib.ExitStack() as while_joining:
        embedded, join, _ = meet({"secret": SECRET}, way="embed", job="night", **plan)
        while_joining.callback(embedded.stop, 0.0)
        assert find({"secret": SECRET}) == join
        for settings in ({}, {"secret": SECRET[::-1]}):
            with pytest.raises(gradlane.AuthError, match="GRADLANE_SECRET"):
                find(settings)
    secret_of_job = join.rsplit(".", 1)[1]
    for value in store.values.values():
        assert not any(part in value for part in (secret_of_job, "127.0.0.1", SECRET))
    with contextlib.ExitStack() as while_joining:
        with pytest.raises(gradlane.TimeoutError, match="rank 0 gave no join string"):
            find({"secret": SECRET})  # the answers of the job before are not taken
        while_joining.callback(_bootstrap._Giver(store, join, 2).stop)
        with pytest.raises(gradlane.AuthError, match="not sealed"):
            find({"secret": SECRET})
        with pytest.raises(gradlane.ConfigError, match="has 5 bytes"):
            find({"secret": "short"})


def test_a_byteps_launch_script_needs_no_change(tmp_path):
    common = {name: value for name, value in DMLC.items() if name not in ("DMLC_ROLE", "DMLC_WORKER_ID")}
    common |= {"DMLC_PS_ROOT_PORT": str(free_port()), "DMLC_NUM_SERVER": "1", "GRADLANE_STATE_DIR": str(tmp_path)}
    gradlane_command = [sys.executable, "-m", "gradlane"]
    commands = [
        ([*gradlane_command, "scheduler"], common | {"DMLC_ROLE": "scheduler"}),
        ([*gradlane_command, "server"], common | {"DMLC_ROLE": "server"}),
        *(
            ([sys.executable, "-c", SUM_OF_RANKS], common | {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(i)})
            for i in range(2)
        ),
    ]
    check_sums(run_all(commands, timeout=60), workers=2)


@pytest.mark.parametrize("servers", [0, 2])
def test_a_tensorflow_cluster_needs_nothing_but_its_description(tmp_path, servers):
    def environment(kind, index):
        cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3", "127.0.0.1:4"][:servers]}
        described = {"cluster": cluster, "task": {"type": kind, "index": index}}
        return {"TF_CONFIG": json.dumps(described), "GRADLANE_STATE_DIR": str(tmp_path)}

    commands = [
        *(([sys.executable, "-m", "gradlane", "server"], environment("ps", index)) for index in range(servers)),
        *(([sys.executable, "-c", SUM_OF_RANKS], environment(kind, 0)) for kind in ("worker", "chief")),
    ]
    check_sums(run_all(commands, timeout=60), workers=2)


def test_one_cluster_file_leads_all_processes_to_their_job(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text(
        f"""
        [cluster]
        coordinator = "127.0.0.1:{free_port()}"
        [cluster.server]
        0 = "127.0.0.1:{free_port()}"
        [cluster.worker]
        0 = "127.0.0.1"
        2 = "127.0.0.1"
        """
    )
    common = {"GRADLANE_CLUSTER_FILE": str(file), "GRADLANE_STATE_DIR": str(tmp_path)}
    commands = [
        ([sys.executable, "-m", "gradlane", "coordinator"], common),
        ([sys.executable, "-m", "gradlane", "server"], common | {"GRADLANE_SERVER_INDEX": "0"}),
        *(([sys.executable, "-c", SUM_OF_RANKS], common | {"GRADLANE_RANK": rank}) for rank in ("0", "2")),
    ]
    check_sums(run_all(commands, timeout=60), workers=2)


def test_a_parameter_server_of_tensorflow_does_not_train(monkeypatch):
    cluster = {"worker": ["n1:1"], "ps": ["n2:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))
    with pytest.raises(gradlane.ConfigError, match="gradlane server"):
        gradlane.init()


@pytest.mark.parametrize("launcher", ["mpi", "slurm"])
def test_under_mpi_and_slurm_rank_0_brings_the_servers(tmp_path, launcher):
    def environment(rank):
        if launcher == "mpi":
            ranks = dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), rank)
            sizes = dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), "2")
            return ranks | sizes | {"OMPI_MCA_ess_base_jobid": "77"}
        own = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": "2", "SLURM_NODEID": "0"}
        return SLURM | own | {"SLURM_STEP_NODELIST": "n0", "SLURM_TASKS_PER_NODE": "2"}

    state = {"GRADLANE_STATE_DIR": str(tmp_path)}
    commands = [([sys.executable, "-c", SUM_OF_RANKS], state | environment(str(rank))) for rank in range(2)]
    check_sums(run_all(commands, timeout=60), workers=2)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_mpirun_starts_a_job(tmp_path):
    # OpenMPI otherwise refuses root, and more ranks than cores. Other implementations have no such options.
    version = subprocess.run(["mpirun", "--version"], capture_output=True, encoding="utf-8", check=True).stdout
    options = ["--oversubscribe", "--allow-run-as-root"] if "Open MPI" in version else []
    command = ["mpirun", *options, "-n", "2", sys.executable, "-c", SUM_OF_RANKS]
    ended = run_all([(command, {"GRADLANE_STATE_DIR": str(tmp_path)})], timeout=90)
    check_sums(ended, workers=2)


def test_a_server_in_a_python_process_is_joined_by_its_join_string():
    script = "import gradlane, sys; gradlane.init(rank=int(sys.argv[1]), size=2, coordinator=sys.argv[2]); " + REPORT
    with gradlane.Server(workers=2, servers=2) as server:
        commands = [([sys.executable, "-c", script, str(rank), server.join], {}) for rank in range(2)]
        check_sums(run_all(commands, timeout=60), workers=2)


@pytest.mark.parametrize("place", ["rank=int(sys.argv[2]), size=2, ", ""], ids=["placed", "placed by the coordinator"])
def test_workers_are_told_the_address_of_a_coordinator(tmp_path, place):
    address = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port())}
    state, sizes = {"GRADLANE_STATE_DIR": str(tmp_path)}, {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1"}
    script = f"import gradlane, sys; gradlane.init({place}coordinator=sys.argv[1]); " + REPORT
    worker = [sys.executable, "-c", script, ":".join(address.values())]
    commands = [
        *(([sys.executable, "-m", "gradlane", role], state | address | sizes) for role in ("coordinator", "server")),
        *(([*worker, str(rank)], state) for rank in range(2)),
    ]
    check_sums(run_all(commands, timeout=60), workers=2)


def test_workers_with_a_join_string_alone_are_given_their_ranks():
    script = "import gradlane, sys; gradlane.init(coordinator=sys.argv[1]); " + REPORT
    with gradlane.Server(workers=2) as server:
        commands = [([sys.executable, "-c", script, server.join], {}) for _ in range(2)]
        check_sums(run_all(commands, timeout=60), workers=2)


def test_a_stopped_server_does_not_start_again():
    server = gradlane.Server()
    with pytest.raises(gradlane.Error, match=r"start\(\)"):
        _ = server.join
    server.start().start()
    server.stop()
    server.stop()
    with pytest.raises(gradlane.Error, match="make a new one"):
        server.start()


def test_the_worker_finds_no_job_without_a_coordinator(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADLANE_STATE_DIR", str(tmp_path))
    for name, value in DMLC.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(gradlane.UnavailableError, match="GRADLANE_JOIN"):
        gradlane.init(timeout=0.2)
    assert not gradlane.is_initialized()


@pytest.mark.parametrize(("argument", "variables"), [("timeout=1.0", {}), ("", {"GRADLANE_JOIN_TIMEOUT": "1s"})])
def test_when_the_time_to_form_is_over_the_missing_worker_is_named(tmp_path, argument, variables):
    script = f"""
import gradlane
try:
    gradlane.init({argument})
except gradlane.NotFormedError as error:
    print("missing:", *error.missing)
"""
    alone = MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "GRADLANE_STATE_DIR": str(tmp_path)}
    [ended] = run_all([([sys.executable, "-c", script], alone | variables)], timeout=20.0)
    assert "missing: worker 1\n" in ended.output, ended.output


REPORT = """
import array
values = array.array("d", [gradlane.rank() + 1.0])
gradlane.push_pull(values, "ranks", op=gradlane.Sum)
print(f"rank {gradlane.rank()} of {gradlane.size()} got {values[0]:.0f}.", flush=True)
"""
SUM_OF_RANKS = "import gradlane; gradlane.init()\n" + REPORT


def check_sums(ended, workers):
    """All processes ended well, and each worker got the sum of all ranks, counted from 1."""
    output = "".join(process.output for process in ended)
    assert [process.code for process in ended] == [0] * len(ended), output
    total = workers * (workers + 1) // 2
    got = sorted(re.findall(r"rank \d+ of \d+ got \d+\.", output))
    assert got == [f"rank {rank} of {workers} got {total}." for rank in range(workers)], output


class Store:
    """A store of torchrun's agent, as far as it is used."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key].encode()
