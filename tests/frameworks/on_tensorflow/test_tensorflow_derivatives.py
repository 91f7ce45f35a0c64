"""Derivatives through what is reduced are those of a single process, or a typed error; no graph is cut in silence.

The loss of worker 0 is the sum of the cubes of x, that of worker 1 twice as much. So the mean is 1.5 times it.
"""

import gradlane.compat.byteps.tensorflow as bps
import gradlane.tensorflow as gl
import numpy as np
import pytest
import tensorflow as tf
from gradlane.errors import InvalidArgumentError, UnsupportedError

pytestmark = [
    pytest.mark.over("quic"),
    pytest.mark.workers(2, settings={"step_timeout": "60s"}),
    pytest.mark.usefixtures("implementation"),
]

BOTH = pytest.mark.parametrize("made", [lambda function: function, tf.function], ids=["eager", "graph"])

START = np.float32([1, 2])


@BOTH
@pytest.mark.parametrize(("op", "factor", "summands"), [(gl.Average, 1.5, 1), (gl.Sum, 3.0, 2)], ids=["average", "sum"])
def test_a_penalty_on_a_reduced_gradient_has_its_gradient(made, op, factor, summands):
    x, unused = tf.Variable(START), tf.Variable(START)

    @made
    def step():
        with tf.GradientTape() as outer:
            gradient, _ = reduced_gradient(x, unused, op=op, name=f"penalty {op.name}")
            penalty = tf.reduce_sum(gradient**2)
        return gradient, outer.gradient(penalty, x)

    for _ in range(2):
        gradient, of_penalty = step()
        np.testing.assert_allclose(gradient, factor * 3 * START**2)
        # The penalties of all workers are equal; each worker multiplies with its own second derivative.
        of_gradient = 2 * factor * 3 * START**2 * summands
        np.testing.assert_allclose(of_penalty, of_gradient * scale() * 6 * START)


@BOTH
def test_the_averaged_gradient_of_a_loss_with_a_penalty_is_that_of_one_process(made):
    x = tf.Variable(START)

    @made
    def step():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = scale() * tf.reduce_sum(x**3)
            [gradient] = gl.DistributedGradientTape(inner, name="first").gradient(loss, [x])
            total = loss + tf.reduce_sum(gradient**2)
        return gl.DistributedGradientTape(outer, name="second").gradient(total, [x])[0]

    np.testing.assert_allclose(step(), 4.5 * START**2 + 81 * START**3)


def third_derivative(x):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as middle:
            [gradient] = reduced_gradient(x, name="one")
        [second] = gl.DistributedGradientTape(middle, name="two").gradient(gradient, [x])
    return gl.DistributedGradientTape(outer, name="three").gradient(second, x)


def tape_that_records_itself(x):
    with gl.DistributedGradientTape(tf.GradientTape(persistent=True), name="itself") as tape:
        gradient = tape.gradient(scale() * tf.reduce_sum(x**3), x)
    return tape.gradient(gradient, x)


def of_a_function(x):
    with tf.GradientTape() as tape:
        y = tf.function(lambda: gl.push_pull(scale() * x**3, "function"))()
    return tape.gradient(y, x)


def of_a_custom_gradient(x):
    @tf.custom_gradient
    def squared(y):
        return y * y, lambda upstream: gl.push_pull(2 * y * upstream, "custom")

    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = scale() * squared(x)
        gradient = inner.gradient(y, x)
    return outer.gradient(gradient, x)


def of_a_recomputed_function(x):
    with tf.GradientTape() as tape:
        y = tf.recompute_grad(lambda y: gl.push_pull(scale() * y**3, "recomputed"))(x.read_value())
    return tape.gradient(y, x)


def of_a_branch(x):
    with tf.GradientTape() as tape:
        y = tf.cond(x[0] > 0, lambda: gl.push_pull(scale() * x**3, "branch"), lambda: x.read_value())
    return tape.gradient(y, x)


def of_a_branch_with_a_tape(x):
    with tf.GradientTape() as tape:
        y = tf.cond(x[0] > 0, lambda: reduced_gradient(x, name="tape in a branch")[0], lambda: x.read_value())
    return tape.gradient(y, x)


def of_a_loop(x):
    def body(step, y):
        return step + 1, gl.push_pull(scale() * y, "loop")

    with tf.GradientTape() as tape:
        _, y = tf.while_loop(lambda step, _: step < 3, body, (0, x.read_value()))
    return tape.gradient(y, x)


def of_a_map(x):
    with tf.GradientTape() as tape:
        y = tf.map_fn(lambda element: gl.push_pull(scale() * element**3, "map"), x.read_value())
    return tape.gradient(y, x)


def jacobian(x):
    with tf.GradientTape() as tape:
        y = scale() * x**3
    return gl.DistributedGradientTape(tape, name="jacobian").jacobian(y, [x])[0]


