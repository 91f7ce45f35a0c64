"""Derivatives through what is reduced are those of a single process, or an error; no graph is cut in silence.

The function of worker 0 is the cubes of x, that of worker 1 twice as much. So the mean is 1.5 times it.
"""

import gradlane.jax as gl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradlane.errors import InvalidArgumentError, UnsupportedError

pytestmark = [pytest.mark.over("quic"), pytest.mark.workers(2)]

START = np.float32([1, 2])


def mean(x, name):
    return gl.push_pull(scale() * x**3, name)


def second(x):
    return jax.grad(lambda x: jax.grad(lambda x: mean(x, "second").sum())(x).sum())(x)


def penalty(x):
    def loss(x):
        gradient = gl.push_pull(jax.grad(lambda x: scale() * (x**3).sum())(x), "penalty")
        return (gradient**2).sum()

    return jax.grad(loss)(x)


def pulled_back(x):
    return jax.vjp(lambda x: mean(x, "pulled back"), x)[1](jnp.ones(2))[0]


def of_a_scan(x):
    def body(carry, _):
        return gl.push_pull(scale() * carry, "scan"), None

    return jax.grad(lambda x: jax.lax.scan(body, x, None, length=3)[0].sum())(x)


def of_a_loop(x):
    return jax.grad(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: gl.push_pull(scale() * y, "loop"), x).sum())(x)


def of_a_branch(x):
    return jax.grad(lambda x: jax.lax.cond(x[0] > 0, lambda x: mean(x, "branch"), lambda x: x, x).sum())(x)


def of_a_custom_rule(x):
    @jax.custom_jvp
    def reduced(x):
        return mean(x, "custom")

    reduced.defjvps(lambda tangent, _, x: gl.push_pull(scale() * 3 * x**2 * tangent, "custom, forward"))
    return jax.jvp(reduced, (x,), (jnp.ones(2),))[1]


VALUES = {
    second: lambda: scale() * 6 * START,
    penalty: lambda: 2 * 1.5 * 3 * START**2 * scale() * 6 * START,
    pulled_back: lambda: scale() * 3 * START**2,
    of_a_scan: lambda: scale() * 1.5**2 * np.ones(2),
    of_a_loop: lambda: scale() * 1.5**2 * np.ones(2),
    of_a_branch: lambda: scale() * 3 * START**2,
    of_a_custom_rule: lambda: 1.5 * 3 * START**2,
}


@pytest.mark.parametrize("derivative", VALUES, ids=lambda derivative: derivative.__name__)
def test_a_derivative_is_that_of_one_process(derivative, call):
    np.testing.assert_allclose(jax.jit(derivative)(jnp.asarray(START)), VALUES[derivative](), rtol=1e-6)


REFUSED = {
    "forward": (TypeError, "forward-mode", lambda x: jax.jvp(lambda x: mean(x, "f"), (x,), (x,))),
    "linearized": (TypeError, "forward-mode", lambda x: jax.linearize(lambda x: mean(x, "l"), x)[1](x)),
    "hessian": (TypeError, "forward-mode", lambda x: jax.hessian(lambda x: mean(x, "h").sum())(x)),
    "transposed": (NotImplementedError, "Transpose", lambda x: jax.linear_transpose(lambda x: mean(x, "t"), x)(x)),
    "recomputed": (
        NotImplementedError,
        "Effects not supported",
        jax.grad(jax.checkpoint(lambda x: mean(x, "r").sum())),
    ),
    "jacobian": (UnsupportedError, "a batch by vmap", jax.jacrev(lambda x: mean(x, "j"))),
    "gradients of a batch": (UnsupportedError, "a batch by vmap", jax.vmap(jax.grad(lambda x: mean(x, "b")))),
    "maximum": (InvalidArgumentError, "no gradient", jax.grad(lambda x: gl.push_pull(x, "m", op=gl.Max).sum())),
    "broadcast": (InvalidArgumentError, "no gradient", jax.grad(lambda x: gl.broadcast(x, 0).sum())),
    "weighted": (
        InvalidArgumentError,
        "no gradient",
        jax.grad(lambda x: gl.push_pull(x, "w", op=gl.WeightedAverage, weight=1.0).sum()),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_derivative_that_cannot_be_is_an_error(case, call):
    kind, words, derivative = REFUSED[case]
    with pytest.raises(kind, match=words):
        derivative(jnp.asarray(START))


def scale():
    return 1.0 + gl.rank()
