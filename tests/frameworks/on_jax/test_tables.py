"""Rows of tables in JAX, against the same training in a single process."""

import subprocess
import sys

import gradlane.jax as gl
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gradlane import rules
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError, NotFiniteError, UnsupportedError
from gradlane.jax.table_rows import PULLS_MAX

pytestmark = [pytest.mark.workers(2, servers=2), pytest.mark.over("quic")]

DIM, BATCH, STEPS, RATE = 4, 8, 12, 0.1
IDS = np.array([3, 7, 1 << 20, (1 << 31) + 5, 1 << 40, (1 << 62) + 1, *range(100, 114)])
TOLERANCE = 1e-5
"""Of float32 near 1: sums come in another order."""
OPTIMIZERS = {
    "SGD": (rules.SGD(lr=RATE), lambda: optax.sgd(RATE)),
    "Adagrad": (rules.Adagrad(lr=RATE, initial_accumulator_value=0.1, eps=1e-7), lambda: optax.adagrad(RATE, 0.1, 1e-7)),
}
MODES = ["eager", "jit"]


def own(name):
    """The name of a table that no other worker uses."""
    return f"{name} of worker {gl.rank()}"


def table(name, rule=OPTIMIZERS["SGD"][0], **options):
    return gl.Table(name, DIM, rule=rule, **{"init": "uniform", "scale": 0.5} | options)


def samples(seed, ids=len(IDS)):
    """Places of pairs of ids, some of them several times, and what is to be learnt of them."""
    random = np.random.default_rng(seed)
    return random.integers(0, ids, (BATCH, 2)), random.standard_normal((BATCH, DIM)).astype(np.float32)


def loss_of(weight, rows, labels):
    """Its share of the mean over the batches of all workers."""
    return jnp.sum((jnp.tanh(rows.sum(1)) * weight - labels) ** 2) / (BATCH * DIM)


def joined_loss(weight, rows, places, labels):
    """Of a table as one array, and of the batches of all workers."""
    return loss_of(weight, rows[np.concatenate(places)], np.concatenate(labels))


gradients_of = jax.grad(loss_of, argnums=(0, 1))


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.quick
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_of_all_workers_is_that_of_one_process_with_the_joined_batches(kind):
    """Each worker has ids of its own for Adagrad, whose steps do not add up; by SGD they share all."""
    check_training(kind)


@pytest.mark.workers(2, servers=1)
def test_training_is_that_of_one_process_with_one_server():
    check_training("Adagrad")


def check_training(kind):
    rule, optimizer = OPTIMIZERS[kind]
    trained = table(f"trained {kind}", rule)
    alone, plain = jnp.asarray(gl.look(trained, IDS)), optimizer()
    state, half = plain.init(alone), len(IDS) // 2
    weight = jnp.ones(DIM)
    for step in range(STEPS):
        batches = [samples(2 * step + rank, half) if kind == "Adagrad" else samples(2 * step + rank) for rank in (0, 1)]
        places = [places + half * rank * (kind == "Adagrad") for rank, (places, _) in enumerate(batches)]
        ids, labels = IDS[places[gl.rank()]], batches[gl.rank()][1]
        rows = gl.pull(trained, ids)
        gl.barrier("all have pulled")
        of_weight, of_rows = gradients_of(weight, rows, labels)
        gl.push(trained, ids, of_rows)
        of_all = jax.grad(joined_loss, argnums=(0, 1))(weight, alone, places, [labels for _, labels in batches])
        weight = weight - RATE * gl.push_pull(of_weight, f"weight {kind}", op=gl.Sum)
        gl.barrier("all have pushed")
        updates, state = plain.update(of_all[1], state, alone)
        alone = optax.apply_updates(alone, updates)
    close(gl.look(trained, IDS), alone)
    gl.barrier("all have looked")


