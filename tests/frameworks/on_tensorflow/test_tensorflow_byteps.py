"""BytePS scripts for TensorFlow and Keras, unchanged but for what loads `byteps`."""

import importlib
import inspect
import sys

import gradlane.compat.byteps as _  # noqa: F401  so that `import byteps` works
import gradlane.tensorflow as gl
import numpy as np
import pytest
import tensorflow as tf
from gradlane import _recent
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from processes import over, run_all

UNNAMED = "gradlane.compat.byteps.tensorflow._unnamed"

SIGNATURES = {
    "tensorflow": {
        "init": "(lazy=True)",
        "suspend": "()",
        "resume": "(num_workers, num_servers, global_rank, context=None)",
        "get_pushpull_speed": "()",
        "push_pull": "(tensor, scope='', average=None, device_dense='', device_sparse='', compression=none, op=None, "
        "enable_async=False)",
        "broadcast": "(tensor, root_rank, scope='', name=None, is_variable=True)",
        "broadcast_variables": "(variables, root_rank, scope='')",
        "broadcast_global_variables": "(root_rank)",
        "BroadcastGlobalVariablesHook": "(root_rank, device='')",
        "DistributedOptimizer": "(optimizer, name=None, use_locking=False, device_dense='', device_sparse='', "
        "compression=none, sparse_as_dense=False, backward_passes_per_step=1, op=Average)",
        "DistributedGradientTape": "(gradtape, device_dense='', device_sparse='', compression=none, "
        "sparse_as_dense=False, op=Average)",
    },
    "keras": {
        "DistributedOptimizer": "(optimizer, name=None, device_dense='', device_sparse='', compression=none, "
        "sparse_as_dense=False)",
        "broadcast_global_variables": "(root_rank)",
        "push_pull": "(value, name=None, average=True)",
        "broadcast": "(value, root_rank, name=None)",
        "load_model": "(filepath, custom_optimizers=None, custom_objects=None, compression=none)",
        "callbacks.BroadcastGlobalVariablesCallback": "(root_rank, device='')",
        "callbacks.MetricAverageCallback": "(device='')",
        "callbacks.LearningRateScheduleCallback": "(multiplier, start_epoch=0, end_epoch=None, staircase=True, "
        "momentum_correction=True, steps_per_epoch=None, initial_lr=None)",
        "callbacks.LearningRateWarmupCallback": "(warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, "
        "verbose=0, initial_lr=None)",
    },
}
"""Of BytePS 0.2.5."""

OF_TENSORFLOW = """
import sys
import tensorflow as tf
from sklearn.datasets import load_digits
import byteps.tensorflow as bps

bps.init()
tf.random.set_seed(bps.rank())
images, labels = load_digits(return_X_y=True)
dataset = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
dataset = dataset.repeat().shuffle(2000, seed=bps.rank()).batch(64)
model = tf.keras.Sequential([
    tf.keras.layers.Dense(64, activation="relu"),
    tf.keras.layers.Dense(10, activation="softmax"),
])
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.003 * bps.size())

@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)
    tape = bps.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        bps.broadcast_variables(model.variables, root_rank=0)
        bps.broadcast_variables(opt.variables, root_rank=0)
    return loss_value

for batch, (images, labels) in enumerate(dataset.take(60)):
    loss_value = training_step(images, labels, batch == 0)
total = bps.push_pull(tf.add_n([tf.reduce_sum(v) for v in model.trainable_variables]), average=True)
assert total.numpy() == tf.add_n([tf.reduce_sum(v) for v in model.trainable_variables]).numpy(), "all have the same"
assert loss_value < 0.6, loss_value
print(f"{sys.argv[1]} of rank {bps.rank()} of {bps.size()} ended well", flush=True)
"""

