"""`ServerOptimizer`: parameters that live on servers, against the same training in a single process."""

import copy

import gradlane
import gradlane.jax as gl
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gradlane.errors import FailedPreconditionError, InvalidArgumentError, MismatchError, UnsupportedError

pytestmark = [pytest.mark.quick, pytest.mark.workers(2, servers=2), pytest.mark.over("quic")]

STEPS = 10
TOLERANCE = 1e-6
"""In float32, of weights near 1: the formulas round in another order."""


def test_sync_is_training_by_one_worker_with_the_mean_gradient():
    optimizer = gl.ServerOptimizer(made(gl.rank()), gl.rules.AdamW(lr=0.01), mode=gl.modes.Sync())
    params, plain = optimizer.params, optax.adamw(0.01, weight_decay=0.01)
    assert_close(params, made(0), tolerance=0)
    alone = made(0)
    state = plain.init(alone)
    for step in range(STEPS):
        params = optimizer.step(gradients(params, batch(gl.rank(), step)))
        assert optimizer.outcome.fates == {"accepted": 3} and optimizer.outcome.tick.step == step + 1
        each = [gradients(alone, batch(rank, step)) for rank in range(gl.size())]
        mean = jax.tree.map(lambda *of: sum(of) / len(of), *each)
        updates, state = plain.update(mean, state, alone)
        alone = optax.apply_updates(alone, updates)
        assert_close(params, alone)


def test_a_worker_alone_in_mode_async_trains_as_the_plain_optimizer_does():
    optimizer = gl.ServerOptimizer(made(gl.rank()), gl.rules.SGD(lr=0.1, momentum=0.9))
    if gl.rank() == 0:
        params, alone, plain = optimizer.params, made(0), optax.sgd(0.1, momentum=0.9)
        state = plain.init(alone)
        for step in range(STEPS):
            params = optimizer.step(gradients(params, batch(0, step)))
            assert optimizer.outcome.fates == {"accepted": 3} and optimizer.outcome.tick is None
            updates, state = plain.update(gradients(alone, batch(0, step)), state, alone)
            alone = optax.apply_updates(alone, updates)
        assert_close(params, alone)
    gl.barrier("it has trained")
    digests = gl.allgather([np.asarray(leaf).tolist() for leaf in jax.tree.leaves(optimizer.pull())])
    assert digests[0] == digests[1]


def test_what_a_step_returns_stays_and_lies_where_the_parameters_lay():
    params = {"half": jnp.ones(3, jnp.bfloat16), "number": jnp.float32(2.0), "rows": [np.ones((2, 2), np.float16)]}
    optimizer = gl.ServerOptimizer(params, gl.rules.SGD(lr=1.0), mode=gl.modes.Sync())
    first = optimizer.step(params)
    second = optimizer.step(params)
    for tree, number in ((first, 0.0), (second, -1.0)):
        assert tree["half"].tolist() == [number] * 3 and tree["half"].dtype == jnp.bfloat16
        assert tree["number"].shape == () and tree["number"].item() == 2 * number
        assert isinstance(tree["rows"][0], jax.Array) and tree["rows"][0].tolist() == [[number] * 2] * 2
        assert tree["half"].sharding == params["half"].sharding


def test_a_step_that_waited_too_long_sends_nothing_again_and_has_the_present_parameters():
    start = {"w": jnp.zeros(2)}
    optimizer = gl.ServerOptimizer(start, gl.rules.SGD(lr=1.0), mode=gl.modes.SSP(0), name="held", timeout=0.5)
    one = {"w": jnp.ones(2)}
    if gl.rank() == 0:
        with pytest.raises(gradlane.TimeoutError, match="worker 1"):
            optimizer.step(one)
    gl.barrier("worker 0 was held")
    if gl.rank() == 1:
        optimizer.step(one)
    gl.barrier("worker 1 has come")
    if gl.rank() == 0:
        assert optimizer.step(one)["w"].tolist() == [-1.0] * 2, "what its own gradient made"
    assert optimizer.pull()["w"].tolist() == [-2.0] * 2
    optimizer.leave()


def test_a_worker_that_has_left_is_waited_for_no_more():
    optimizer = gl.ServerOptimizer({"w": jnp.zeros(2)}, gl.rules.SGD(lr=1.0), mode=gl.modes.Sync())
    if gl.rank() == 1:
        optimizer.leave()
    else:
        assert optimizer.step({"w": jnp.ones(2)})["w"].tolist() == [-1.0] * 2


def test_micro_batches_are_sent_together_and_a_tail_counts_as_what_it_is():
    start = {"half": jnp.zeros(2, jnp.bfloat16), "w": jnp.zeros(2)}
    optimizer = gl.ServerOptimizer(start, gl.rules.SGD(lr=1.0), mode=gl.modes.Sync(), accumulate=2)
    of = lambda number: {"half": jnp.full(2, number, jnp.bfloat16), "w": jnp.full(2, number)}  # noqa: E731
    assert optimizer.step(of(1.0), samples=3)["w"].tolist() == [0.0] * 2 and optimizer.outcome is None
    params = optimizer.step(of(5.0), samples=1)
    assert [params[key].tolist() for key in ("half", "w")] == [[-2.0] * 2] * 2 and params["half"].dtype == jnp.bfloat16
    assert optimizer.flush()["w"].tolist() == [-2.0] * 2, "there is nothing"
    optimizer.step(of(4.0), samples=7)
    assert optimizer.flush()["w"].tolist() == [-6.0] * 2
    optimizer.step(of(1.0 + gl.rank()))
    optimizer.leave()
    gl.barrier("both have left")
    assert optimizer.pull()["w"].tolist() == [-7.5] * 2, "whoever leaves flushes"
    for options, why in [({"accumulate": 0}, "accumulate=0"), ({"merge": "max"}, "merge='max'")]:
        with pytest.raises(InvalidArgumentError, match=why):
            gl.ServerOptimizer(start, gl.rules.SGD(lr=1.0), name="never", **options)
    with pytest.raises(InvalidArgumentError, match="samples=0"):
        gl.ServerOptimizer(start, gl.rules.SGD(lr=1.0)).step(of(1.0), samples=0)