@pytest.mark.quick
def test_a_compiled_step_pulls_and_pushes_in_the_order_of_the_program():
    tables = {name: table(own(name), OPTIMIZERS["Adagrad"][0]) for name in ("loop", "scan", "numpy")}
    number_of = {int(id): place for place, id in enumerate(range(20))}
    ids = np.stack([samples(seed)[0] for seed in range(STEPS)])
    labels = jnp.stack([samples(seed)[1] for seed in range(STEPS)])

    def step(of, ids, labels):
        rows = gl.pull(of, ids)
        gradients = gradients_of(jnp.ones(DIM), rows, labels)[1]
        gl.push(of, ids, gradients)
        return gradients

    compiled = jax.jit(lambda ids, labels: step(tables["loop"], ids, labels))
    for number in range(STEPS):
        compiled(ids[number], labels[number])
    looped = gl.look(tables["loop"], list(number_of))
    jax.jit(lambda: jax.lax.scan(lambda carry, of: (carry, step(tables["scan"], *of)), 0, (jnp.asarray(ids), labels)))()
    scanned = gl.look(tables["scan"], list(number_of))
    rows = np.asarray(tables["numpy"].look(np.arange(20)))
    squares = np.full_like(rows, 0.1)
    for number in range(STEPS):
        sums = np.zeros_like(rows)
        np.add.at(sums, ids[number], np.asarray(gradients_of(jnp.ones(DIM), rows[ids[number]], labels[number])[1]))
        squares += sums**2
        rows = rows - RATE * sums / np.sqrt(squares)
    close(looped, rows)
    close(scanned, rows)


def test_ids_of_64_bits_reach_a_compiled_function_as_constants_or_with_x64():
    trained = table(own("wide"))
    expected = trained.look(IDS)
    np.testing.assert_array_equal(jax.jit(lambda: gl.look(trained, IDS))(), expected)
    np.testing.assert_array_equal(gl.look(trained, IDS.view(np.uint64)), expected)
    ones = jnp.ones((len(IDS), DIM))
    jax.jit(lambda gradients: gl.push(trained, IDS, gradients))(ones)
    close(gl.look(trained, IDS), expected - RATE)
    jax.config.update("jax_enable_x64", True)
    try:
        close(jax.jit(lambda ids: gl.pull(trained, ids))(IDS), expected - RATE)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_rows_have_the_shape_of_the_ids():
    trained = table(own("shapes"))
    for shape in [(), (3,), (2, 0), (2, 3, 1)]:
        for dtype in (np.int32, np.uint8, np.int64):
            ids = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
            for run in (gl.pull, gl.look, jax.jit(gl.pull, static_argnums=0), jax.jit(gl.look, static_argnums=0)):
                rows = run(trained, ids)
                assert isinstance(rows, jax.Array) and (rows.shape, rows.dtype) == ((*shape, DIM), jnp.float32)
                gl.push(trained, ids, jnp.zeros_like(rows))


