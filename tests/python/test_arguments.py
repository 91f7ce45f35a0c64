"""Arguments that are wrong get an error that says what to give, and change nothing."""

import math
import unicodedata

import gradlane
import numpy as np
import pytest
from gradlane import Compression
from gradlane.errors import InvalidArgumentError


@pytest.fixture(autouse=True, scope="module")
def alone():
    gradlane.init()
    yield
    gradlane.shutdown()


def ones():
    return np.ones(3, np.float32)


BY_NAME = {
    "push_pull": lambda name: gradlane.push_pull(ones(), name),
    "push_pull_async": lambda name: gradlane.push_pull_async(ones(), name),
    "broadcast": lambda name: gradlane.broadcast(ones(), 0, name),
    "barrier": gradlane.barrier,
    "undeclare": gradlane.undeclare,
    "declare": lambda name: gradlane.declare({name: ones()}),
    "grouped_push_pull": lambda name: gradlane.grouped_push_pull([ones()], [name]),
    "reduce": lambda name: gradlane.reduce(ones(), name),
    "allgather": lambda name: gradlane.allgather(b"x", name),
    "broadcast_object": lambda name: gradlane.broadcast_object(b"x", 0, name),
}

DECOMPOSED = unicodedata.normalize("NFD", "é")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("\ud800x", "half of a pair"),
        ("loss\udfff", "the character at 4 is half of a pair"),
        (DECOMPOSED, r"normal form C.*normalize\('NFC', name\), which is '\\xe9'"),
        ("", "cannot name a tensor"),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("call", BY_NAME)
def test_names(call, name, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        BY_NAME[call](name)


@pytest.mark.parametrize("name", ["é", "名前", "🙂", "x" * 200])
def test_names_in_any_script_are_right(name):
    assert gradlane.push_pull(ones(), name).tolist() == [1.0] * 3


BY_TIMEOUT = {
    "push_pull": lambda timeout: gradlane.push_pull(ones(), "t", timeout=timeout),
    "push_pull_async": lambda timeout: gradlane.push_pull_async(ones(), "t", timeout=timeout),
    "grouped_push_pull": lambda timeout: gradlane.grouped_push_pull([ones()], "g", timeout=timeout),
    "broadcast": lambda timeout: gradlane.broadcast(ones(), timeout=timeout),
    "barrier": lambda timeout: gradlane.barrier(timeout=timeout),
    "declare": lambda timeout: gradlane.declare({"d": ones()}, timeout=timeout),
    "undeclare": lambda timeout: gradlane.undeclare([], timeout=timeout),
    "allgather": lambda timeout: gradlane.allgather(b"x", timeout=timeout),
    "reduce_scatter": lambda timeout: gradlane.reduce_scatter(ones(), ones(), "rs", timeout=timeout),
    "init": lambda timeout: gradlane.init(timeout=timeout),
}


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, -math.inf, "5", "soon", [1]], ids=str)
@pytest.mark.parametrize("call", BY_TIMEOUT)
def test_timeouts(call, timeout):
    with pytest.raises(InvalidArgumentError, match=r"^timeout=.*give seconds"):
        BY_TIMEOUT[call](timeout)


@pytest.mark.parametrize("timeout", [None, 5, 2.5, math.inf, np.float32(3)], ids=str)
def test_timeouts_that_are_right(timeout):
    assert gradlane.push_pull(ones(), "t", timeout=timeout).tolist() == [1.0] * 3


@pytest.mark.parametrize("priority", [2**70, -(2**70), 2**31, -(2**31), 1.5, "high"], ids=str)
@pytest.mark.parametrize("grouped", [False, True])
def test_priorities(priority, grouped):
    with pytest.raises(InvalidArgumentError, match=r"^priority=.*only the order matters"):
        if grouped:
            gradlane.grouped_push_pull([ones()], "g", priority=priority)
        else:
            gradlane.push_pull(ones(), "p", priority=priority)


@pytest.mark.parametrize("priority", [None, 0, -5, 2**30, -(2**30), np.int64(7)], ids=str)
def test_priorities_that_are_right(priority):
    assert gradlane.push_pull(ones(), "p", priority=priority).tolist() == [1.0] * 3
    assert gradlane.grouped_push_pull([ones(), ones()], "g", priority=priority)[1].tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: gradlane.push_pull(ones(), True, "z"), r"push_pull\(\) takes buffer, name by position and got 3.*by name"),
        (lambda: gradlane.push_pull_async(ones(), True, "z"), r"push_pull_async\(\) takes buffer, name"),
        (lambda: gradlane.grouped_push_pull([ones()], "z", True), r"takes buffers, name by position"),
        (lambda: gradlane.broadcast(ones(), 0, "b", 3), r"broadcast\(\) takes buffer, root_rank, name"),
        (lambda: gradlane.broadcast(ones(), "zero"), "root_rank='zero' is no rank"),
        (lambda: gradlane.declare([ones()]), r"declare\(list\); give buffers by name"),
        (lambda: gradlane.push_pull(ones(), True), "name=True cannot name a tensor"),
        (lambda: gradlane.push_pull(ones(), "c", compression="fp16"), r"use Compression\.fp16"),
    ],
)
def test_calls_that_were_meant_otherwise(call, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        call()


@pytest.mark.parametrize("compression", [Compression.none, Compression.fp16, Compression.bf16], ids=lambda c: c.codec)
def test_compression_of_plain_buffers(compression):
    name = f"c.{compression.codec}"
    assert gradlane.push_pull(ones(), name, compression=compression).tolist() == [1.0] * 3
    assert gradlane.push_pull_async(ones(), name, compression=compression).wait().tolist() == [1.0] * 3
    assert gradlane.grouped_push_pull([ones()], f"g.{name}", compression=compression)[0].tolist() == [1.0] * 3
