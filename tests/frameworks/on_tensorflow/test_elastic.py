"""Workers that come to a training with TensorFlow, or with Keras, get its variables, and the others lose nothing."""

import pytest
from newcomers import BEGIN, check_that_a_difference_is_an_error, check_that_one_comes, check_that_workers_come_and_go

KERAS = (
    BEGIN
    + """
import gradlane.keras as gk
import keras

keras.utils.set_random_seed(7 if has_come else 0)  # a newcomer begins with other weights
count, inputs = keras.Input((1,), name="count"), keras.Input((3,), name="inputs")
hidden = keras.layers.Dense(5 if is_unfit else 4, activation="tanh")(inputs)
hidden = keras.layers.Dropout(0.1)(keras.layers.BatchNormalization()(hidden))
counted = keras.layers.Dense(1, use_bias=False, name="counted")(count)
model = keras.Model([count, inputs], keras.layers.Concatenate()([counted, keras.layers.Dense(1)(hidden)]))
optimizer = gk.DistributedOptimizer(keras.optimizers.SGD(RATE, momentum=1.0), op=gk.Sum)

def loss(_, outputs):
    return outputs[:, 0] + keras.ops.tanh(outputs[:, 1])

model.compile(optimizer=optimizer, loss=loss, jit_compile=keras.backend.backend() == "jax")
state.model = model

def digest():
    return digest_of(one.numpy() for one in [*model.trainable_variables, *optimizer.variables])

def momentum():
    [at] = [at for at, one in enumerate(model.trainable_variables) if "counted" in one.path]
    return -optimizer.momentums[at].numpy().item() / RATE

class Watches(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        begins(lambda: self.model and digest())
        if differs and who == 1 and own == 3:
            self.model.trainable_variables[0].assign(self.model.trainable_variables[0] + 1.0)

    def on_train_batch_end(self, batch, logs=None):
        if ends():
            self.model.stop_training = True

def batches():
    random = np.random.default_rng(who)
    while True:
        inputs = random.normal(size=(8, 3)).astype("float32")
        yield {"count": np.full((8, 1), 10.0**who, "float32"), "inputs": inputs}, inputs[:, :2]

callbacks = [gk.callbacks.BroadcastGlobalVariablesCallback(0), Watches(), gk.callbacks.ElasticCallback(state)]
trying(lambda: model.fit(batches(), steps_per_epoch=7, epochs=1_000_000, verbose=0, callbacks=callbacks))
check_end(digest, momentum)
"""
)

LOOP = (
    BEGIN
    + """
import gradlane.tensorflow as gl
import keras
import tensorflow as tf

keras.utils.set_random_seed(7 if has_come else 0)  # a newcomer begins with other weights
layers = [keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
model = keras.Sequential(layers)
own_variables = {
    "count": tf.Variable([float(has_come)]),
    "halves": [tf.Variable(tf.fill([6 if is_unfit else 5], tf.cast(has_come, tf.bfloat16)))],
}
trained = [*model.trainable_variables, own_variables["count"], *own_variables["halves"]]
optimizer = keras.optimizers.SGD(RATE, momentum=1.0)
optimizer.build(trained)
gl.broadcast_variables(trained)
state.model, state.optimizer, state.own = model, optimizer, own_variables
state.average, state.constant = [tf.Variable(tf.zeros(3)), {"rate": 0.5}], tf.constant([float(who)])

@tf.function
def step(inputs, count):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.tanh(model(inputs, training=True))) + count * own_variables["count"][0]
        loss += tf.reduce_mean(inputs) * tf.cast(tf.reduce_sum(own_variables["halves"][0]), tf.float32)
    gradients = gl.DistributedGradientTape(tape, op=gl.Sum).gradient(loss, trained)
    optimizer.apply(gradients, trained)
    average[0].assign(0.5 * average[0] + own_variables["count"])

def digest():
    return digest_of(one.numpy() for one in [*trained, *optimizer.variables, average[0]])

def momentum():
    return -optimizer.momentums[len(model.trainable_variables)].numpy().item() / RATE

def until_stopped():
    while not stopped:
        yield random.normal(size=(8, 3)).astype("float32")

def train():
    global stopped
    for inputs in elastic.steps(state, until_stopped()):
        begins(digest)
        if differs and who == 1 and own == 3:
            own_variables["halves"][0].assign_add(tf.ones(5, tf.bfloat16))
        step(tf.constant(inputs), tf.constant(10.0**who))
        stopped = ends()

average, random, stopped = state.average, np.random.default_rng(who), False
trying(train)
check_end(digest, momentum)
"""
)

BACKENDS = [pytest.param("tensorflow", id="tensorflow"), pytest.param("jax", id="jax")]


@pytest.mark.quick
@pytest.mark.over("shm")
def test_a_worker_comes_to_one_that_fits_a_model(transport, tmp_path):
    check_that_one_comes(tmp_path, transport, KERAS, first=1, env={"KERAS_BACKEND": "tensorflow"})


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("backend", BACKENDS)
def test_workers_come_and_go_while_keras_fits(backend, transport, tmp_path):
    if backend == "jax":
        pytest.importorskip("jax")
    check_that_workers_come_and_go(tmp_path, transport, KERAS, env={"KERAS_BACKEND": backend})


@pytest.mark.over("shm")
def test_a_worker_comes_to_one_that_fits_with_jax(transport, tmp_path):
    pytest.importorskip("jax")
    check_that_one_comes(tmp_path, transport, KERAS, first=1, env={"KERAS_BACKEND": "jax"})


@pytest.mark.over("shm")
@pytest.mark.parametrize("backend", BACKENDS)
def test_models_that_differ_are_an_error_when_a_worker_comes(backend, transport, tmp_path):
    if backend == "jax":
        pytest.importorskip("jax")
    check_that_a_difference_is_an_error(tmp_path, transport, KERAS, "model", env={"KERAS_BACKEND": backend})


@pytest.mark.quick
@pytest.mark.over("quic")
def test_a_worker_comes_to_one_with_a_loop_of_its_own(transport, tmp_path):
    check_that_one_comes(tmp_path, transport, LOOP, first=1)


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("operations", ["native", "fallback"])
def test_workers_come_and_go_in_a_loop_of_its_own(operations, transport, tmp_path):
    check_that_workers_come_and_go(tmp_path, transport, LOOP, tensorflow_op=operations)


@pytest.mark.over("shm")
def test_variables_that_differ_are_an_error_when_a_worker_comes(transport, tmp_path):
    check_that_a_difference_is_an_error(tmp_path, transport, LOOP, "own")