OF_KERAS = """
import sys
import keras
from sklearn.datasets import load_digits
import MODULE as bps

bps.init()
keras.utils.set_random_seed(bps.rank())
images, labels = load_digits(return_X_y=True)
model = keras.Sequential([
    keras.Input((64,)),
    keras.layers.Dense(64, activation="relu"),
    keras.layers.Dense(10, activation="softmax"),
])
opt = bps.DistributedOptimizer(keras.optimizers.Adam(0.003 * bps.size()))
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])
callbacks = [
    bps.callbacks.BroadcastGlobalVariablesCallback(0),
    bps.callbacks.MetricAverageCallback(),
    bps.callbacks.LearningRateWarmupCallback(warmup_epochs=2, initial_lr=0.003 * bps.size(), verbose=1),
    bps.callbacks.LearningRateScheduleCallback(start_epoch=3, multiplier=0.1, initial_lr=0.003 * bps.size()),
]
if bps.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.weights.h5", save_weights_only=True))
history = model.fit(images / 16, labels, batch_size=64, callbacks=callbacks, epochs=4, verbose=0)
assert history.history["accuracy"][-1] > 0.9, history.history
assert bps.push_pull(bps.rank(), average=False) == bps.size() * (bps.size() - 1) // 2
print(f"{sys.argv[1]} of rank {bps.rank()} of {bps.size()} ended well", flush=True)
"""


def plain(signature):
    """A signature without annotations, in which compressors and operations have their names."""
    parameters = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if hasattr(default, "codec"):
            default = Named(default.codec)
        elif isinstance(default, gl.ReduceOp):
            default = Named(default.name.capitalize())
        parameters.append(parameter.replace(annotation=inspect.Parameter.empty, default=default))
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class Named(str):
    def __repr__(self):
        return str(self)


@pytest.mark.parametrize(
    ("module", "name"),
    [(f"byteps.{module}", name) for module, names in SIGNATURES.items() for name in names]
    + [("byteps.tensorflow.keras", name) for name in SIGNATURES["keras"]],
)
def test_arguments_and_defaults_are_those_of_byteps(module, name):
    folder, _, function = f"{module}.{name}".rpartition(".")
    theirs = SIGNATURES[module.rpartition(".")[2]][name]
    assert plain(inspect.signature(getattr(importlib.import_module(folder), function))) == theirs


@pytest.mark.over("quic")
@pytest.mark.parametrize("module", ["byteps.tensorflow", "byteps.keras", "byteps.tensorflow.keras"])
def test_a_script_runs_as_it_is(tmp_path, transport, module):
    script = tmp_path / "train.py"
    script.write_text(OF_TENSORFLOW if module == "byteps.tensorflow" else OF_KERAS.replace("MODULE", module))
    as_module = [sys.executable, "-m", "gradlane.compat.byteps", str(script), "training"]
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", *as_module]
    [ended] = run_all([(command, {"OMP_NUM_THREADS": "1", **over(transport)})], timeout=180, cwd=tmp_path)
    assert ended.code == 0, ended.output
    for rank in range(2):
        assert f"training of rank {rank} of 2 ended well" in ended.output
    if module != "byteps.tensorflow":
        assert "finished gradual learning rate warmup to 0.006" in ended.output
        assert len(list(tmp_path.glob("checkpoint-*"))) == 4


SESSION = """
import tensorflow as tf
tf.compat.v1.disable_eager_execution()
import byteps.tensorflow as bps
bps.init()
weights = tf.compat.v1.get_variable("weights", initializer=tf.constant([1.0 + bps.rank(), 2.0]))
loss = tf.reduce_sum(weights * weights)
optimizer = bps.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.25))
step = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_or_create_global_step())
hooks = [bps.BroadcastGlobalVariablesHook(1), tf.compat.v1.train.StopAtStepHook(last_step=2)]
with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
    while not session.should_stop():
        session.run(step)
        if not session.should_stop():
            now = session.run(weights)
# Both begin with the weights of rank 1, and halve them in each step.
assert now.tolist() == [1.0, 1.0], now
print(f"rank {bps.rank()} ended well")
"""


