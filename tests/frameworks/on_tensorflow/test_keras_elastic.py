"""A Keras training that a worker leaves at the end of a step."""

import re
import sys

import pytest
from processes import SAY, over, run_all

TRAINING = (
    SAY
    + """
import signal
import gradlane.keras as gk
import keras
import numpy as np
from gradlane import elastic

gk.init()
rank, told = gk.rank(), []
elastic.on_change(lambda before, after: told.append((elastic.report().changes[-1].step, after.ranks)))
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(optimizer=gk.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")

class Ends(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if (rank, state.step) == (1, 5):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training |= bool(told)

state = elastic.State()
inputs = np.random.default_rng(rank).normal(size=(32, 4)).astype("float32")
callbacks = [Ends(), gk.callbacks.ElasticCallback(state)]
model.fit(inputs, inputs.sum(1), batch_size=8, epochs=1000, verbose=0, callbacks=callbacks)
say(f"rank {rank}: {state.step} {elastic.has_left()} {told}")
"""
)


@pytest.mark.over("shm")
def test_a_worker_leaves_after_sigterm_and_the_other_trains_on(transport):
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "-s", "1", "-o", "on_worker_loss=continue"]
    [ended] = run_all([([*command, "--", sys.executable, "-c", TRAINING], over(transport))], timeout=150)
    lines = set(ended.output.splitlines())
    assert ended.code == 0, ended.output
    [left] = [re.fullmatch(r"rank 1: (\d+) True \[\]", line)[1] for line in lines if line.startswith("rank 1: ")]
    # The other hears of it behind the same step, which may be any after the signal, and ends its epoch.
    ends = -(-int(left) // 4) * 4
    assert int(left) >= 6 and f"rank 0: {ends} False [({left}, (0,))]" in lines, ended.output