def jacobian_of_a_batch(x):
    with tf.GradientTape() as tape:
        rows = tf.reshape(x, (1, 2))
        y = scale() * rows**3
    return gl.DistributedGradientTape(tape, name="batch").batch_jacobian(y, rows)


VALUES = {
    third_derivative: lambda: 1.5 * 6 * np.ones(2),
    tape_that_records_itself: lambda: 1.5 * 6 * START,
    of_a_function: lambda: scale() * 3 * START**2,
    of_a_custom_gradient: lambda: scale() * 2 * np.ones(2),
    of_a_recomputed_function: lambda: scale() * 3 * START**2,
    of_a_branch: lambda: scale() * 3 * START**2,
    of_a_branch_with_a_tape: lambda: scale() * 6 * START,
    of_a_loop: lambda: scale() * 1.5**2 * np.ones(2),
    of_a_map: lambda: scale() * 3 * START**2,
    jacobian: lambda: np.diag(1.5 * 3 * START**2),
    jacobian_of_a_batch: lambda: np.diag(1.5 * 3 * START**2)[None],
}


@BOTH
@pytest.mark.parametrize("derivative", VALUES, ids=lambda derivative: derivative.__name__)
def test_a_derivative_is_that_of_one_process(made, derivative):
    x = tf.Variable(START)
    np.testing.assert_allclose(made(lambda: derivative(x))(), VALUES[derivative](), rtol=1e-6)


def test_a_product_with_the_hessian_is_that_of_one_process():
    x = tf.Variable(START)
    with tf.autodiff.ForwardAccumulator(x, tf.ones(2)) as accumulator:
        [gradient] = reduced_gradient(x, name="hessian")
        mean = gl.push_pull(scale() * x**3, "forward")
        compiled = tf.function(lambda y: gl.push_pull(scale() * y**3, "forward in a function"))(x.read_value())
    np.testing.assert_allclose(accumulator.jvp(gradient), 1.5 * 6 * START)
    np.testing.assert_allclose(accumulator.jvp(mean), 1.5 * 3 * START**2)
    np.testing.assert_allclose(accumulator.jvp(compiled), 1.5 * 3 * START**2)


def gradient_of(reduce):
    def gradient(x):
        with tf.GradientTape() as tape:
            y = reduce(x)
        return tape.gradient(y, x)

    return gradient


def of_gathered_rows(x):
    slices = tf.IndexedSlices(tf.gather(x, [0, 1]), tf.constant([0, 1]), tf.constant([2]))
    return gl.push_pull(slices, "rows").values


def of_a_sparse_gradient(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(x, [0, 1]) ** 3)
    return gl.DistributedGradientTape(tape, name="sparse").gradient(loss, x).values


REFUSED = {
    "maximum": (InvalidArgumentError, "max has no gradient", gradient_of(lambda x: gl.push_pull(x, "m", op=gl.Max))),
    "broadcast": (UnsupportedError, "broadcast has no gradient", gradient_of(lambda x: bps.broadcast(x + 0, 0))),
    "complex broadcast": (
        UnsupportedError,
        "broadcast has no gradient",
        gradient_of(lambda x: tf.math.real(bps.broadcast(tf.complex(x, x), 0))),
    ),
    "rows": (UnsupportedError, "rows .* were gathered.*sparse_as_dense", gradient_of(of_gathered_rows)),
    "sparse gradient": (UnsupportedError, "rows .* were gathered.*sparse_as_dense", gradient_of(of_a_sparse_gradient)),
    "vectorized map": (
        UnsupportedError,
        "use tf.map_fn",
        gradient_of(lambda x: tf.vectorized_map(lambda element: gl.push_pull(element, "v"), x.read_value())),
    ),
}


@BOTH
@pytest.mark.parametrize("case", REFUSED)
def test_a_derivative_that_cannot_be_is_a_typed_error(made, case):
    kind, words, derivative = REFUSED[case]
    x = tf.Variable(START)
    with pytest.raises(kind, match=words):
        made(lambda: derivative(x))()


def test_a_forward_accumulator_inside_of_a_function_is_refused():
    x = tf.constant(START)

    @tf.function
    def product(how):
        with tf.autodiff.ForwardAccumulator(x, tf.ones(2)) as accumulator:
            y = how(x)
        return accumulator.jvp(y)

    with pytest.raises(UnsupportedError, match="ForwardAccumulator inside of tf.function"):
        product(lambda x: gl.push_pull(x, "accumulator"))


def scale():
    return 1.0 + gl.rank()


def reduced_gradient(x, *others, **options):
    with tf.GradientTape() as tape:
        loss = scale() * tf.reduce_sum(x**3)
    return gl.DistributedGradientTape(tape, **options).gradient(loss, [x, *others])
