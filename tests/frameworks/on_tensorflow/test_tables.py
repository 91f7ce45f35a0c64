"""`gradlane.keras.Embedding`: the embeddings of Keras with rows on the servers, which many workers train."""

from types import SimpleNamespace

import gradlane
import gradlane.keras as gk
import gradlane.tensorflow as gl
import keras
import numpy as np
import pytest
import tensorflow as tf
from gradlane import rules
from gradlane._table_rows import PASSES_MAX
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError, NotFiniteError, UnsupportedError
from gradlane.keras.embedding import HINT

pytestmark = [pytest.mark.workers(2, servers=2, settings={"step_timeout": "100s"}), pytest.mark.over("quic")]

DIM, BATCH, STEPS, RATE = 4, 8, 12, 0.1
IDS = np.array([3, 7, 1 << 20, (1 << 31) + 5, 1 << 40, (1 << 62) + 1, *range(100, 114)])
TOLERANCE = 1e-5
"""Of float32 near 1: sums come in another order."""


class DenseAdagrad(keras.optimizers.Adagrad):
    """Adagrad by its formula: that of Keras adds up the squares of sparse gradients of one row, and not the gradients."""

    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(gradient) for gradient in grads], trainable_variables)


RULES = {
    "SGD": (rules.SGD(lr=RATE), lambda: keras.optimizers.SGD(RATE)),
    "Adagrad": (
        rules.Adagrad(lr=RATE, initial_accumulator_value=0.1, eps=1e-7),
        lambda: DenseAdagrad(RATE, initial_accumulator_value=0.1, epsilon=1e-7),
    ),
}
EAGER = pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])


def own(name):
    """The name of a table that no other worker uses."""
    return f"{name} of worker {gradlane.rank()}"


def layer(name, rule=RULES["SGD"][0], **options):
    return gk.Embedding(output_dim=DIM, table=own(name), rule=rule, **options)


def rows_of(embedding, ids=IDS):
    """The present rows; makes none."""
    return embedding.table.look(np.asarray(ids))


