"""Training with optax on several workers is training in a single process on the whole batches."""

import functools
import hashlib

import gradlane.jax as gl
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gradlane.errors import InvalidArgumentError

TOLERANCE = 1e-12
"""Relative, in float64: a few roundings, as the sum over workers is taken in another order."""

STEPS = 20
BATCH = 16
OPTIMIZERS = {"momentum": lambda: optax.sgd(0.1, momentum=0.9), "adam": lambda: optax.adam(1e-2)}


@pytest.fixture(autouse=True)
def double_precision():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.workers(2, 4)
@pytest.mark.over("local", "quic")
def test_a_compiled_training_is_that_of_a_single_process(optimizer, call):
    make = OPTIMIZERS[optimizer]
    params = gl.broadcast(made(seed=gl.rank()), name=f"{call} {optimizer} start")
    ours = trained(params, optax.chain(gl.push_pull_gradients(f"{call} {optimizer}"), make()), mine)
    assert_close(ours, reference(optimizer))
    assert_equal_everywhere(ours, f"{call} {optimizer}")


@pytest.mark.quick
@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_accumulated_gradients_are_those_of_a_single_process(call):
    inner = optax.chain(gl.push_pull_gradients(f"accumulated {call}"), optax.sgd(0.1))
    ours = trained(made(0), optax.MultiSteps(inner, every_k_schedule=4), mine)
    alone = trained(made(0), optax.MultiSteps(optax.sgd(0.1), every_k_schedule=4), lambda batch: batch)
    assert_close(ours, alone, tolerance=1e-6)  # optax's running mean has factors of float32


@pytest.mark.quick
@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_optimizers_without_names_may_be_made_in_any_order_and_traced_again(call):
    """Twins, so that nothing but their names tells their gradients apart."""
    twins = ["first", "second"][:: 1 if gl.rank() == 0 else -1]
    made_here = {twin: optax.chain(gl.push_pull_gradients(), optax.sgd(1.0)) for twin in twins}

    @functools.partial(jax.jit, static_argnames="again")
    def step(gradients, again):
        del again
        found = {}
        for twin in ("first", "second"):
            optimizer = made_here[twin]
            found[twin], _ = optimizer.update(gradients[twin], optimizer.init(gradients[twin]))
        return found

    gradients = {"first": {"w": jnp.full(2, 1.0 + gl.rank())}, "second": {"w": jnp.full(2, 10.0 + gl.rank())}}
    for again in (0, gl.rank(), 2):  # rank 1 traces once more
        found = step(gradients, again)
        assert found["first"]["w"].tolist() == [-1.5] * 2 and found["second"]["w"].tolist() == [-10.5] * 2


@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_an_optimizer_without_a_name_is_made_outside_of_what_uses_it(call):
    def update(optimizer):
        gradients = {"w": jnp.full(2, 1.0 + gl.rank())}
        return optimizer.update(gradients, optimizer.init(gradients))[0]

    @jax.jit
    def inside(scale):
        optimizer = gl.push_pull_gradients()
        return jax.lax.scan(lambda total, _: (total + update(optimizer)["w"], None), jnp.zeros(2) * scale, None, 2)

    with pytest.raises(InvalidArgumentError, match="made inside the function that JAX traces.*name="):
        inside(1.0)

    kept = []
    jax.eval_shape(lambda: kept.append(gl.push_pull_gradients()))  # as a function that makes a train state does
    assert jax.jit(lambda: update(kept[0]))()["w"].tolist() == [1.5] * 2
    named = jax.jit(lambda: update(gl.push_pull_gradients(f"named {call}")))
    assert named()["w"].tolist() == [1.5] * 2


@pytest.mark.quick
@pytest.mark.workers(2)
@pytest.mark.over("quic")
def test_two_optimizers_of_one_program_need_no_names(call):
    """Such as those of a generator and of a discriminator, whose trees differ."""
    optimizers = [optax.chain(gl.push_pull_gradients(), optax.sgd(1.0)) for _ in range(2)]
    trees = [{"kernel": jnp.ones(3)}, {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}]

    @jax.jit
    def step(states, scale):
        pairs = zip(optimizers, trees, states, strict=True)
        return [optimizer.update(jax.tree.map(lambda x: x * scale, tree), state)[0] for optimizer, tree, state in pairs]

    states = [optimizer.init(tree) for optimizer, tree in zip(optimizers, trees, strict=True)]
    for _ in range(2):
        for updates in step(states, 1.0 + gl.rank()):
            assert all((np.asarray(update) == -1.5).all() for update in jax.tree.leaves(updates))


@pytest.mark.workers(2)
@pytest.mark.over("local", "quic")
def test_the_gradient_of_a_reduction_is_the_reduction_of_the_gradients(call):
    factor = 1.0 + gl.rank()

    @jax.jit
    def loss(tree):
        mean = gl.push_pull(tree, f"inside {call}")
        return factor * (mean["weights"] ** 2).sum() + mean["count"].sum()

    tree = {"weights": jnp.arange(3.0) * factor, "count": jnp.arange(2)}
    gradient = jax.grad(loss, allow_int=True)(tree)["weights"]
    np.testing.assert_allclose(gradient, 1.5 * 2 * 1.5 * np.arange(3.0))


@functools.cache
def reference(optimizer):
    """What a single process makes of the whole batches."""
    return trained(made(seed=0), OPTIMIZERS[optimizer](), lambda batch: batch)


def made(seed):
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "hidden": {"kernel": jax.random.normal(first, (8, 16)) / 3, "bias": jnp.zeros(16)},
        "output": {"kernel": jax.random.normal(second, (16, 4)) / 4, "bias": jnp.zeros(4)},
    }


def mine(batch):
    """This worker's share of a batch; all shares are of one size, so the mean of means is the mean."""
    return tuple(array[gl.rank() :: gl.size()] for array in batch)


def batches():
    keys = jax.random.split(jax.random.key(3), 2)
    rule = jax.random.normal(jax.random.key(4), (8, 4))
    for step in range(STEPS):
        inputs = jax.random.normal(keys[step % 2], (BATCH, 8))
        yield inputs, (inputs @ rule).argmax(1)


def trained(params, optimizer, share):
    def loss(params, inputs, labels):
        hidden = jnp.tanh(inputs @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        outputs = hidden @ params["output"]["kernel"] + params["output"]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()

    @jax.jit
    def step(params, state, inputs, labels):
        gradients = jax.grad(loss)(params, inputs, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for batch in batches():
        params, state = step(params, state, *share(batch))
    return params


def assert_close(ours, reference, tolerance=TOLERANCE):
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        assert mine.dtype == jnp.float64
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def assert_equal_everywhere(tree, name):
    """The tree is bit for bit the same on all workers."""
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))).hexdigest()
    assert len(set(gl.allgather(digest, f"digest {name}"))) == 1
