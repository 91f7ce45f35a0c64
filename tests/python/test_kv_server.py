"""Servers of one's own for `KVWorker`: the example in Rust, whose handle decides what a push does, and `KVServer` in Python."""

import signal
import sys
from pathlib import Path

import pytest
from processes import SAY, Running, free_port, over, run_all, run_python

KV_SERVER = str(Path(__file__).parents[2] / "target" / "debug" / "kv-server")
"""`examples/kv_server`, which `make servers` builds."""

GRADLANE = [sys.executable, "-m", "gradlane"]

HANDLED = f"""{SAY}
import gradlane
import numpy as np
from gradlane import FailedPreconditionError

def push(kv, keys, values):
    kv.wait(kv.push(keys, values))

gradlane.init()
rank, LONG = gradlane.rank(), 5 << 18
keys, lens = [3, 17, 2**63, 2**64 - 1], [1, 5, LONG, 2]
pushes = [np.random.default_rng(seed).standard_normal(sum(lens)).astype(np.float32) for seed in range(4)]

def read(kv, keys, length, lens=None, dtype=np.float32):
    out = np.full(length, 99, dtype)
    kv.wait(kv.pull(keys, out, lens))
    return out

def push_in_turn(kv, name):
    for turn, change in enumerate(pushes):
        if turn % 2 == rank:
            kv.wait(kv.push(keys, change, lens))
        gradlane.barrier(f"{{name}} {{turn}}")

def is_equal(found, expected):
    return found.tobytes() == expected.tobytes()

largest, decayed, clamped, added = (gradlane.KVWorker(app) for app in (1, 2, 3, 4))
for kv in (largest, decayed, clamped, added):
    push_in_turn(kv, kv.app)
zeros = np.zeros(sum(lens), np.float32)
most, decay, total = zeros, zeros, zeros
for change in pushes:
    most, decay, total = np.maximum(most, change), np.float32(0.9) * decay + change, total + change
assert is_equal(read(largest, keys, sum(lens), lens), most)
assert is_equal(read(decayed, keys, sum(lens), lens), decay)
assert is_equal(read(clamped, keys, sum(lens), lens), np.clip(total, -1, 1))
assert is_equal(read(added, keys, sum(lens), lens), total)
both = np.full(5, -100, np.float32)
largest.wait(largest.push_pull(keys[1:2], both))
assert is_equal(both, most[1:6]), "a push_pull gets what the handle has made"
say("values are right")

# A panic in one part of a long value, and an error of another key.
gradlane.barrier("before the failures")
if rank == 0:
    broken = np.zeros(LONG, np.float32)
    broken[LONG // 2] = np.nan
    timestamp = decayed.push([2**63], broken)
    try:
        decayed.wait(timestamp)
        say("a failure is missing")
    except FailedPreconditionError as error:
        say(f"pushed: {{error}}")
gradlane.barrier("the handle has panicked")
for what in ("pull", "push"):
    try:
        if what == "pull":
            read(decayed, [2**63], LONG)
        else:
            push(decayed, [2**63], np.zeros(LONG, np.float32))
        say("a failure is missing")
    except FailedPreconditionError as error:
        say(f"{{what}} by {{rank}}: {{error}}")
"""

AFTER = """
gradlane.barrier("all have seen it")
others = [3, 17, 2**64 - 1]
if rank == 1:
    decayed.wait(decayed.push(others, np.ones(8, np.float32), [1, 5, 2]))
gradlane.barrier("others were pushed")
expected = np.float32(0.9) * np.concatenate([decay[:6], decay[-2:]]) + np.float32(1)
assert is_equal(read(decayed, others, 8, [1, 5, 2]), expected), "other keys go on"
assert is_equal(read(added, keys, sum(lens), lens), total), "and other apps"
wrong = decayed.push([100 + rank], np.ones(2, np.int64))
try:
    decayed.wait(wrong)
    say("a failure is missing")
except FailedPreconditionError as error:
    say(f"type: {error}")
gradlane.barrier("before it begins anew")
gradlane.undeclare(f"kv/2/{2**63}")
gradlane.barrier("it has ended")
decayed.wait(decayed.push([2**63], np.ones(2, np.float32)))
gradlane.barrier("it has begun anew")
assert read(decayed, [2**63], 2).tolist() == [np.float32(0.9) + np.float32(1)] * 2
gradlane.shutdown()
say("done")
"""

def of_dmlc(folder, transport, workers=2, servers=2):
    return over(transport) | {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "GRADLANE_STATE_DIR": str(folder),
    }