def model_of(embedding, seed=5):
    """A small model of pairs of ids."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((2,), dtype="int64"), embedding, keras.layers.Flatten(), keras.layers.Dense(3)])


def peer_of(embedding, rows=None):
    """The layer of Keras with the same rows; its ids are their places in `IDS`."""
    peer = keras.layers.Embedding(len(IDS), DIM)
    peer.build()
    peer.set_weights([rows_of(embedding) if rows is None else rows])
    return peer


def samples(count, seed=2, ids=IDS):
    """Places of pairs of ids, with several pairs of each id, and what is to be learnt of them."""
    random = np.random.default_rng(seed)
    return random.integers(0, len(ids), (count, 2)), random.standard_normal((count, 3)).astype("float32")


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


def loss_of_batch(labels, outputs):
    """Its share of the mean over the batches of all workers."""
    return tf.reduce_sum(tf.square(labels - outputs)) / (3 * BATCH)


@pytest.mark.quick
@EAGER
@pytest.mark.parametrize("kind", RULES)
def test_fit_of_all_workers_is_that_of_one_process_with_the_joined_batches(kind, eager):
    """Each worker has ids of its own, so that nothing depends on who comes first; they share the dense layers."""
    check_fit(kind, eager)


@pytest.mark.workers(2, servers=1, settings={"step_timeout": "100s"})
def test_fit_is_that_of_one_process_with_one_server():
    check_fit("Adagrad", False)


def check_fit(kind, eager):
    rule, optimizer = RULES[kind]
    embedding = gk.Embedding(output_dim=DIM, table=f"fit {kind} {eager}", rule=rule)
    model = model_of(embedding)
    inner = gk.DistributedOptimizer(optimizer(), op=gl.Sum)
    model.compile(inner, loss_of_batch, run_eagerly=eager)
    peer = model_of(peer_of(embedding))
    peer.compile(optimizer(), loss_of_batch)
    peer.set_weights([*peer.layers[0].get_weights(), *model.layers[-1].get_weights()])
    half, share = len(IDS) // 2, BATCH // 2
    of_all = [samples(share * STEPS, seed, IDS[:half]) for seed in range(gl.size())]
    places, labels = of_all[gl.rank()]
    model.fit(IDS[places + half * gl.rank()], labels, batch_size=share, shuffle=False, verbose=0)
    joined = [
        np.concatenate([of[i][at : at + share] + (half * rank if i == 0 else 0) for rank, of in enumerate(of_all)])
        for at in range(0, share * STEPS, share)
        for i in (0, 1)
    ]
    peer.fit(np.concatenate(joined[::2]), np.concatenate(joined[1::2]), batch_size=BATCH, shuffle=False, verbose=0)
    gl.barrier("all have fitted")
    close(rows_of(embedding), peer.layers[0].get_weights()[0])
    close(model.layers[-1].get_weights()[0], peer.layers[-1].get_weights()[0])
    assert [weight.shape for weight in embedding.weights] == [()] and float(embedding.weights[0]) == 0
    gl.barrier("all have looked")


@EAGER
def test_steps_on_ids_that_all_workers_share_add_up_to_those_of_one_process(eager):
    """In a loop of one's own, where all wait for each other between reads and pushes."""
    embedding = gk.Embedding(output_dim=DIM, table=f"shared {eager}", rule=RULES["SGD"][0])
    peer, plain = peer_of(embedding), keras.optimizers.SGD(RATE)
    embedding.build()
    optimizer = gk.DistributedOptimizer(keras.optimizers.SGD(RATE), op=gl.Sum)

    def all_have_read():
        gl.barrier("all have read")
        return np.float32(0)

    def step(ids, labels):
        with tf.GradientTape() as tape:
            rows = embedding(ids, training=True)
            with tf.control_dependencies([rows]):
                waited = tf.numpy_function(all_have_read, [], tf.float32)
            outputs = tf.reduce_sum(rows, 1)[:, :3] + waited
            loss = loss_of_batch(labels, outputs)
        variables = embedding.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    compiled = step if eager else tf.function(step)
    for number in range(STEPS):
        places, labels = samples(BATCH, number)
        mine = slice(gl.rank() * BATCH // 2, (gl.rank() + 1) * BATCH // 2)
        compiled(tf.constant(IDS[places[mine]]), tf.constant(labels[mine]))
        gl.barrier("all have pushed")
        with tf.GradientTape() as tape:
            loss = loss_of_batch(labels, tf.reduce_sum(peer(places), 1)[:, :3])
        plain.apply_gradients(zip(tape.gradient(loss, peer.trainable_weights), peer.trainable_weights, strict=True))
    close(rows_of(embedding), peer.get_weights()[0])
    gl.barrier("all have looked")


@EAGER
def test_a_layer_that_is_used_twice_makes_one_step(eager):
    """By the rule of Adagrad, two steps would be another change than one by the sum."""
    rule, optimizer = RULES["Adagrad"]
    embedding = layer(f"twice {eager}", rule)
    peer = peer_of(embedding)
    models = []
    for shared, made in ((embedding, gk.DistributedOptimizer(optimizer())), (peer, optimizer())):
        left, right = (keras.Input((2,), dtype="int64") for _ in range(2))
        outputs = keras.layers.Flatten()(keras.layers.Multiply()([shared(left), shared(right)]))
        models.append(keras.Model([left, right], outputs))
        models[-1].compile(made, "mse", run_eagerly=eager)
    places = [samples(BATCH, seed)[0] for seed in (3, 4)]
    labels = np.ones((BATCH, 2 * DIM), np.float32)
    for model, ids in zip(models, ([IDS[of] for of in places], places), strict=True):
        model.fit(ids, labels, batch_size=BATCH // 2, epochs=3, shuffle=False, verbose=0)
    close(rows_of(embedding), peer.get_weights()[0])


@EAGER
def test_layers_of_one_table_make_one_step(eager):
    rule, optimizer = RULES["Adagrad"]
    layers = [layer(f"of two layers {eager}", rule) for _ in range(2)]
    peer = peer_of(layers[0])
    models = []
    for (first, second), made in ((layers, gk.DistributedOptimizer(optimizer())), ((peer, peer), optimizer())):
        inputs = keras.Input((2,), dtype="int64")
        outputs = keras.layers.Flatten()(keras.layers.Multiply()([first(inputs), second(inputs)]))
        models.append(keras.Model(inputs, outputs))
        models[-1].compile(made, "mse", run_eagerly=eager)
    places, labels = samples(BATCH)[0], np.ones((BATCH, 2 * DIM), np.float32)
    for model, ids in zip(models, (IDS[places], places), strict=True):
        model.fit(ids, labels, batch_size=BATCH // 2, epochs=3, shuffle=False, verbose=0)
    for one in layers:
        close(rows_of(one), peer.get_weights()[0])


@EAGER
def test_gradients_that_accumulate_are_sent_as_their_mean(eager):
    rule, optimizer = RULES["Adagrad"]
    embedding = layer(f"accumulated {eager}", rule)
    model, peer = model_of(embedding), model_of(peer_of(embedding))
    peer.layers[-1].set_weights(model.layers[-1].get_weights())
    model.compile(gk.DistributedOptimizer(optimizer(), backward_passes_per_step=2), "mse", run_eagerly=eager)
    peer.compile(optimizer(), "mse")
    places, labels = samples(BATCH * 4)
    model.fit(IDS[places], labels, batch_size=BATCH // 2, shuffle=False, verbose=0)
    peer.fit(places, labels, batch_size=BATCH, shuffle=False, verbose=0)
    close(rows_of(embedding), peer.layers[0].get_weights()[0])


def test_several_steps_in_one_execution_follow_each_other():
    rule, optimizer = RULES["SGD"]
    embedding = layer("several steps", rule)
    model, peer = model_of(embedding), model_of(peer_of(embedding))
    peer.layers[-1].set_weights(model.layers[-1].get_weights())
    model.compile(gk.DistributedOptimizer(optimizer()), "mse", steps_per_execution=4)
    peer.compile(optimizer(), "mse")
    places, labels = samples(BATCH * 8)
    # Both workers have the same batches, and so the same averages as one process.
    model.fit(IDS[places], labels, batch_size=BATCH, shuffle=False, verbose=0)
    peer.fit(places, labels, batch_size=BATCH, shuffle=False, verbose=0)
    close(rows_of(embedding), peer.layers[0].get_weights()[0])


def test_an_evaluation_makes_no_rows():
    embedding = layer("evaluated")
    model = model_of(embedding)
    model.compile(gk.DistributedOptimizer(keras.optimizers.SGD(RATE)), "mse")
    places, labels = samples(BATCH)
    looked = embedding(IDS[places])
    model.predict(IDS[places], verbose=0)
    model.evaluate(IDS[places], labels, verbose=0)
    assert embedding.table.stats().rows == 0
    embedding.trainable = False
    np.testing.assert_array_equal(embedding(IDS[places], training=True), looked)
    assert embedding.table.stats().rows == 0 and not model.layers[0].trainable_weights
    embedding.trainable = True
    np.testing.assert_array_equal(embedding(IDS[places], training=True), looked)
    assert embedding.table.stats().rows == len(np.unique(places))


def test_rows_begin_as_the_initializer_says():
    for initializer, (low, high), deviation in [
        ("zeros", (0, 0), 0.0),
        ("uniform", (-0.05, 0.05), 0.1 / 12**0.5),
        (keras.initializers.RandomUniform(-2, 2, seed=7), (-2, 2), 4 / 12**0.5),
        ("normal", (-1, 1), 0.05),
        (keras.initializers.RandomNormal(stddev=3.0), (-60, 60), 3.0),
    ]:
        name = f"begins {initializer if isinstance(initializer, str) else type(initializer).__name__} {high}"
        embedding = layer(name, embeddings_initializer=initializer)
        rows = rows_of(embedding, np.arange(2000))
        assert low <= rows.min() and rows.max() <= high
        assert rows.std() == pytest.approx(deviation, rel=0.05)
    same = [layer(f"seed {i}", embeddings_initializer=keras.initializers.RandomUniform(-1, 1, seed=3)) for i in (0, 1)]
    np.testing.assert_array_equal(rows_of(same[0]), rows_of(same[1]))
    other = layer("seed 4", embeddings_initializer=keras.initializers.RandomUniform(-1, 1, seed=3), seed=4)
    assert (rows_of(other) != rows_of(same[0])).all()


def test_zero_is_masked_if_it_is_padding():
    embedding = layer("masked", mask_zero=True)
    outputs = embedding(np.array([[1, 0], [0, 2]]))
    assert keras.ops.convert_to_numpy(outputs._keras_mask).tolist() == [[True, False], [False, True]]
    model = keras.Sequential([keras.Input((3,), dtype="int64"), embedding, keras.layers.LSTM(2)])
    answers = model.predict(np.array([[5, 6, 0], [5, 6, 7]]), verbose=0)
    shorter = model.layers[1](embedding(np.array([[5, 6]])))
    np.testing.assert_allclose(answers[0], shorter[0], rtol=1e-6)
    assert layer("not masked").compute_mask(np.array([0])) is None


def test_copies_and_loaded_models_use_the_same_table(tmp_path):
    embedding = layer("saved", RULES["Adagrad"][0], input_dim=(1 << 63) - 1, mask_zero=True, after=2, bound=3.0, table_dtype="bfloat16")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), embedding, keras.layers.GlobalMaxPooling1D()])
    model.compile(gk.DistributedOptimizer(keras.optimizers.SGD(RATE)), "mse")
    places, _ = samples(BATCH)
    model.fit(IDS[places], np.ones((BATCH, DIM), np.float32), batch_size=2, verbose=0)
    path = str(tmp_path / "model.keras")
    model.save(path)
    for again in (gk.load_model(path), keras.models.clone_model(model)):
        of_copy = again.layers[0]
        assert repr(of_copy.table) == repr(embedding.table) and of_copy.get_config() == embedding.get_config()
        assert (of_copy.mask_zero, of_copy.input_dim) == (True, (1 << 63) - 1)
        np.testing.assert_array_equal(again.predict(IDS[places], verbose=0), model.predict(IDS[places], verbose=0))
    assert "dtype=bf16" in repr(embedding.table)
    assert keras.layers.serialize(embedding)["registered_name"] == "gradlane>Embedding"


def test_the_output_has_the_type_in_which_the_layer_computes():
    embedding = layer("half", dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), embedding, keras.layers.Flatten(dtype="mixed_bfloat16")])
    assert model.output_shape == (None, 2 * DIM)
    before = rows_of(embedding)
    model.compile(gk.DistributedOptimizer(keras.optimizers.SGD(RATE)), lambda _, outputs: tf.reduce_sum(outputs))
    assert embedding(IDS[:2]).dtype == tf.bfloat16
    model.fit(IDS[None, :2], np.zeros((1, 2 * DIM), np.float32), verbose=0)
    close(before - rows_of(embedding), np.repeat([RATE, 0], [2, len(IDS) - 2])[:, None] * np.ones(DIM))


