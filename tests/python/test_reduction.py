"""The value that says how a tensor is reduced, and the names in it."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError
from typing import get_args

import gradlane
import gradlane.torch as gl
import pytest
import torch
from gradlane import Compression, ProcessSet, ReduceOp, _core
from gradlane._buffers import ITEM_BYTES
from gradlane._reduction import AVERAGE, NativeOp, Reduction, broadcast_of, reduction_of
from gradlane.errors import InvalidArgumentError
from gradlane.torch._tensors import NAMES

OF_PAIR = Reduction("sum", priority=4, codec="bf16", process_set=ProcessSet([0, 1]), timeout=2.5)


def test_python_has_the_names_of_the_native_module():
    names = _core.names_table()
    assert list(get_args(NativeOp)) == names["ops"]
    assert [op.native for op in ReduceOp] == ["mean", *[name for name in names["ops"] if name not in ("mean", "broadcast")]]
    assert [getattr(Compression, name).codec for name in names["codecs"]] == names["codecs"]
    assert {*names["codecs"], "auto"} == {name for name in vars(Compression) if not name.startswith("_")}
    assert ITEM_BYTES == names["dtypes"] == {name: dtype.itemsize for dtype, name in NAMES.items()}


@pytest.mark.parametrize("wrong", [{"op": "product"}, {"codec": "fp8"}])
def test_a_name_that_there_is_not_is_refused_with_those_there_are(wrong):
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(wrong.values()))}.*use one of .*, "):
        _core.Session.local({}).agree_on_empty("x", "float32", (0,), Reduction(**wrong))


def test_a_compressor_with_parameters_is_made_by_a_call():
    assert Compression.int8(block=1024, feedback=True).codec == "int8:block=1024,feedback=1"
    assert Compression.bf16(feedback=True)(feedback=False).codec == "bf16:feedback=0"
    assert Compression.int8() == Compression.int8
    assert Compression.int4(stochastic=True).codec == "int4:stochastic=1"
    assert Compression.topk(feedback=True, momentum=0.9).codec == "topk:feedback=1,momentum=900000"
    wrong = Reduction(codec=Compression.fp16(level=3).codec)
    with pytest.raises(InvalidArgumentError, match="level=3.*for example fp16:feedback=1"):
        _core.Session.local({}).agree_on_empty("x", "float32", (0,), wrong)


def test_a_reduction_is_a_frozen_value():
    with pytest.raises(FrozenInstanceError):
        OF_PAIR.priority = 5
    same = Reduction("sum", priority=4, codec="bf16", process_set=ProcessSet([1, 0]), timeout=2.5)
    assert (OF_PAIR, hash(OF_PAIR)) == (same, hash(same))
    assert OF_PAIR == copy.deepcopy(OF_PAIR) == pickle.loads(pickle.dumps(OF_PAIR))
    assert OF_PAIR != AVERAGE == Reduction()


def test_what_is_derived_differs_in_what_was_asked_for_alone():
    pair, rest = ProcessSet([0, 1]), {"codec": "bf16", "process_set": ProcessSet([0, 1]), "timeout": 2.5}
    assert OF_PAIR.at(0) is OF_PAIR
    assert OF_PAIR.at(6) == Reduction("sum", priority=-2, **rest)
    assert OF_PAIR.with_priority(9) == Reduction("sum", priority=9, **rest)
    assert OF_PAIR.to(0) == Reduction("sum", priority=4, receiver=0, **rest)
    assert OF_PAIR.weighted(0.0) == Reduction("weighted_mean", weight=0.0, priority=4, **rest)
    assert OF_PAIR.weighted(0.0).summed() == Reduction("sum", priority=4, **rest)
    assert broadcast_of(1, process_set=pair, receiver=0) == Reduction("broadcast", root=1, process_set=pair, receiver=0)


def test_the_options_of_a_call_become_its_fields():
    everything = reduction_of(ReduceOp.SUM, None, None, 4, Compression.bf16, ProcessSet([0, 1]), 2.5)
    assert everything == OF_PAIR
    assert reduction_of(average=True) is reduction_of(gradlane.Average) is reduction_of() is AVERAGE
    assert reduction_of(average=False) == Reduction("sum")
    assert reduction_of(gradlane.WeightedAverage, weight=3.0) == Reduction("weighted_mean", weight=3.0)
    assert [Reduction(timeout=timeout).timeout_ms for timeout in (None, 0, 1e-9, 2.5)] == [0, 1, 1, 2500]


@pytest.mark.parametrize(
    "call",
    [
        gradlane.push_pull,
        gradlane.push_pull_async,
        gradlane.grouped_push_pull,
        gradlane.grouped_push_pull_async,
        gl.push_pull,
        gl.push_pull_async,
        gl.push_pull_,
        gl.push_pull_async_,
        gl.grouped_push_pull,
        gl.grouped_push_pull_async,
        gl.grouped_push_pull_,
        gl.grouped_push_pull_async_,
    ],
)
def test_the_functions_of_users_have_the_same_options_with_the_same_defaults(call):
    options = {name: option.default for name, option in inspect.signature(reduction_of).parameters.items()}
    given = {name: option.default for name, option in inspect.signature(call).parameters.items() if option.kind is option.KEYWORD_ONLY}
    beside = given.keys() - {"out", "version"}
    assert beside >= options.keys() - {"process_set"}
    assert {name: given[name] for name in beside} == {name: options[name] for name in beside}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "sum"}, "op='sum' is no reduction; use gradlane.Sum"),
        ({"op": gradlane.Max, "average": True}, "average=True contradicts op=MAX; give one of the two"),
        ({"weight": 2.0}, "op=AVERAGE takes no weight; use op=gradlane.WeightedAverage"),
        ({"priority": 2**31}, "priority=2147483648 is out of range"),
        ({"priority": 0.5}, "priority=0.5; give an integer"),
        ({"compression": "fp16"}, "compression='fp16' is no compressor; use Compression.fp16"),
        ({"process_set": [0]}, r"process_set=\[0\] is no process set; give gradlane.ProcessSet"),
        ({"timeout": -1.0}, "timeout=-1.0 is no time"),
    ],
)
@pytest.mark.parametrize("call", [gradlane.push_pull, gradlane.push_pull_async, gl.push_pull_, gl.grouped_push_pull])
def test_wrong_options_are_refused_by_every_function_alike(call, options, message):
    tensors = [torch.ones(2)] if call is gl.grouped_push_pull else torch.ones(2)
    with pytest.raises(InvalidArgumentError, match=message):
        call(tensors, "refused", **options)
