"""What two workers get from the operations on buffers."""

import asyncio
import hmac
import pickle
import threading
from array import array

import gradlane
import numpy as np
import pytest
from gradlane import _objects, _plain
from gradlane.errors import AuthError, InvalidArgumentError, ProtocolError

pytestmark = [pytest.mark.workers(2, servers=2), pytest.mark.over("local", "shm", "quic")]


def test_the_average_is_the_default():
    values = np.array([1.0, 2.0], np.float32) * (gradlane.rank() + 1)
    assert gradlane.push_pull(values, "average").tolist() == [1.5, 3.0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize(
    ("op", "expected"),
    [(gradlane.Sum, [3, 30]), (gradlane.Average, [1, 15]), (gradlane.Min, [1, 10]), (gradlane.Max, [2, 20])],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_reduction_works_for_every_element_type(op, expected, dtype):
    values = (np.array([1, 10]) * (gradlane.rank() + 1)).astype(dtype)
    if op is gradlane.Average and values.dtype.kind == "f":
        expected = [1.5, 15.0]
    assert gradlane.push_pull(values, f"{op.name} {dtype}", op=op).tolist() == expected


def test_the_weighted_average_counts_samples():
    rank = gradlane.rank()
    values = np.array([10.0 * (rank + 1)])
    gradlane.push_pull(values, "weighted", op=gradlane.WeightedAverage, weight=[3.0, 1.0][rank])
    assert values.tolist() == [12.5]


def test_average_false_is_the_sum():
    assert gradlane.push_pull(np.ones(2), "old sum", average=False).tolist() == [2.0, 2.0]


def test_contradicting_arguments_are_refused():
    with pytest.raises(gradlane.InvalidArgumentError, match="contradicts"):
        gradlane.push_pull(np.ones(2), "contradiction", op=gradlane.Max, average=True)
    with pytest.raises(gradlane.InvalidArgumentError, match="takes no weight"):
        gradlane.push_pull(np.ones(2), "weight", weight=2.0)
    with pytest.raises(gradlane.InvalidArgumentError, match="make them equal"):
        gradlane.push_pull(np.ones(2), "other place", out=np.ones(3))
    with pytest.raises(gradlane.InvalidArgumentError, match="cannot name"):
        gradlane.push_pull(np.ones(2), "")


def test_out_receives_the_result_and_the_input_stays():
    source, target = np.full(3, float(gradlane.rank())), np.zeros(3)
    gradlane.push_pull(source, "into", op=gradlane.Sum, out=target)
    assert (source.tolist(), target.tolist()) == ([float(gradlane.rank())] * 3, [1.0] * 3)


def test_a_name_is_reduced_again_and_again():
    for step in range(20):
        values = np.array([step + gradlane.rank()], np.int64)
        assert gradlane.push_pull(values, "again", op=gradlane.Sum).tolist() == [2 * step + 1]


def test_workers_may_submit_in_different_orders():
    names = [f"order {i}" for i in range(10)]
    mine = names if gradlane.rank() == 0 else list(reversed(names))
    values = {name: np.array([float(name[6:])]) for name in names}
    handles = [
        gradlane.push_pull_async(values[name], name, op=gradlane.Sum, priority=-i) for i, name in enumerate(mine)
    ]
    for handle in handles:
        handle.wait()
    assert [values[name][0] for name in names] == [2.0 * i for i in range(10)]


def test_a_tensor_of_many_parts_arrives_whole():
    values = np.arange(5_000_000, dtype=np.float32) * (gradlane.rank() + 1)
    gradlane.push_pull(values, "large", op=gradlane.Sum)
    assert np.array_equal(values, np.arange(5_000_000, dtype=np.float32) * 3)


def test_nan_and_infinity_pass_through_a_sum():
    values = np.array([[np.nan, np.inf, -np.inf, 1.0], [1.0, 1.0, 1.0, 1.0]][gradlane.rank()])
    gradlane.push_pull(values, "special", op=gradlane.Sum)
    assert np.isnan(values[0]) and values[1:].tolist() == [np.inf, -np.inf, 2.0]


def test_an_empty_buffer_needs_no_server():
    assert gradlane.push_pull(np.zeros((0, 4)), "empty").shape == (0, 4)


def test_a_broadcast_keeps_every_bit():
    for root in range(2):
        values = np.array([np.nan, -0.0, 5e-324]) if gradlane.rank() == root else np.zeros(3)
        gradlane.broadcast(values, root, f"bits of {root}")
        assert values.tobytes() == np.array([np.nan, -0.0, 5e-324]).tobytes()


def test_a_root_outside_of_the_job_is_refused():
    with pytest.raises(gradlane.InvalidArgumentError, match="0 to 1"):
        gradlane.broadcast(np.zeros(3), 2)


def test_values_of_any_kind_and_size_are_gathered_in_rank_order():
    mine = [b"", np.arange(1000)][gradlane.rank()]
    empty, numbers = gradlane.allgather(mine, "mixed")
    assert empty == b"" and numbers.tolist() == list(range(1000))
    for length in (0, 1, 255, 256, 257, 5000, 300_000):
        blob = b"x" * (length * (gradlane.rank() + 1))
        assert gradlane.allgather(blob, "blobs") == [b"x" * length, b"x" * (2 * length)]


@pytest.mark.parametrize("length", [1, 300, 11_000, 100_000, 1_050_000])
def test_gathering_costs_what_the_contents_cost(length, transport):
    lengths = [length, 2 * length]
    mine = b"x" * lengths[gradlane.rank()]
    _objects.Gathering(mine, "counted").finish()  # the first round also declares names
    gradlane.barrier("before it is counted")
    before = gradlane.metrics()
    _objects.Gathering(mine, "counted").finish()
    moved = {name: value - before.get(name, 0) for name, value in gradlane.metrics().items()}
    announced = 8 * gradlane.size()
    most = [n + max(n // 20, 255) for n in lengths]
    if transport == "local":
        assert moved["push_bytes"] == 0
        assert sum(lengths) + announced <= moved["local_bytes"] <= sum(most) + announced
    else:
        assert len(mine) + announced <= moved["push_bytes"] <= most[gradlane.rank()] + announced
        assert sum(lengths) + announced <= moved["pull_bytes"] <= sum(most) + announced


def test_ever_new_lengths_leave_few_names():
    before = gradlane.layout().count("part ")
    for step in range(200):
        gathered = _objects.Gathering(b"x" * (1000 + 15 * step), "ever new").finish()
        assert [len(content) for content in gathered.values()] == [1000 + 15 * step] * 2
    # The lengths, and for each of two ranks the blocks from 256 to 4096 bytes.
    assert gradlane.layout().count("part ") - before == 1 + 2 * 5


def test_an_object_of_the_root_reaches_all():
    mine = {"step": 12, "note": "x" * 300} if gradlane.rank() == 1 else None
    assert gradlane.broadcast_object(mine, 1) == {"step": 12, "note": "x" * 300}


def test_declaring_ahead_of_use_changes_nothing_of_the_result():
    small = {f"small {i}": np.full(i + 1, gradlane.rank(), np.float32) for i in range(50)}
    gradlane.declare(small)
    handles = [gradlane.push_pull_async(values, name, op=gradlane.Sum) for name, values in small.items()]
    for handle in handles:
        handle.wait()
    assert all((values == 1.0).all() for values in small.values())


def test_a_handle_can_be_polled_and_waited_for_again():
    handle = gradlane.push_pull_async(np.ones(3), "handle", op=gradlane.Sum)
    first = handle.wait(10.0)
    assert handle.poll() and handle.done() and handle.exception() is None
    assert handle.wait() is first and first.tolist() == [2.0] * 3


def test_a_handle_can_be_awaited():
    async def both():
        handles = [gradlane.push_pull_async(np.ones(2), f"awaited {i}", op=gradlane.Sum) for i in range(2)]
        return [await handle for handle in handles]

    assert [values.tolist() for values in asyncio.run(both())] == [[2.0, 2.0], [2.0, 2.0]]


def test_waiting_lets_other_threads_run():
    # Worker 1 contributes to "held" only after worker 0's thread has counted; were the GIL held while waiting, nobody
    # could.
    def count():
        for _ in range(100_000):
            pass
        gradlane.push_pull(np.zeros(1), "go")

    if gradlane.rank() == 0:
        counter = threading.Thread(target=count)
        held = gradlane.push_pull_async(np.ones(1), "held", op=gradlane.Sum)
        counter.start()
        assert held.wait().tolist() == [2.0]
        counter.join()
    else:
        gradlane.push_pull(np.zeros(1), "go")
        gradlane.push_pull(np.ones(1), "held", op=gradlane.Sum)


def test_a_wait_that_times_out_leaves_the_operation_running():
    if gradlane.rank() == 0:
        late = gradlane.push_pull_async(np.ones(1), "late", op=gradlane.Sum)
        with pytest.raises(gradlane.TimeoutError):
            late.wait(0.01)
        gradlane.push_pull(np.zeros(1), "now")
        assert late.wait().tolist() == [2.0]
    else:
        gradlane.push_pull(np.zeros(1), "now")
        gradlane.push_pull(np.ones(1), "late", op=gradlane.Sum)


@pytest.mark.over("default")
def test_host_memory_is_copied_once_into_what_a_server_of_this_machine_reads():
    before = gradlane.metrics()
    values = np.ones(250_000, np.float32)
    gradlane.push_pull(values, "in place")
    after = gradlane.metrics()
    assert after["push_bytes"] - before["push_bytes"] == values.nbytes
    assert after["pull_bytes"] - before["pull_bytes"] == values.nbytes
    assert after["copied_bytes"] - before["copied_bytes"] == values.nbytes
    assert after["shm_connections"] == after["connections"]


@pytest.mark.over("quic")
def test_host_memory_is_not_copied_on_its_way_over_a_network():
    before = gradlane.metrics()
    values = np.ones(250_000, np.float32)
    gradlane.push_pull(values, "in place")
    after = gradlane.metrics()
    assert after["push_bytes"] - before["push_bytes"] == values.nbytes
    assert after["copied_bytes"] == before["copied_bytes"]
    assert after["shm_connections"] == 0 < after["connections"]


@pytest.mark.over("local")
def test_nothing_goes_to_a_server_where_workers_reduce_among_themselves():
    before = gradlane.metrics()
    values = np.ones(250_000, np.float32)
    gradlane.push_pull(values, "in place")
    after = gradlane.metrics()
    assert after["local_bytes"] - before["local_bytes"] == values.nbytes
    assert after["push_bytes"] == after["connections"] == 0


def test_no_operation_is_left_over():
    gradlane.push_pull(np.ones(3), "last")
    assert gradlane.metrics()["handles_live"] == 0


PLAIN = [None, True, 2**70, -0.5, float("inf"), "text", b"\x00\xff", (1, [2, ()]), {1: "one", ("a", 2): {}, "b": None}]


class Trap:
    """Runs code where it is unpickled."""

    def __reduce__(self):
        return (eval, ("1 / 0",))


def test_an_object_that_a_server_forged_is_not_unpickled():
    # A server sees and changes all bytes, and does not have the key of the workers.
    forged = pickle.dumps(Trap())
    for name, mac in {"no MAC": b"", "guessed key": hmac.digest(bytes(32), forged, "sha256")}.items():
        if gradlane.rank() == 1:
            _objects.broadcast_bytes(mac + forged, 1, name)
        else:
            with pytest.raises(AuthError, match="not sent by that worker of this job"):
                gradlane.broadcast_object(None, 1, name)


def test_an_object_is_good_for_one_operation_name_and_sender():
    about = ("broadcast_object", "a", 1)
    sealed = _objects._dumps([1, 2], False, *about)
    assert _objects._loads(memoryview(sealed), False, *about) == [1, 2]
    for other in [("allgather", "a", 1), ("broadcast_object", "b", 1), ("broadcast_object", "a", 0)]:
        with pytest.raises(AuthError):
            _objects._loads(memoryview(sealed), False, *other)
    for damaged in (b"", sealed[:31], sealed[:-1], bytes([sealed[0] ^ 1]) + sealed[1:]):
        with pytest.raises(AuthError):
            _objects._loads(memoryview(damaged), False, *about)


def test_plain_values_are_sent_without_pickle(monkeypatch):
    mine = PLAIN if gradlane.rank() == 1 else None
    with monkeypatch.context() as patch:
        patch.delattr(pickle, "loads")
        received = gradlane.broadcast_object(mine, 1, "plain", plain=True)
        gathered = gradlane.allgather(PLAIN[: gradlane.rank()], "plain gathered", plain=True)
    assert received == PLAIN and list(map(type, received)) == list(map(type, PLAIN))
    assert gathered == [PLAIN[:rank] for rank in range(gradlane.size())]


def test_what_is_not_plain_is_named_and_what_is_not_plain_is_not_read():
    with pytest.raises(InvalidArgumentError, match=r"value\['a'\]\[1\] is object, which is not plain"):
        gradlane.allgather({"a": [1, object()]}, "not plain", plain=True)
    for damaged in (b"", b"\x80\x04N.", b'{"other": 1}', b'{"bytes": "zz"}', b"[" * 100_000, b'{"dict": [[[], 1]]}'):
        with pytest.raises(ProtocolError, match="of no plain value"):
            _plain.decode(damaged)


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_a_compression_is_declared_ahead_and_works_on_every_kind_of_buffer(compression):
    kind = getattr(gradlane.Compression, compression)
    exact = 1.0 + gradlane.rank()
    whole = {f"{compression} array": np.full(3, exact, np.float32), f"{compression} scalar": np.float32(exact)}
    whole[f"{compression} memory"] = memoryview(array("f", [exact] * 3))
    gradlane.declare({f"{compression} array": whole[f"{compression} array"]}, compression=kind)
    for name, buffer in whole.items():
        reduced = gradlane.push_pull(buffer, name, op=gradlane.Sum, compression=kind)
        expected = sum(1.0 + rank for rank in range(gradlane.size()))
        assert np.asarray(reduced).reshape(-1)[0] == expected
    with pytest.raises(InvalidArgumentError, match="no compressor"):
        gradlane.declare({"late": np.ones(1)}, compression="fp16")


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_a_compression_narrows_what_travels(compression, transport):
    kind = getattr(gradlane.Compression, compression)
    sent = [gradlane.metrics()["push_bytes"]]
    for options in ({}, {"compression": kind}):
        array = np.full(100_000, 1.0 + gradlane.rank(), np.float32)
        gradlane.push_pull(array, f"{compression} {options}", op=gradlane.Sum, **options)
        assert (array == 3.0).all()
        sent.append(gradlane.metrics()["push_bytes"])
    whole, narrow = sent[1] - sent[0], sent[2] - sent[1]
    assert narrow == whole / 2 if transport != "local" else narrow == whole == 0
