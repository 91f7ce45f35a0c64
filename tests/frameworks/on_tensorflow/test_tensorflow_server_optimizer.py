"""`ServerOptimizer`: variables that live on servers, against the same training in a single process."""

import copy

import gradlane
import gradlane.tensorflow as gl
import keras
import numpy as np
import pytest
import tensorflow as tf
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError, UnsupportedError
from trainings import TOLERANCE, batches, deviation, loss_of, mine, mlp, samples

pytestmark = [pytest.mark.workers(2, servers=2), pytest.mark.over("quic")]

STEPS = 10


def test_sync_is_training_by_one_worker_with_the_mean_gradient():
    model, alone = mlp(seed=gl.rank()), mlp(seed=0)
    optimizer = gl.ServerOptimizer(model.trainable_variables, gl.rules.SGD(lr=0.1, momentum=0.9), mode=gl.modes.Sync())
    assert deviation(model, alone) == 0, "all begin with the variables of worker 0"
    plain = keras.optimizers.SGD(0.1, momentum=0.9)
    for step, whole in enumerate(batches(samples(), STEPS)):
        outcome = optimizer.apply_gradients(gradients(model, mine(whole)))
        assert outcome.fates == {"accepted": 4} and outcome.tick.step == step + 1
        plain.apply_gradients(gradients(alone, whole))
        assert deviation(model, alone) <= TOLERANCE


def test_a_worker_alone_in_mode_async_trains_as_the_plain_optimizer_does():
    model, alone = mlp(seed=gl.rank()), mlp(seed=0)
    optimizer = gl.ServerOptimizer(model.trainable_variables, gl.rules.SGD(lr=0.1, momentum=0.9, nesterov=True))
    if gl.rank() == 0:
        plain = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
        for whole in batches(samples(), STEPS):
            outcome = optimizer.apply_gradients(gradients(model, whole))
            assert outcome.fates == {"accepted": 4} and outcome.tick is None
            plain.apply_gradients(gradients(alone, whole))
        assert deviation(model, alone) <= TOLERANCE
    gl.barrier("it has trained")
    optimizer.pull()
    gathered = gl.allgather([weights.tolist() for weights in model.get_weights()])
    assert gathered[0] == gathered[1]


def test_variables_without_a_gradient_take_over_the_present_values_and_sparse_gradients_become_dense():
    table, rest, half = tf.Variable(tf.ones((3, 2))), tf.Variable(5.0 + gl.rank()), tf.Variable(tf.ones(2, tf.bfloat16))
    optimizer = gl.ServerOptimizer([table, rest, half], gl.rules.SGD(lr=1.0), mode=gl.modes.Sync())
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [0, 2, 2])) + tf.reduce_sum(tf.cast(half, tf.float32))
    sparse, none, dense = tape.gradient(loss, [table, rest, half])
    assert isinstance(sparse, tf.IndexedSlices) and none is None
    optimizer.apply_gradients(zip([sparse, none, dense], [table, rest, half], strict=True))
    assert table.numpy().tolist() == [[0.0] * 2, [1.0] * 2, [-1.0] * 2]
    assert rest.numpy() == 5.0 and half.numpy().tolist() == [0.0] * 2


def test_micro_batches_are_sent_together_and_a_tail_counts_as_what_it_is():
    variable, rare = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = gl.ServerOptimizer([variable, rare], gl.rules.SGD(lr=1.0), mode=gl.modes.Sync(), accumulate=2)
    assert optimizer.apply_gradients([(tf.constant([1.0]), variable), (tf.constant([8.0]), rare)], samples=3) is None
    assert optimizer.apply_gradients([(tf.constant([5.0]), variable)]).fates == {"accepted": 2}
    assert variable.numpy().tolist() == [-2.0] and rare.numpy().tolist() == [-6.0]
    optimizer.apply_gradients([(tf.constant([1.0 + gl.rank()]), variable)])
    optimizer.flush()
    assert variable.numpy().tolist() == [-3.5]
    with pytest.raises(InvalidArgumentError, match="samples=-1"):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)], samples=-1)
    with pytest.raises(InvalidArgumentError, match="accumulate=0"):
        gl.ServerOptimizer([variable], gl.rules.SGD(lr=1.0), name="never", accumulate=0)