def test_averages_that_the_rule_keeps_come_as_a_tree_of_their_own():
    rule = gl.rules.SGD(lr=1.0, ema=gl.rules.EMA(0.5))
    optimizer = gl.ServerOptimizer({"w": jnp.zeros(2)}, rule, mode=gl.modes.Sync())
    assert optimizer.step({"w": jnp.ones(2)})["w"].tolist() == [-1.0] * 2
    assert optimizer.averages("ema")["w"].tolist() == [-0.5] * 2
    assert optimizer.params["w"].tolist() == [-1.0] * 2
    with pytest.raises(InvalidArgumentError, match="window"):
        optimizer.averages("window")


def test_another_rule_mode_or_tree_is_told_to_all_workers():
    rank, sgd = gl.rank(), gl.rules.SGD(lr=0.1)
    with pytest.raises(MismatchError, match=r"worker 0 has the rule sgd:lr=0\.1.*worker 1 has sgd:lr=0\.2"):
        gl.ServerOptimizer(made(0), gl.rules.SGD(lr=0.1 * (1 + rank)))
    with pytest.raises(MismatchError, match="mode ssp:bound=0.*ssp:bound=1"):
        gl.ServerOptimizer(made(0), sgd, mode=gl.modes.SSP(rank))
    with pytest.raises(MismatchError, match=r"worker 0 has \['a'\], float32 \[2\], worker 1 has \['b'\], float32 \[2\]"):
        gl.ServerOptimizer({"ab"[rank]: jnp.ones(2)}, sgd)
    with pytest.raises(MismatchError, match=r"worker 0 has \['a'\], float32 \[2\], worker 1 has \['a'\], float32 \[3\]"):
        gl.ServerOptimizer({"a": jnp.ones(2 + rank)}, sgd)
    with pytest.raises(InvalidArgumentError, match=r"params\['a'\] is int32"):
        gl.ServerOptimizer({"a": jnp.ones(2, jnp.float32 if rank else jnp.int32)}, sgd)


def test_what_cannot_be_is_refused_by_name():
    sgd = gl.rules.SGD(lr=0.1)
    for params, rule, mode, why in [
        ({"w": jnp.ones(2)}, optax.sgd(0.1), None, "gradlane.rules"),
        ({"w": jnp.ones(2)}, sgd, "ssp", "mode='ssp'"),
        ({}, sgd, None, "nothing to train"),
        ({"w": jnp.ones((0, 2))}, sgd, None, r"params\['w'\] has the shape \[0, 2\]"),
        ({"w": "text"}, sgd, None, r"params\['w'\] is str, no array"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            gl.ServerOptimizer(params, rule, mode=mode)
    w, b = jnp.ones(2), jnp.ones(1)
    optimizer = gl.ServerOptimizer({"w": w, "b": b}, sgd, mode=gl.modes.Sync())
    for given, why in [
        ({"w": w}, r"no gradient of params\['b'\]"),
        ({"w": w, "b": None}, r"no gradient of params\['b'\]"),
        ({"w": w, "b": b, "c": b}, r"gradients\['c'\] is of no parameter"),
        ({"w": b, "b": b}, r"gradient of params\['w'\] is float32 \[1\], and its value float32 \[2\]"),
        ({"w": w.astype(jnp.bfloat16), "b": b}, r"gradient of params\['w'\] is bfloat16 \[2\], and its value float32"),
        ({"w": "text", "b": b}, r"gradients\['w'\] is str, no array"),
    ]:
        with pytest.raises(InvalidArgumentError, match=why):
            optimizer.step(given)
    for used_inside in (optimizer.step, lambda params: gl.ServerOptimizer(params, sgd).params):
        with pytest.raises(UnsupportedError, match="let the function return the gradients"):
            jax.jit(used_inside)({"w": w, "b": b})
    with pytest.raises(FailedPreconditionError, match="not copied"):
        copy.deepcopy(optimizer)
    assert optimizer.step({"w": w, "b": b})["w"].tolist() == pytest.approx([0.9] * 2), "nothing of these was sent"


def made(seed):
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "hidden": {"kernel": jax.random.normal(first, (6, 16)) / 3, "bias": jnp.zeros(16)},
        "output": jax.random.normal(second, (16, 2)) / 4,
    }


def batch(rank, step):
    inputs = jax.random.normal(jax.random.key(100 * rank + step), (32, 6))
    return inputs, jnp.sin(inputs[:, :2]) - inputs[:, 2:4]


@jax.jit
def gradients(params, data):
    def loss(params):
        hidden = jnp.tanh(data[0] @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        return jnp.square(hidden @ params["output"] - data[1]).mean()

    return jax.grad(loss)(params)


def assert_close(ours, theirs, tolerance=TOLERANCE):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
