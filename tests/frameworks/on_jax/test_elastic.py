"""Workers that come to a training with JAX get its arrays, and the others lose nothing."""

import pytest
from newcomers import BEGIN, check_that_a_difference_is_an_error, check_that_one_comes, check_that_workers_come_and_go

TRAINING = (
    BEGIN
    + """
import functools
from dataclasses import dataclass
from typing import Any
import gradlane.jax as gl
import jax
import jax.numpy as jnp
import optax

@functools.partial(jax.tree_util.register_dataclass, data_fields=["params", "moments"], meta_fields=["loss"])
@dataclass
class Train:
    params: Any
    moments: Any
    loss: Any

def loss(params, inputs, count):
    hidden = jnp.tanh(inputs @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    outputs = jnp.tanh(hidden @ params["output"][0] * params["scale"])
    return outputs.mean() + count * params["count"][0]

def made(seed):
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "hidden": {"kernel": jax.random.normal(first, (3, 5 if is_unfit else 4)), "bias": jnp.full(4, seed, jnp.bfloat16)},
        "output": (jax.random.normal(second, (4, 2), jnp.bfloat16), jnp.zeros((0, 3))),
        "scale": jnp.asarray(1.0 + seed),  # of a weak type until the first step
        "count": np.full(1, seed, "float32"),  # of NumPy until the first step
    }

params = gl.broadcast(made(7 * has_come))  # a newcomer begins with other parameters
optimizer = optax.chain(gl.push_pull_gradients(op=gl.Sum), optax.trace(decay=1.0), optax.scale(-RATE))
state.train = Train(params, optimizer.init(params), loss)
state.key, state.alone, state.none = jax.random.key(who), jnp.full(3, has_come), None
state.kept = {"best": jnp.full(2, float(has_come)), "epoch": int(has_come), "arrays": [np.full(2, float(has_come))]}
kept = state.kept["arrays"][0]  # is received in place

@jax.jit
def step(train, inputs, count):
    gradients = jax.grad(train.loss)(train.params, inputs, count)
    updates, moments = optimizer.update(gradients, train.moments, train.params)
    return Train(optax.apply_updates(train.params, updates), moments, train.loss)

def digest():
    leaves = jax.tree.leaves((state.train, state.alone, state.kept))
    return digest_of(leaves) + str([getattr(leaf, "weak_type", False) for leaf in leaves]) + str(kept)

def momentum():
    return state.train.moments[1].trace["count"].item()

def until_stopped():
    while not stopped:
        yield random.normal(size=(8, 3)).astype("float32")

def train():
    global stopped
    for inputs in elastic.steps(state, until_stopped()):
        begins(digest)
        if differs and who == 1 and own == 3:
            state.train.params["hidden"]["bias"] += 1
        # Nobody waits for the results. JAX returns while the sums are still under way.
        state.train = step(state.train, inputs, 10.0**who)
        stopped = ends()

random, stopped = np.random.default_rng(who), False
trying(train)
check_end(digest, momentum)
"""
)


@pytest.mark.quick
@pytest.mark.over("shm")
def test_a_worker_comes_to_one_that_trains(transport, tmp_path):
    check_that_one_comes(tmp_path, transport, TRAINING, first=1)


@pytest.mark.over("shm", "quic")
@pytest.mark.parametrize("call", ["native", "fallback"])
def test_workers_come_and_go(call, transport, tmp_path):
    check_that_workers_come_and_go(tmp_path, transport, TRAINING, jax_call=call)


@pytest.mark.over("shm")
def test_parameters_that_differ_are_an_error_when_a_worker_comes(transport, tmp_path):
    check_that_a_difference_is_an_error(tmp_path, transport, TRAINING, "train")
