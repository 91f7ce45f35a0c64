"""Several threads reduce at once under `jax.jit`, and every sum is exact.

XLA runs the calls without Python's lock, so the threads meet inside the engine. `SOAK_ROUNDS=20000 pytest test_soak.py`
runs longer; without it each thread does a few hundred rounds.
"""

import gradlane.jax as gl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soak


@pytest.mark.parametrize("threads", soak.THREADS)
@pytest.mark.workers(2, settings={"step_timeout": "20s"})
@pytest.mark.over(*soak.TRANSPORTS)
def test_threads_that_reduce_at_once_get_exact_sums(threads, transport):
    def rounds(thread):
        sums = jax.jit(lambda tree: gl.push_pull(tree, f"{transport} {threads} {thread}", op=gl.Sum))
        for number in range(soak.ROUNDS):
            value, expected = soak.value_and_sum(number, thread, gl.rank())
            mine = [jnp.full(length, value, jnp.float32) for length in soak.LENGTHS]
            for total in jax.block_until_ready(sums(mine)):
                np.testing.assert_array_equal(total, expected)

    soak.at_once(rounds, threads)