def test_an_evaluation_makes_no_rows_and_needs_no_push():
    trained = table(own("evaluated"))
    ids = jnp.arange(9)
    looked = gl.look(trained, ids)
    for _ in range(PULLS_MAX + 1):
        jax.jit(gl.look, static_argnums=0)(trained, ids)
    jax.grad(lambda weight: jnp.sum(weight * gl.look(trained, ids)))(1.0)
    assert trained.stats().rows == 0
    np.testing.assert_array_equal(gl.pull(trained, ids), looked)
    assert trained.stats().rows == 9


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
def test_pulls_without_a_push_are_an_error(mode):
    trained = table(own(f"forgotten {mode}"))
    run = gl.pull if mode == "eager" else jax.jit(gl.pull, static_argnums=0)
    for _ in range(PULLS_MAX):
        run(trained, jnp.arange(2))
    with pytest.raises(FailedPreconditionError, match=f"pulled {PULLS_MAX} times and nothing was pushed"), gl.typed_errors():
        jax.block_until_ready(run(trained, jnp.arange(2)))
    gl.push(trained, [0, 1], jnp.zeros((2, DIM)))
    jax.block_until_ready(run(trained, jnp.arange(2)))


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_is_refused_by_name(mode):
    trained = table(own(f"refuses {mode}"))
    wrap = (lambda function: function) if mode == "eager" else lambda function: jax.jit(function, static_argnums=0)
    pull, push, ids = wrap(gl.pull), wrap(gl.push), jnp.arange(3)
    for wrong in (jnp.ones(3), jnp.array([True]), np.ones(2, np.float16)):
        with pytest.raises(InvalidArgumentError, match=rf"table refuses.*ids of {wrong.dtype}; give integers"):
            pull(trained, wrong)
    with pytest.raises(InvalidArgumentError, match="ids of object"):
        gl.pull(trained, [1 << 64])
    for gradients, why in [
        (jnp.ones((3, DIM + 1)), r"float32 and shape \[3, 5\]; give float32 of shape \[3, 4\]"),
        (jnp.ones((DIM,)), r"shape \[4\]"),
        (jnp.ones((3, DIM), jnp.bfloat16), "gradients of bfloat16"),
        (jnp.ones((3, DIM), jnp.int32), "gradients of int32"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            push(trained, ids, gradients)
    with pytest.raises(InvalidArgumentError, match=r"table='items'; give a gradlane\.tables\.Table"):
        gl.pull("items", ids)
    with pytest.raises(NotFiniteError, match=own(f"refuses {mode}")), gl.typed_errors():
        push(trained, ids, jnp.full((3, DIM), jnp.nan))
        jax.effects_barrier()
    assert trained.stats().rows == 0


@pytest.mark.parametrize("transformation", ["vmap", "pmap"])
def test_transformations_that_use_rows_several_times_are_refused(transformation):
    trained = table(own(transformation))
    transform = getattr(jax, transformation)
    for action, run in [
        ("pull", lambda: transform(lambda ids: gl.pull(trained, ids))(jnp.ones((1, 2), jnp.int32))),
        ("look", lambda: transform(lambda ids: gl.look(trained, ids))(jnp.ones((1, 2), jnp.int32))),
        ("push", lambda: transform(lambda of: gl.push(trained, [1, 2], of))(jnp.ones((1, 2, DIM)))),
    ]:
        with pytest.raises(UnsupportedError, match=f"{action} is one call of a process on one device.*outside of vmap"):
            run()
    assert trained.stats().rows == 0


def test_calls_in_differentiated_functions_are_refused_and_second_derivatives_of_rows_are_those_of_jax():
    trained = table(own("differentiated"))
    ids, weight = jnp.array([1, 2]), jnp.ones(DIM)

    def with_pull(weight):
        return jnp.sum(weight * gl.pull(trained, ids))

    for function in (with_pull, jax.jit(with_pull), lambda weight: jax.lax.cond(True, with_pull, jnp.sum, weight)):
        for derive in (jax.grad, jax.value_and_grad, jax.jacfwd, lambda of: jax.jit(jax.grad(of))):
            with pytest.raises(UnsupportedError, match="would bring constants, and no gradients; pull before"):
                derive(function)(weight)

    def with_push(gradients):
        gl.push(trained, ids, gradients)
        return jnp.sum(gradients)

    for function in (with_push, jax.jit(with_push)):
        with pytest.raises(UnsupportedError, match="push has no derivative; call it outside"):
            jax.grad(function)(jnp.ones((2, DIM)))
    assert trained.stats().rows == 0
    rows = gl.pull(trained, ids)
    penalty = jax.grad(lambda rows: jnp.sum(jax.grad(lambda rows: jnp.sum(rows**3))(rows) ** 2))(rows)
    gl.push(trained, ids, penalty)
    close(gl.look(trained, ids), rows - RATE * 36 * rows**3)


def test_other_arguments_on_another_worker_are_a_mismatch():
    made = gl.Table("mismatch", DIM + gl.rank(), rule=OPTIMIZERS["SGD"][0])
    if gl.rank() == 0:
        gl.pull(made, [1])
    gl.barrier("it is made")
    if gl.rank() == 1:
        with pytest.raises(MismatchError, match=r"worker 0 has shape \[1024, 4\], worker 1 has shape \[1024, 5\]"):
            gl.pull(made, [1])


def test_more_ids_than_one_use_takes_count_once_each():
    trained = table(own("many"))
    ids = np.arange((1 << 20) + 10) % 1000
    rows = gl.pull(trained, ids)
    gl.push(trained, ids, jnp.ones_like(rows))
    assert trained.stats().rows == 1000
    times = np.bincount(ids)[:, None].astype(np.float32)
    np.testing.assert_allclose(gl.look(trained, np.arange(1000)), rows[:1000] - RATE * times, rtol=1e-4)


ON_TWO_DEVICES = """
import gradlane.jax as gl, jax, jax.numpy as jnp
gl.init()
table = gl.Table("rows", 2, rule="sgd:lr=1")
mesh = jax.sharding.Mesh(jax.devices(), ("d",))
spread = jax.device_put(jnp.arange(4), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))
try:
    jax.jit(gl.pull, static_argnums=0)(table, spread)
except gl.UnsupportedError as error:
    print(error)
"""


def test_arrays_on_several_devices_are_refused():
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run([sys.executable, "-c", ON_TWO_DEVICES], env=environment, capture_output=True, encoding="utf-8", timeout=90, check=False)
    assert "pull is one call of a process on one device" in ended.stdout, ended.stderr