@pytest.mark.quick
@EAGER
def test_gradients_that_nothing_sends_are_an_error(eager):
    embedding = layer(f"forgotten {eager}")
    model = model_of(embedding)
    model.compile(keras.optimizers.SGD(RATE), "mse", run_eagerly=eager)
    places, labels = samples(BATCH)
    model.fit(IDS[places], labels, batch_size=BATCH // 2, verbose=0)
    with pytest.raises(FailedPreconditionError, match=r"the gradients of 2 passes were left.*DistributedOptimizer"), gl.typed_errors():
        model.predict(IDS[places], verbose=0)
    many, labels = samples(2 * PASSES_MAX)
    with pytest.raises(FailedPreconditionError, match=f"the gradients of {PASSES_MAX + 1} passes"), gl.typed_errors():
        model.fit(IDS[many], labels, batch_size=1, verbose=0)
    assert HINT.endswith("after each backward pass")
    embedding.push()
    model.predict(IDS[places], verbose=0)


@EAGER
def test_a_loop_of_ones_own_sends_with_push(eager):
    embedding = layer(f"pushed {eager}")
    embedding.build()
    before = rows_of(embedding, [1, 2, 3])

    def backward(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding(ids, training=True))
        return tape.gradient(loss, embedding.trainable_weights)

    compiled = backward if eager else tf.function(backward)
    for ids in ([1, 2], [2, 2]):
        [of_anchor] = compiled(tf.constant(ids, tf.int64))
        assert of_anchor.numpy() == 0
    np.testing.assert_array_equal(rows_of(embedding, [1, 2, 3]), before)
    for _ in range(2):
        embedding.push()  # the second time there is nothing
        close(before - rows_of(embedding, [1, 2, 3]), RATE * np.array([[1.0], [3.0], [0.0]]) * np.ones(DIM))


@pytest.mark.quick
@EAGER
def test_ids_that_cannot_be_are_named(eager):
    embedding = layer(f"refuses {eager}", input_dim=50)
    embedding.build()
    run = embedding if eager else tf.function(embedding)
    for ids, why in [
        (tf.constant([1, 50]), "there is no id 50; give ids from 0 to 49"),
        (tf.constant([[-7], [3]], tf.int64), "there is no id -7"),
        (tf.constant([1.5]), r"1\.5 of float32 is no id"),
        (tf.constant([float("nan")]), "nan of float32 is no id"),
        (tf.constant([float(1 << 24)]), r"may have been rounded; give int64, in Keras with keras\.Input"),
        (tf.constant([1], tf.bfloat16), "ids of bfloat16; give int64"),
        (tf.constant([True]), "ids of bool; give int64"),
    ]:
        for training in (False, True):
            with pytest.raises(InvalidArgumentError, match=why), gl.typed_errors():
                run(ids, training=training)
    assert embedding.table.stats().rows == 0
    np.testing.assert_array_equal(run(tf.constant([3.0, 4.0])), run(tf.constant([3, 4], tf.uint8)))
    with pytest.raises(UnsupportedError, match="RaggedTensor; give a dense tensor"):
        embedding.call(tf.ragged.constant([[1], [2, 3]]))
    any_id = layer(f"any id {eager}")
    close(any_id(tf.constant([(1 << 64) - 2], tf.uint64)), rows_of(any_id, [-2]))


def test_a_sequential_model_without_an_input_takes_ids_below_2_to_the_24():
    model = keras.Sequential([layer("without an input"), keras.layers.Flatten()])
    np.testing.assert_array_equal(
        model.predict(np.array([[1, (1 << 24) - 1]]), verbose=0)[0], rows_of(model.layers[0], [1, (1 << 24) - 1]).reshape(-1)
    )
    with pytest.raises(InvalidArgumentError, match="may have been rounded"), gl.typed_errors():
        model.predict(np.array([[1, (1 << 24) + 1]]), verbose=0)


def test_arguments_that_rows_do_not_have_are_refused_by_name():
    rule = RULES["SGD"][0]
    for error, why, options in [
        (UnsupportedError, "embeddings_regularizer='l2'", {"embeddings_regularizer": "l2"}),
        (UnsupportedError, "embeddings_constraint", {"embeddings_constraint": "non_neg"}),
        (UnsupportedError, "lora_rank=4", {"lora_rank": 4}),
        (UnsupportedError, "weights=", {"weights": [1.0]}),
        (UnsupportedError, "GlorotUniform", {"embeddings_initializer": "glorot_uniform"}),
        (UnsupportedError, "minval", {"embeddings_initializer": keras.initializers.RandomUniform(0, 1)}),
        (UnsupportedError, "mean", {"embeddings_initializer": keras.initializers.RandomNormal(1.0)}),
        (InvalidArgumentError, "input_dim=0", {"input_dim": 0}),
        (InvalidArgumentError, "output_dim=None", {"output_dim": None}),
        (InvalidArgumentError, "rule=7", {"rule": 7}),
        (InvalidArgumentError, "share", {"share": 2.0}),
        (InvalidArgumentError, "bfloat16", {"table_dtype": "half"}),
        (InvalidArgumentError, "name=", {"name": None}),
    ]:
        with pytest.raises(error, match=why):
            gk.Embedding(**{"output_dim": DIM, "name": "refused", "rule": rule} | options)


def test_other_arguments_on_another_worker_are_a_mismatch():
    embedding = gk.Embedding(output_dim=DIM + gl.rank(), name="mismatch", rule=RULES["SGD"][0])
    if gl.rank() == 0:
        embedding(IDS[:1])
    gl.barrier("it is made")
    if gl.rank() == 1:
        with pytest.raises(MismatchError, match=r"worker 0 has shape \[1024, 4\], worker 1 has shape \[1024, 5\]"):
            embedding(IDS[:1])


@EAGER
def test_gradients_that_are_not_finite_are_named_and_sent_no_more(eager):
    embedding = layer(f"not finite {eager}")
    model = keras.Sequential([keras.Input((1,), dtype="int64"), embedding, keras.layers.Flatten()])
    scale = tf.Variable(float("nan"))
    model.compile(
        gk.DistributedOptimizer(keras.optimizers.SGD(RATE)), lambda _, y: tf.reduce_sum(y) * scale, run_eagerly=eager
    )
    ids, labels = np.array([[1]]), np.zeros((1, DIM), np.float32)
    before = rows_of(embedding, [1])
    with pytest.raises(NotFiniteError, match=own(f"not finite {eager}")), gl.typed_errors():
        model.fit(ids, labels, verbose=0)
    scale.assign(1.0)
    model.fit(ids, labels, verbose=0)
    close(before - rows_of(embedding, [1]), np.full((1, DIM), RATE))


def test_a_scaled_loss_xla_and_vectorization_are_refused():
    embedding = layer("transformed")
    model = model_of(embedding)
    places, labels = samples(BATCH)
    model.compile(gk.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE))), "mse")
    with pytest.raises(UnsupportedError, match="scaled loss; use the policy mixed_bfloat16"):
        model.fit(IDS[places], labels, verbose=0)
    with pytest.raises(UnsupportedError, match=r"tf\.function\(jit_compile=False\)"):
        tf.function(embedding, jit_compile=True)(tf.constant(IDS[places]))
    with pytest.raises(UnsupportedError, match=r"inside of tf\.vectorized_map"):
        tf.function(lambda: tf.vectorized_map(lambda ids: embedding(ids, training=True), tf.constant(IDS[places])))()
    model.compile(gk.DistributedOptimizer(keras.optimizers.SGD(RATE)), "mse")
    assert not model.jit_compile


def test_other_backends_are_refused_with_what_to_use_there(monkeypatch):
    for backend, there in [("jax", r"jax\.pull and push, or "), ("numpy", "")]:
        stand_in = SimpleNamespace(backend=SimpleNamespace(backend=lambda backend=backend: backend))
        monkeypatch.setattr(gradlane.keras.embedding, "keras", stand_in)
        with pytest.raises(UnsupportedError, match=f"backend '{backend}'; use .*{there}KERAS_BACKEND=tensorflow"):
            layer("elsewhere")