@pytest.mark.over("quic")
def test_sessions_of_tensorflow_1_run_with_the_hook(tmp_path, transport):
    script = tmp_path / "train.py"
    script.write_text(SESSION)
    as_module = [sys.executable, "-m", "gradlane.compat.byteps", str(script)]
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "--", *as_module]
    [ended] = run_all([(command, {"OMP_NUM_THREADS": "1", **over(transport)})], timeout=120, cwd=tmp_path)
    assert ended.code == 0, ended.output
    assert ended.output.count("ended well") == 2, ended.output


@pytest.mark.over("quic")
@pytest.mark.workers(2, settings={"step_timeout": "100s"})
def test_every_form_of_the_calls():
    bps, keras = importlib.import_module("byteps.tensorflow"), importlib.import_module("byteps.keras")
    mine = tf.constant([1.0 + bps.rank(), 4.0])

    @tf.function
    def graph():
        return bps.push_pull(mine), bps.push_pull(mine * 2, "scope/", False, compression=bps.Compression.fp16)

    for results in (graph(), (bps.push_pull(mine, op=bps.Average), bps.push_pull(mine * 2, average=False))):
        assert [result.numpy().tolist() for result in results] == [[1.5, 4.0], [6.0, 16.0]]
    assert bps.broadcast(tf.constant([np.nan, bps.rank()]), 1).numpy().tolist()[1] == 1.0
    assert bps.broadcast(tf.constant([bps.rank() == 1]), 1).numpy().tolist() == [True]
    variable = tf.Variable(float(bps.rank()))
    bps.broadcast(variable, 1, name="one")
    assert variable.numpy() == 1.0
    assert keras.push_pull(2.0 + bps.rank()) == 2.5
    assert keras.broadcast(np.array([bps.rank()]), 1, "ranks").tolist() == [1]
    with pytest.raises(UnsupportedError, match="enable_async"):
        bps.push_pull(mine, enable_async=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BYTEPS_ENABLE_ASYNC", "1")
        for door in (bps.DistributedOptimizer, bps.DistributedGradientTape, keras.DistributedOptimizer):
            with pytest.raises(UnsupportedError, match=r"BYTEPS_ENABLE_ASYNC=1 .*ServerOptimizer"):
                door(None)
    with pytest.raises(FailedPreconditionError, match="broadcast_variables"):
        bps.broadcast_global_variables(0)
    with pytest.raises(FailedPreconditionError, match=r"BroadcastGlobalVariablesCallback\(0\)"):
        keras.broadcast_global_variables(0)
    with pytest.raises(InvalidArgumentError, match="takes backward_passes_per_step=1"):
        bps.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=2)


@pytest.mark.over("quic")
@pytest.mark.workers(2, settings={"step_timeout": "100s"})
def test_eager_calls_of_any_number_of_lengths_use_up_no_names(monkeypatch):
    bps, names = importlib.import_module("byteps.tensorflow"), importlib.import_module(UNNAMED)
    monkeypatch.setattr(names, "_recent", names.RecentNames(8))
    ended, undeclare = [], _recent._undeclare

    def noted(leaving):
        late = undeclare(leaving)
        ended.extend(name.present for name in leaving if name not in late)
        return late

    monkeypatch.setattr(_recent, "_undeclare", noted)
    for length in [*range(1, 40), *range(1, 40)]:
        mine = tf.fill([length], 1.0 + bps.rank())
        assert bps.push_pull(mine).numpy().tolist() == [1.5] * length
        with tf.GradientTape() as tape:
            tape.watch(mine)
            loss = tf.reduce_sum(bps.push_pull(mine, "loss/"))
        assert tape.gradient(loss, mine).numpy().tolist() == [1.0] * length
        assert bps.broadcast(mine, 1).numpy().tolist() == [2.0] * length
        rows = tf.IndexedSlices(tf.ones([length, 2]), tf.range(length), [40, 2])
        assert len(bps.push_pull(rows).indices) == 2 * length
    assert len(set(ended)) >= 2 * 3 * 39 - 3 * 8, "all but those that are kept"
