"""Sums of tensors, eagerly and in functions."""

import random
import threading
import time

import gradlane.tensorflow as gl
import numpy as np
import pytest
import tensorflow as tf
from gradlane.errors import InvalidArgumentError, MismatchError, UnsupportedError

pytestmark = [
    pytest.mark.over("quic"),
    pytest.mark.workers(2, settings={"step_timeout": "100s"}),
    pytest.mark.usefixtures("implementation"),
]

BOTH = pytest.mark.parametrize("made", [lambda function: function, tf.function], ids=["eager", "graph"])

DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "int8", "uint8"]


@BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type_is_averaged(made, dtype):
    @made
    def mean(tensor):
        return gl.push_pull(tensor, f"mean of {dtype}")

    for round in range(3):
        tensor = tf.cast(tf.reshape(tf.range(6), (2, 3)) + 2 * gl.rank() + round, dtype)
        result = mean(tensor)
        assert result.dtype == dtype and result.shape == (2, 3)
        expected = np.arange(6).reshape(2, 3) + 1 + round
        assert (tf.cast(result, tf.float32).numpy() == expected).all()


@BOTH
def test_every_operation_has_its_result(made):
    @made
    def all_of(x):
        return [
            gl.push_pull(x, "sum", op=gl.Sum),
            gl.push_pull(x, "old sum", average=False),
            gl.push_pull(x, "min", op=gl.Min),
            gl.push_pull(x, "max", op=gl.Max),
            gl.push_pull(x, "weighted", op=gl.WeightedAverage, weight=1.0 + 2 * gl.rank()),
            gl.push_pull(x, "narrow", compression=gl.Compression.fp16),
        ]

    results = all_of(tf.constant([1.0 + gl.rank(), 5.0]))
    expected = [[3, 10], [3, 10], [1, 5], [2, 5], [1.75, 5], [1.5, 5]]
    assert [result.numpy().tolist() for result in results] == expected


@BOTH
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (300_000,)])
def test_every_shape_comes_back(made, shape):
    @made
    def total(tensor):
        return gl.push_pull(tensor, f"of shape {shape}", op=gl.Sum)

    for _ in range(2):
        result = total(tf.fill(shape, 1.0 + gl.rank()))
        assert result.shape == shape and (result.numpy() == 3).all()


def test_a_dimension_may_be_known_only_when_the_function_runs():
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def total(tensor):
        result = gl.push_pull(tensor, "of some rows", op=gl.Sum)
        assert result.shape.as_list() == [None, 2]
        return result

    assert total(tf.ones((5, 2))).numpy().tolist() == [[2, 2]] * 5


@BOTH
def test_the_gradient_of_an_average_is_the_average_of_the_gradients(made):
    @made
    def gradients(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = gl.push_pull(x * x * (gl.rank() + 1.0), "x") * (gl.rank() + 1.0)
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    first, second = gradients(tf.constant([2.0]))
    # The upstream gradients 1 and 2 average to 1.5; times 2x times the local factor.
    assert first.numpy().tolist() == [1.5 * 4 * (gl.rank() + 1)]
    assert second.numpy().tolist() == [1.5 * 2 * (gl.rank() + 1)]


@BOTH
def test_a_maximum_has_no_gradient(made):
    @made
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gl.push_pull(x, "maximum", op=gl.Max)
        return tape.gradient(y, x)

    with pytest.raises(InvalidArgumentError, match="max has no gradient; use tf.stop_gradient"):
        gradient(tf.constant([1.0]))


@BOTH
def test_rows_of_all_workers_are_gathered(made):
    @made
    def gathered(values, indices):
        return gl.push_pull(tf.IndexedSlices(values, indices, tf.constant([9, 2])), "rows", op=gl.Sum)

    by_rank = [([0, 5], [1, 5]), ([], [5, 5, 5]), ([], [])]
    for rows in by_rank:
        own = rows[gl.rank()]
        result = gathered(tf.fill((len(own), 2), 1.0 + gl.rank()), tf.constant(own, tf.int64))
        assert isinstance(result, tf.IndexedSlices)
        expected = np.zeros((9, 2))
        for rank in range(2):
            for row in rows[rank]:
                expected[row] += 1 + rank
        assert (tf.convert_to_tensor(result).numpy() == expected).all()


@pytest.mark.parametrize(("field", "width", "dtype"), [("shape", 3, tf.float32), ("dtype", 2, tf.float64)])
def test_rows_of_other_kinds_are_an_error_on_all_workers(field, width, dtype):
    values = tf.ones((1, width), dtype) if gl.rank() else tf.ones((1, 2))
    rows = tf.IndexedSlices(values, tf.constant([0]), tf.constant([9, values.shape[1]]))
    with pytest.raises(MismatchError, match=f"{field} is .* on rank 0 and .* on rank 1"):
        gl.push_pull(rows, "rows of two kinds", op=gl.Sum)


@BOTH
def test_variables_get_the_bits_of_the_root(made):
    values = [[np.nan, -0.0], True, np.uint32(7), np.float16(3), np.complex64(1 + 2j), np.int16([-5, 5])]
    variables = [tf.Variable(value if gl.rank() == 1 else tf.zeros_like(value)) for value in values]
    made(lambda: gl.broadcast_variables(variables, root_rank=1))()
    for variable, value in zip(variables, values, strict=True):
        assert variable.numpy().tobytes() == tf.constant(value).numpy().tobytes()


@BOTH
def test_a_constant_gradient_is_averaged_in_every_step(made):
    weights = tf.Variable([1.0, 2.0])

    @made
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights)  # its gradient is a constant of the graph
        [gradient] = gl.DistributedGradientTape(tape).gradient(loss, [weights])
        weights.assign_sub(gradient)

    submissions = gl.metrics()["submissions"]
    for _ in range(50):
        step()
    assert weights.numpy().tolist() == [1 - 50, 2 - 50]
    assert gl.metrics()["submissions"] - submissions >= 50


