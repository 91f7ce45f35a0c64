"""Several threads reduce at once in `tf.function`, and every sum is exact.

The native operations run without Python's lock, so the threads meet inside the engine. A wait occupies a thread that
runs operations, so there are more of these than threads of the test. `SOAK_ROUNDS=20000 pytest
test_soak.py` runs longer; without it each thread does a few hundred rounds.
"""

import pytest
import soak
import tensorflow as tf
from gradlane._reduction import Reduction
from gradlane.tensorflow import _native

import gradlane


@pytest.mark.parametrize("threads", soak.THREADS)
@pytest.mark.workers(2, settings={"step_timeout": "20s"}, env={"TF_NUM_INTEROP_THREADS": "8"})
@pytest.mark.over(*soak.TRANSPORTS)
def test_threads_that_reduce_at_once_get_exact_sums(threads, transport):
    def rounds(thread):
        names = [f"{transport} {threads} {thread} {length}" for length in soak.LENGTHS]
        step = tf.Variable(0, dtype=tf.int64)

        @tf.function
        def sums(value):
            step.assign_add(1)
            mine = [tf.fill([length], value) for length in soak.LENGTHS]
            handles = [_native.submit(tensor, name, step, Reduction("sum")) for tensor, name in zip(mine, names, strict=True)]
            return _native.wait(handles, mine)

        for number in range(soak.ROUNDS):
            value, expected = soak.value_and_sum(number, thread, gradlane.rank())
            for total in sums(tf.constant(value)):
                assert (total.numpy() == expected).all()

    soak.at_once(rounds, threads)
