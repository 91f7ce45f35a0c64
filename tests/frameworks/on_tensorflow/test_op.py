"""The native ops by themselves: what `gradlane.tensorflow` builds on."""

import gradlane
import numpy as np
import pytest
import tensorflow as tf
from gradlane._reduction import Reduction
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError
from gradlane.tensorflow import _native
from processes import run_python

ROUTES = ("local", "shm", "quic")


def test_the_native_ops_load():
    ops = _native.load()
    assert callable(ops.gradlane_submit) and callable(ops.gradlane_wait)


@pytest.mark.parametrize("call", ["eager", "graph"])
@pytest.mark.workers(2)
@pytest.mark.over(*ROUTES)
def test_eight_tensors_are_reduced_in_one_step(call):
    dtypes = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "int8", "uint8"]
    step = tf.Variable(0, dtype=tf.int64)

    def reduce():
        step.assign_add(1)
        mine = [tf.cast(tf.fill([3, i + 1], gradlane.rank() + i), dtype) for i, dtype in enumerate(dtypes)]
        return push_pull(mine, [f"{call} {dtype}" for dtype in dtypes], step, op="sum")

    reduce = tf.function(reduce) if call == "graph" else reduce
    for _ in range(3):
        for i, (total, dtype) in enumerate(zip(reduce(), dtypes, strict=True)):
            assert (total.dtype, total.shape) == (dtype, (3, i + 1))
            np.testing.assert_array_equal(tf.cast(total, tf.float64), 2 * i + 1)


@pytest.mark.workers(2)
@pytest.mark.over(*ROUTES)
def test_reductions_weights_and_roots_arrive():
    mine = tf.constant([1.0, 5.0]) * (gradlane.rank() + 1)

    def reduced(op, **more):
        return push_pull([mine], [f"reduction {op}"], 0, op=op, **more)[0].numpy().tolist()

    assert reduced("mean") == [1.5, 7.5]
    assert reduced("max") == [2.0, 10.0]
    assert reduced("min", priority=-3) == [1.0, 5.0]
    assert reduced("weighted_mean", weight=float(3 * gradlane.rank())) == [2.0, 10.0]
    assert reduced("broadcast", root=1) == [2.0, 10.0]
    assert reduced("sum", codec="fp16", timeout=5.0) == [3.0, 15.0]


@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_a_constant_is_submitted_in_every_step():
    """TensorFlow's optimizer would run the op once and keep its result, if `step` were constant too."""
    step = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def reduce():
        return push_pull([tf.ones([4])] * 2, ["constant a", "constant b"], step, op="sum")

    before = gradlane.metrics()["push_bytes"]
    for _ in range(5):
        for total in reduce():
            np.testing.assert_array_equal(total, 2.0)
    assert gradlane.metrics()["push_bytes"] - before == 5 * 2 * 4 * 4


@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_nothing_is_copied():
    before = gradlane.metrics()["copied_bytes"]
    push_pull([tf.ones([1 << 20])], ["large"], 0)
    assert gradlane.metrics()["copied_bytes"] == before


@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_a_tensor_without_elements_and_a_scalar_keep_their_shapes():
    empty, scalar = push_pull([tf.zeros([2, 0, 3]), tf.constant(4.0)], ["empty", "scalar"], 0)
    assert empty.shape == (2, 0, 3)
    assert (scalar.shape, float(scalar)) == ((), 4.0)


@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_a_handle_is_waited_for_once():
    tensor = tf.ones([2])
    handle = _native.submit(tensor, "twice", 0)
    _native.wait([handle], [tensor])
    with pytest.raises(FailedPreconditionError, match="waited for already"):
        _native.wait([handle], [tensor])
    with pytest.raises(InvalidArgumentError, match="123456789 is no handle"):
        _native.wait([tf.constant(123456789, tf.int64)], [tensor])


@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_wrong_types_are_refused_in_words():
    with pytest.raises(InvalidArgumentError, match=r"of complex64 is not in the list of allowed values.*uint8$"):
        _native.submit(tf.ones([2], tf.complex64), "complex", 0)
    with pytest.raises(InvalidArgumentError, match="result 0 is float, not double"):
        _native.wait([_native.submit(tf.ones([2]), "narrow", 0)], [tf.ones([2], tf.float64)])


@pytest.mark.parametrize("call", ["eager", "graph"])
@pytest.mark.workers(2)
@pytest.mark.over("local", "quic")
def test_a_mismatch_is_the_typed_error_on_every_worker(call):
    mine = tf.ones([2 + gradlane.rank()])

    def reduce():
        return push_pull([tf.ones([5]), mine], [f"good {call}", f"bad {call}"], 0)

    reduce = tf.function(reduce) if call == "graph" else reduce
    with pytest.raises(MismatchError) as caught, _native.typed_errors():
        reduce()
    assert (caught.value.tensor, caught.value.field, set(caught.value.ranks)) == (f"bad {call}", "shape", {0, 1})
    # The job goes on.
    np.testing.assert_array_equal(push_pull([tf.ones([5])], [f"good {call}"], 0)[0], 1.0)


@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_memory_of_steps_that_are_cut_off_comes_back():
    """A step that fails elsewhere never waits; what it has submitted must not stay for ever."""

    step = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def cut_off():
        handle = _native.submit(tf.ones([1 << 20]), "abandoned", step)
        with tf.control_dependencies([handle]):
            tf.debugging.assert_equal(tf.strings.length(tf.strings.as_string(handle)), 0)
        return _native.wait([handle], [tf.ones([1 << 20])])

    for _ in range(20):
        with pytest.raises(tf.errors.InvalidArgumentError):
            cut_off()
        gradlane.barrier("cut off")
    resident = resident_bytes()
    for _ in range(40):
        with pytest.raises(tf.errors.InvalidArgumentError):
            cut_off()
        gradlane.barrier("cut off")
    assert resident_bytes() - resident < 40 * 4 << 20, "each step has submitted 4 MiB and received as much"


def test_before_init_and_after_shutdown_the_error_says_what_to_call():
    ended = run_python(
        """
import gradlane, tensorflow as tf
from gradlane.tensorflow import _native
tensor, step = tf.ones([2]), tf.Variable(0, dtype=tf.int64)
reduce = tf.function(lambda: _native.wait([_native.submit(tensor, "w", step)], [tensor]))
def attempt(call):
    try:
        with _native.typed_errors():
            call()
    except gradlane.NotInitializedError as error:
        print(f"refused: {error}")
attempt(lambda: _native.submit(tensor, "w", step))
gradlane.init()
print("reduced:", reduce()[0].numpy().tolist())
gradlane.shutdown()
attempt(reduce)
gradlane.init()
print("reduced:", reduce()[0].numpy().tolist())
"""
    )
    assert ended.code == 0, ended.output
    refused = "refused: this process takes part in no job; call gradlane.init() first"
    told = [line for line in ended.output.splitlines() if line.startswith(("refused", "reduced"))]
    assert told == [refused, "reduced: [1.0, 1.0]", refused, "reduced: [1.0, 1.0]"], ended.output


def push_pull(tensors, names, step, **reduction):
    how = Reduction(**reduction)
    handles = [_native.submit(tensor, name, step, how) for tensor, name in zip(tensors, names, strict=True)]
    return _native.wait(handles, tensors)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