@BOTH
def test_two_hundred_variables_and_two_threads_do_not_deadlock(made):
    assert tf.config.threading.get_inter_op_parallelism_threads() in (0, 2)
    variables = [tf.Variable(tf.fill((1 + number % 7,), 1.0)) for number in range(200)]
    order = variables if gl.rank() == 0 else variables[::-1]

    @made
    def step(scale):
        with tf.GradientTape() as tape:
            # The two workers compute, and thus submit, their gradients in opposite orders.
            loss = tf.add_n([tf.reduce_sum(variable * variable) * scale for variable in order])
        return gl.DistributedGradientTape(tape).gradient(loss, variables)

    for _ in range(5):
        gradients = step(tf.constant(1.0 + gl.rank()))
        assert all((gradient.numpy() == 3).all() for gradient in gradients)


def test_gradients_are_sent_while_others_are_still_computed():
    first, last = tf.Variable([1.0]), tf.Variable([2.0])
    submitted = []

    @tf.custom_gradient
    def patient(x):
        def gradient(upstream):
            return tf.numpy_function(until_sent, [upstream], tf.float32, stateful=False)

        return tf.identity(x), gradient

    def until_sent(upstream):
        due = time.monotonic() + 60
        while gl.metrics()["submissions"] < submitted[-1] + 2:  # the kinds of gradients, and that of `last`
            assert time.monotonic() < due, "no gradient was sent before all were computed"
            time.sleep(0.001)
        return upstream

    @tf.function
    def step(scale):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(patient(first) * last * scale)
        return gl.DistributedGradientTape(tape).gradient(loss, [first, last])

    for _ in range(3):
        gl.barrier("begin a step")  # so that nothing else is submitted meanwhile
        submitted.append(gl.metrics()["submissions"])
        gradients = step(tf.constant(1.0 + 2 * gl.rank()))
        assert [gradient.numpy().tolist() for gradient in gradients] == [[4.0], [2.0]]


def test_calls_one_after_the_other_do_not_deadlock_in_a_graph():
    @tf.function
    def sums(x):
        return tf.add_n([gl.push_pull(x, f"call {number}", op=gl.Sum) for number in range(20)])

    for _ in range(3):
        assert sums(tf.constant([1.0])).numpy().tolist() == [40.0]


@tf.custom_gradient
def patient(x):
    """The same value, and the same gradient, after a while that differs between workers and calls."""

    def later(value):
        time.sleep(random.Random(f"{value} on {gl.rank()}").random() / 100)
        return value

    def same(x):
        return tf.ensure_shape(tf.numpy_function(later, [x], tf.float32, stateful=False), x.shape)

    return same(x), same