def test_a_step_that_waited_too_long_sends_nothing_again():
    variable = tf.Variable([0.0])
    optimizer = gl.ServerOptimizer([variable], gl.rules.SGD(lr=1.0), mode=gl.modes.Sync(), name="held", timeout=0.5)
    one = [(tf.constant([1.0 + gl.rank()]), variable)]
    if gl.rank() == 0:
        with pytest.raises(gradlane.TimeoutError, match="worker 1"):
            optimizer.apply_gradients(one)
    gl.barrier("worker 0 was held")
    if gl.rank() == 1:
        optimizer.apply_gradients(one)
        optimizer.leave()
    else:
        assert optimizer.apply_gradients(one).tick.step == 1
    assert variable.numpy().tolist() == [-1.5]
    gl.barrier("the round is closed")
    if gl.rank() == 0:
        optimizer.apply_gradients(one)
        assert variable.numpy().tolist() == [-2.5], "it waits no more for a worker that has left"


def test_averages_that_the_rule_keeps_change_no_variable():
    variable = tf.Variable([0.0])
    optimizer = gl.ServerOptimizer([variable], gl.rules.SGD(lr=1.0, ema=gl.rules.EMA(0.5)), mode=gl.modes.Sync())
    optimizer.apply_gradients([(tf.ones(1), variable)])
    [average] = optimizer.averages("ema")
    assert average.numpy().tolist() == [-0.5] and variable.numpy().tolist() == [-1.0]
    with pytest.raises(InvalidArgumentError, match='give "ema" or "window"'):
        optimizer.averages("mean")


def test_another_rule_mode_or_model_is_told_to_all_workers():
    rank, sgd, one = gl.rank(), gl.rules.SGD(lr=0.1), [tf.Variable([1.0])]
    with pytest.raises(MismatchError, match=r"worker 0 has the rule sgd:lr=0\.1.*worker 1 has sgd:lr=0\.2"):
        gl.ServerOptimizer(one, gl.rules.SGD(lr=0.1 * (1 + rank)))
    with pytest.raises(MismatchError, match="mode ssp:bound=0.*ssp:bound=1"):
        gl.ServerOptimizer(one, sgd, mode=gl.modes.SSP(rank))
    with pytest.raises(MismatchError, match=r"worker 0 has variable 0, float32 \[2\], worker 1 has variable 0, float32 \[3\]"):
        gl.ServerOptimizer([tf.Variable(tf.ones(2 + rank))], sgd)
    with pytest.raises(InvalidArgumentError, match=r"variable 0 \(Variable:0\) is int32"):
        gl.ServerOptimizer([tf.Variable(1.0 if rank else 1)], sgd)


def test_what_cannot_be_is_refused_by_name():
    sgd, first, second = gl.rules.SGD(lr=0.1), tf.Variable([1.0, 1.0], name="first"), tf.Variable([1.0], name="second")
    for variables, rule, mode, why in [
        ([first], keras.optimizers.SGD(0.1), None, "gradlane.rules"),
        ([first], sgd, "ssp", "mode='ssp'"),
        ([], sgd, None, "nothing to train"),
        ([first, first], sgd, None, "comes twice"),
        ([tf.constant(1.0)], sgd, None, "no variable of TensorFlow"),
        ([tf.Variable(tf.ones((0, 2)))], sgd, None, r"has the shape \[0, 2\]"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            gl.ServerOptimizer(variables, rule, mode=mode)
    optimizer = gl.ServerOptimizer([first, second], sgd, mode=gl.modes.Sync())
    two, one = tf.ones(2), tf.ones(1)
    for given, why in [
        ([two, one], "give zip"),
        ([(None, first), (None, second)], "no variable has a gradient"),
        ([(two, first), (two, first)], r"variable 0 \(first:0\) has two gradients"),
        ([(two, tf.Variable([1.0, 1.0], name="other"))], r"variable 0 \(other:0\) of grads_and_vars is not of this optimizer"),
        ([(one, first)], r"gradient of variable 0 \(first:0\) is float32 \[1\], and its value float32 \[2\]"),
        ([(tf.cast(two, tf.float64), first)], r"is float64 \[2\], and its value float32 \[2\]"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            optimizer.apply_gradients(given)

    @tf.function
    def compiled():
        optimizer.apply_gradients([(two, first)])

    with pytest.raises(UnsupportedError, match="let the function return the gradients"):
        compiled()
    with pytest.raises(FailedPreconditionError, match="not copied"):
        copy.deepcopy(optimizer)
    optimizer.apply_gradients([(two, first), (one, second)])
    np.testing.assert_allclose(first.numpy(), [0.9] * 2, rtol=1e-6, err_msg="nothing of these was sent")


def gradients(model, data):
    """Pairs of gradients and variables."""
    with tf.GradientTape() as tape:
        loss = loss_of(model, *map(tf.constant, data))
    return zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