@pytest.mark.over("quic", "shm")
def test_a_server_of_ones_own_decides_what_pushes_and_pulls_do(transport, tmp_path):
    common, script = of_dmlc(tmp_path, transport), HANDLED + AFTER
    commands = [
        ([*GRADLANE, "serve"], common | {"DMLC_ROLE": "scheduler"}),
        *(([KV_SERVER], common | {"DMLC_ROLE": "server"}) for _ in range(2)),
        *(
            ([sys.executable, "-c", script], common | {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)})
            for rank in range(2)
        ),
    ]
    ended = run_all(commands, timeout=120)
    assert [process.code for process in ended] == [0] * 5, ended
    workers = [process.output for process in ended[3:]]
    assert all("values are right" in said and "done" in said and "missing" not in said for said in workers), workers
    told = f"kv/2/{2**63}: the handle kv_server::Keys, in a push of worker 0 for the elements "
    for said, uses in zip(workers, (("pushed", "pull by 0", "push by 0"), ("pull by 1", "push by 1")), strict=True):
        for use in uses:
            [line] = [line for line in said.splitlines() if line.startswith(f"{use}: ")]
            assert told in line and "panicked: worker 0 has pushed a NaN" in line and "undeclared" in line, line
        assert "failed: key 10" in said and "of app 2 is int64, not float32" in said
    servers = [process.output for process in ended[1:3]]
    assert any("worker 0 has pushed a NaN" in said for said in servers), servers
    assert not any("sum lane panicked" in said for said in servers), servers


def test_the_launcher_starts_a_server_program():
    script = f"""{SAY}
import gradlane, numpy as np
gradlane.init()
kv, out = gradlane.KVWorker(app=1), np.zeros(2)
for value in ([3.0, 1.0], [2.0, 2.0]):
    kv.wait(kv.push([7], np.array(value, np.float32)))
out = np.zeros(2, np.float32)
kv.wait(kv.pull([7], out))
gradlane.shutdown()
say(f"largest {{out.tolist()}}")
"""
    worker = ["--", sys.executable, "-c", script]
    for command in (
        [*GRADLANE, "run", "-n", "2", "-s", "2", "--server-program", KV_SERVER, *worker],
        [*GRADLANE, "run", "-n", "2", "--server-program", KV_SERVER, *worker],  # a process, not embedded
        [KV_SERVER, "run", "-n", "2", *worker],  # is that program itself
    ):
        [ended] = run_all([(command, over("quic"))], timeout=60)
        assert ended.code == 0 and ended.output.count("largest [3.0, 2.0]") == 2, ended
    [ended] = run_all([([*GRADLANE, "run", "-s", "1", "--server-program", "/no/such", *worker], {})], timeout=60)
    assert ended.code == 127 and "program /no/such does not exist" in ended.output, ended


ONE_SCRIPT = f"""{SAY}
import os
import gradlane
import numpy as np

if os.environ["DMLC_ROLE"] == "server":
    gradlane.KVServer().run()
    say("served")
else:
    gradlane.init()
    kv, out = gradlane.KVWorker(), np.zeros(5, np.float32)
    kv.wait(kv.push([1, 2], np.arange(5, dtype=np.float32), [2, 3]))
    gradlane.barrier("all have pushed")
    kv.wait(kv.pull([1, 2], out, [2, 3]))
    gradlane.shutdown()
    say(f"read {{out.tolist()}}")
"""


@pytest.mark.over("quic", "shm")
def test_kvserver_is_the_server_of_a_script_that_all_roles_run(transport, tmp_path):
    common, script = of_dmlc(tmp_path, transport), [sys.executable, "-c", ONE_SCRIPT]
    commands = [
        ([*GRADLANE, "serve"], common | {"DMLC_ROLE": "scheduler"}),
        *((script, common | {"DMLC_ROLE": "server"}) for _ in range(2)),
        *((script, common | {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)}) for rank in range(2)),
    ]
    ended = run_all(commands, timeout=60)
    assert [process.code for process in ended] == [0] * 5, ended
    assert all("served" in process.output for process in ended[1:3]), ended
    assert all("read [0.0, 2.0, 4.0, 6.0, 8.0]" in process.output for process in ended[3:]), ended


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_ends_a_kvserver_as_it_ends_the_command(number, code, tmp_path):
    common = of_dmlc(tmp_path, "quic", servers=1)
    script = "import gradlane\ngradlane.KVServer().run()"
    with Running([*GRADLANE, "serve"], env=common | {"DMLC_ROLE": "scheduler"}) as scheduler:
        with Running([sys.executable, "-c", script], env=common | {"DMLC_ROLE": "server", "GRADLANE_LOG": "info"}) as server:
            while "server listening on" not in server.output:
                server.line("")
            server.interrupt(number)
            assert server.end(30).code == code
        scheduler.interrupt(signal.SIGKILL)


def test_kvserver_says_why_it_cannot_serve():
    script = """
import os, gradlane
from gradlane import ConfigError, FailedPreconditionError, KVServer

def refused(kind, server, *told):
    try:
        server.run()
    except kind as error:
        assert all(text in str(error) for text in told), error
    else:
        raise AssertionError(told)

refused(ConfigError, KVServer(config={"bnid": "127.0.0.1:0"}), "bnid")
refused(gradlane.Error, KVServer(config={"join_timeout": "1s"}), "join")
for variable, role in (("DMLC_ROLE", "worker"), ("GRADLANE_ROLE", "coordinator")):
    os.environ[variable] = role
    refused(FailedPreconditionError, KVServer(), f"{variable} is {role}")
    del os.environ[variable]
gradlane.init()
refused(FailedPreconditionError, KVServer(), "this process is a worker")
gradlane.shutdown()
"""
    ended = run_python(script)
    assert ended.code == 0, ended.output