def test_iterations_of_a_loop_are_not_mixed():
    """TensorFlow runs independent iterations side by side, in another order on each worker."""

    @tf.function
    def means(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            mean = tf.map_fn(lambda element: patient(gl.push_pull(patient(element), "iteration")), x)
        return mean, tape.gradient(mean, x, output_gradients=x)

    mine = tf.range(16.0) + 100.0 * gl.rank()
    for _ in range(2):
        for result in means(mine):
            assert result.numpy().tolist() == [50.0 + number for number in range(16)]


def test_calls_of_one_function_are_not_mixed():
    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def mean(x):
        return gl.push_pull(patient(x), "call of a function")

    @tf.function
    def means(x):
        return tf.stack([mean(element) for element in tf.unstack(x)])

    mine = tf.range(8.0) + 100.0 * gl.rank()
    for _ in range(2):
        assert means(mine).numpy().tolist() == [50.0 + number for number in range(8)]


CHANGES = {
    "assign_add": lambda variable: variable.assign_add(tf.fill(variable.shape, 100.0)),
    "scatter_update": lambda variable: variable.scatter_nd_update([[0], [1]], [100.0, 100.0]),
}


@BOTH
@pytest.mark.parametrize("change", CHANGES)
def test_a_variable_may_change_while_its_value_is_reduced(made, change, request):
    variable = tf.Variable(tf.fill([300_000], 1.0 + gl.rank()))
    total = made(lambda: gl.push_pull(variable, request.node.nodeid, op=gl.Sum))
    assert (total().numpy() == 3).all()
    gl.barrier(f"{request.node.nodeid} begins")
    if gl.rank() == 0:
        submissions, results = gl.metrics()["submissions"], []
        reducing = threading.Thread(target=lambda: results.append(total().numpy()))
        reducing.start()
        due = time.monotonic() + 60
        while gl.metrics()["submissions"] == submissions:
            assert time.monotonic() < due, "nothing was submitted"
            time.sleep(0.001)
        CHANGES[change](variable)
        assert variable.numpy()[0] >= 100
        gl.barrier(f"{request.node.nodeid} has changed")
        reducing.join()
        assert (results[0] == 3).all(), "what was submitted was changed"
    else:
        gl.barrier(f"{request.node.nodeid} has changed")
        assert (total().numpy() == 3).all()


def test_two_lists_of_variables_in_one_function_are_told_apart():
    mine = [tf.Variable([float(number + 10 * gl.rank())]) for number in range(1, 5)]
    first, second = mine[:2], mine[2:]

    @tf.function
    def broadcast():
        gl.broadcast_variables(first, root_rank=1)
        gl.broadcast_variables(second, root_rank=1)

    broadcast()
    assert [variable.numpy().tolist() for variable in first + second] == [[11.0], [12.0], [13.0], [14.0]]


def test_two_tapes_in_one_function_are_told_apart():
    first, second = tf.Variable([1.0, 1.0]), tf.Variable([1.0, 1.0])

    @tf.function
    def step(scale):
        gradients = []
        for variable, factor in ((first, 1.0), (second, 10.0)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * scale * factor)
            gradients += gl.DistributedGradientTape(tape).gradient(loss, [variable])
        return gradients

    for _ in range(3):
        results = step(tf.constant(1.0 + 2 * gl.rank()))
        assert [result.numpy().tolist() for result in results] == [[2.0, 2.0], [20.0, 20.0]]


def test_one_worker_may_trace_a_function_again():
    weights = tf.Variable([1.0, 2.0])

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights) * tf.cast(tf.shape(inputs)[0], tf.float32)
        return gl.DistributedGradientTape(tape).gradient(loss, [weights])[0]

    for rows in (4, 4, 4 if gl.rank() == 0 else 2, 4):
        mean = step(tf.zeros((rows, 3))).numpy()
    assert mean.tolist() == [4.0, 4.0]


def test_a_variable_that_no_worker_uses_has_no_gradient():
    used, unused = tf.Variable([1.0]), tf.Variable([1.0])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(used * (1.0 + gl.rank()))
        gradients = gl.DistributedGradientTape(tape).gradient(loss, {"used": used, "unused": unused})
        assert gradients["unused"] is None
        return gradients["used"]

    assert step().numpy().tolist() == [1.5]


@BOTH
def test_what_is_not_dense_is_refused_with_advice(made):
    cases = [
        (tf.ragged.constant([[1.0], [2.0, 3.0]]), "ragged tensor .* use tensor.to_tensor"),
        (tf.sparse.from_dense([[1.0, 0.0]]), "SparseTensor .* use tf.sparse.to_dense"),
        (tf.constant([True]), "dtype bool cannot be reduced; view it as uint8"),
        (tf.constant(["text"]), "dtype string cannot be reduced; supported"),
    ]
    for value, message in cases:
        with pytest.raises(InvalidArgumentError, match=message):
            made(lambda value=value: gl.push_pull(value, "refused"))()
    with pytest.raises(InvalidArgumentError, match="cannot name a tensor"):
        gl.push_pull(tf.constant([1.0]), "")


def test_a_compiled_function_is_refused_with_advice():
    @tf.function(jit_compile=True)
    def compiled(x):
        return gl.push_pull(x, "compiled")

    with pytest.raises(UnsupportedError, match="compiled by XLA.*jit_compile=False"):
        compiled(tf.constant([1.0]))


def test_wrapping_twice_is_refused():
    tape = gl.DistributedGradientTape(tf.GradientTape())
    assert isinstance(tape, tf.GradientTape)
    with pytest.raises(InvalidArgumentError, match="wrap it once"):
        gl.DistributedGradientTape(tape)
    with pytest.raises(InvalidArgumentError, match="int is no tf.GradientTape"):
        gl.DistributedGradientTape(3)
    with pytest.raises(InvalidArgumentError, match="gradients have no MAX"):
        gl.DistributedGradientTape(tf.GradientTape(), op=gl.Max)
