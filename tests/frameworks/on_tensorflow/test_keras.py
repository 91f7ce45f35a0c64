"""Keras models on several workers: mixed precision, saved models, callbacks."""

import os
import subprocess
import sys

import gradlane.keras as gk
import gradlane.tensorflow as gl
import keras
import numpy as np
import pytest
import tensorflow as tf
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from trainings import BATCH, TOLERANCE, adam, assert_equal_everywhere, compiled, deviation, mlp, samples, sgd, share
from workers import IN_WORKER

pytestmark = [
    pytest.mark.over("quic"),
    pytest.mark.workers(2, settings={"step_timeout": "100s"}),
]

FIT = {"epochs": 2, "shuffle": False, "verbose": 0}


@pytest.fixture(autouse=True)
def policy_of_no_other_test():
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture
def mixed_float16():
    keras.mixed_precision.set_global_policy("mixed_float16")


@pytest.fixture
def folder(tmp_path):
    """One folder for all workers."""
    if not IN_WORKER:
        return str(tmp_path)
    return gl.broadcast_object(str(tmp_path), 0, "folder", plain=True)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_workers_skip_the_same_steps_if_one_has_an_infinite_gradient(mixed_float16, implementation, eager, request):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, dtype="mixed_float16")])
    optimizer = gk.DistributedOptimizer(keras.optimizers.SGD(0.1))
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    compiled(model, optimizer, run_eagerly=eager)
    assert model.optimizer is optimizer, "Keras does not wrap it again"
    inputs, labels = share(samples(dtype="float32"))
    if gl.rank() == 1:
        inputs[0, 0] = 60000.0  # times a scaled gradient it leaves the range of float16, on this worker only
    model.fit(inputs, labels, batch_size=BATCH // gl.size(), **FIT)
    scales = gl.allgather(float(optimizer.dynamic_scale), "scales", plain=True)
    assert scales[0] == scales[1] < optimizer.initial_scale
    assert np.isfinite(model.get_weights()[0]).all()
    assert_equal_everywhere(model, request.node.nodeid)


def test_a_scaled_loss_around_a_distributed_optimizer_is_refused(mixed_float16):
    keras.mixed_precision.set_global_policy("float32")
    optimizer = gk.DistributedOptimizer(sgd())
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    with pytest.raises(InvalidArgumentError, match=r"before gradients are averaged.*set_global_policy"):
        model.compile(optimizer=optimizer)


def test_gradients_do_not_accumulate_under_a_scaled_loss(mixed_float16):
    with pytest.raises(UnsupportedError, match="mixed_bfloat16, or backward_passes_per_step=1"):
        gk.DistributedOptimizer(sgd(), backward_passes_per_step=2)


def test_arguments_of_the_optimizer_are_checked():
    with pytest.raises(InvalidArgumentError, match=r"builtins\.int is no optimizer of Keras 3"):
        gk.DistributedOptimizer(3)
    optimizer = gk.DistributedOptimizer(sgd())
    assert isinstance(optimizer, keras.optimizers.SGD)
    with pytest.raises(InvalidArgumentError, match="wrap it once"):
        gk.DistributedOptimizer(optimizer)
    with pytest.raises(InvalidArgumentError, match="give at least 1"):
        gk.DistributedOptimizer(sgd(), backward_passes_per_step=0)
    with pytest.raises(InvalidArgumentError, match="contradicts gradient_accumulation_steps=3"):
        gk.DistributedOptimizer(keras.optimizers.SGD(gradient_accumulation_steps=3), backward_passes_per_step=2)
    built = sgd()
    built.build(mlp().trainable_variables)
    with pytest.raises(FailedPreconditionError, match="built already"):
        gk.DistributedOptimizer(built, backward_passes_per_step=2)


def test_a_model_that_xla_compiles_is_refused_with_advice():
    model = compiled(mlp("float32"), gk.DistributedOptimizer(sgd()), jit_compile=True)
    with pytest.raises(UnsupportedError, match=r"model\.compile\(jit_compile=False\)"):
        model.fit(*share(samples(dtype="float32")), batch_size=8, **FIT)


WITHOUT_GRADLANE = """
import sys
sys.modules["gradlane"] = None  # so that importing it fails
import keras
model = keras.saving.load_model(sys.argv[1])
kind = type(model.optimizer)
print(kind.__module__, kind.__name__, int(model.optimizer.iterations), float(model.optimizer.learning_rate))
"""


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_saved_model_loads_without_gradlane_and_goes_on_with_it(policy, folder, request):
    keras.mixed_precision.set_global_policy(policy)
    model, data = mlp(policy), share(samples(dtype="float32"))
    compiled(model, gk.DistributedOptimizer(keras.optimizers.Adam(0.003)))
    model.fit(*data, batch_size=BATCH // gl.size(), **FIT)
    path = os.path.join(folder, f"{policy}.keras")
    if gl.rank() == 0:
        model.save(path)
        command = [sys.executable, "-c", WITHOUT_GRADLANE, path]
        ended = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=90, check=False)
        kind = "adam Adam" if policy == "float32" else "loss_scale_optimizer LossScaleOptimizer"
        assert f"{kind} 8 0.003" in ended.stdout, ended.stderr
    gl.barrier("saved")
    again = gk.load_model(path)
    assert type(again.optimizer).__mro__[1:] == type(model.optimizer).__mro__[1:]
    for each in (model, again):
        each.fit(*data, batch_size=BATCH // gl.size(), **FIT)
    assert deviation(again, model) == 0
    assert_equal_everywhere(again, request.node.nodeid)


def test_metrics_of_an_epoch_are_averages_over_workers():
    model = compiled(mlp("float32"), gk.DistributedOptimizer(sgd()), metrics=["accuracy"])
    inputs, labels = share(samples(dtype="float32"))
    seen = []
    local = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    callbacks = [local, gk.callbacks.MetricAverageCallback()]
    history = model.fit(inputs, labels, batch_size=8, callbacks=callbacks, **FIT).history
    for name in ("loss", "accuracy"):
        theirs = gl.allgather([float(logs[name]) for logs in seen], f"all {name}", plain=True)
        np.testing.assert_allclose(history[name], np.mean(theirs, axis=0), rtol=1e-6)


def test_only_rank_0_writes_checkpoints(folder):
    model = compiled(mlp("float32"), gk.DistributedOptimizer(sgd()))
    path = os.path.join(folder, f"of-rank-{gl.rank()}.weights.h5")
    checkpoint = gk.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model.fit(*share(samples(dtype="float32")), batch_size=8, callbacks=[checkpoint], **FIT)
    gl.barrier("checkpoints")
    assert os.path.exists(path) == (gl.rank() == 0)


def test_the_learning_rate_warms_up_and_then_follows_its_schedule():
    model = compiled(mlp("float32"), gk.DistributedOptimizer(keras.optimizers.SGD(0.4, momentum=0.9)))
    rates = []
    callbacks = [
        gk.callbacks.LearningRateWarmupCallback(warmup_epochs=2, initial_lr=0.4),
        gk.callbacks.LearningRateScheduleCallback(lambda epoch: 0.1**epoch, start_epoch=2, initial_lr=0.4),
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
        ),
    ]
    data = share(samples(dtype="float32"))
    history = model.fit(*data, batch_size=8, callbacks=callbacks, **FIT | {"epochs": 4}).history
    warmup = [0.2 + 0.2 * batch / 8 for batch in range(1, 9)]
    np.testing.assert_allclose(rates, [*warmup, *[0.004] * 4, *[0.0004] * 4], rtol=1e-5)
    np.testing.assert_allclose(history["lr"], [0.3, 0.4, 0.004, 0.0004], rtol=1e-5)


def test_a_changed_rate_changes_the_momentum_with_it():
    model, reference = mlp(), mlp()
    data = share(samples())
    change = gk.callbacks.LearningRateScheduleCallback(lambda epoch: 1.0 if epoch == 0 else 0.5)
    compiled(model, gk.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)))
    model.fit(*data, batch_size=8, callbacks=[change], **FIT)
    compiled(reference, gk.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)))
    reference.fit(*data, batch_size=8, **FIT | {"epochs": 1})
    reference.optimizer.learning_rate = 0.05
    for momentum in reference.optimizer.momentums:
        momentum.assign(momentum * 0.5)
    reference.fit(*data, batch_size=8, **FIT | {"epochs": 1})
    assert deviation(model, reference) <= TOLERANCE


def test_a_schedule_of_keras_is_kept_and_excludes_the_callback():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)
    model = compiled(mlp("float32"), gk.DistributedOptimizer(keras.optimizers.SGD(schedule)))
    data = share(samples(dtype="float32"))
    model.fit(*data, batch_size=8, **FIT)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 * 0.5 ** (8 / 4))
    with pytest.raises(InvalidArgumentError, match="a schedule of Keras sets the learning rate"):
        model.fit(*data, batch_size=8, callbacks=[gk.callbacks.LearningRateWarmupCallback(1)], **FIT)


def test_a_model_of_unknown_shapes_is_equal_after_its_first_batch(request):
    keras.utils.set_random_seed(gl.rank())
    model = compiled(keras.Sequential([keras.layers.Dense(10)]), gk.DistributedOptimizer(adam()))
    broadcast = gk.callbacks.BroadcastGlobalVariablesCallback(1)
    model.fit(*share(samples(dtype="float32")), batch_size=8, callbacks=[broadcast], **FIT)
    assert_equal_everywhere(model, request.node.nodeid)


def test_gradients_are_clipped_after_they_are_averaged():
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer = gk.DistributedOptimizer(keras.optimizers.SGD(1.0, clipnorm=1.0))
    # The average has norm 0 in one component; local clipping would leave (1, -1) / 2 of a length of its own.
    optimizer.apply([tf.constant([[30.0, 0.0], [0.0, 40.0]][gl.rank()])], [variable])
    np.testing.assert_allclose(variable.numpy(), [-0.6, -0.8], rtol=1e-6)
