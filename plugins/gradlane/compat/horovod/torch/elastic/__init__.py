"""`horovod.torch.elastic`: scripts for Elastic Horovod run over the elastic jobs of `gradlane.elastic`.

    hvd.init()
    model = ...
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), rate * hvd.size()))
    sampler = hvd.elastic.ElasticSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)

    @hvd.elastic.run
    def train(state):
        while state.epoch < epochs:
            for at, batch in enumerate(loader):
                train_one(batch)
                sampler.record_batch(at, 32)
                state.commit()
            state.epoch += 1
            sampler.set_epoch(state.epoch)

    state = hvd.elastic.TorchState(model, optimizer, epoch=0, sampler=sampler)
    state.register_reset_callbacks([lambda: set_rate(optimizer, rate * hvd.size())])
    train(state)

`gradlane run -n 4 --elastic 2:8 -- python -m gradlane.compat.horovod train.py` takes the place of
`horovodrun -np 4 --min-np 2 --max-np 8 python train.py`. In a job that is not elastic the script runs as in any other job.

A commit is the boundary between two steps of `gradlane.elastic`: every worker comes to as many of them as the others. A
worker that has left, was lost or has come is heard of at the same commit on all workers. There the reset callbacks are
called, newcomers get the state, `commit` raises `HostsUpdatedInterrupt`, and `run` calls the training again.

What differs from Horovod:

- A lost worker costs no step. Sums are made without it from its loss on, and nobody goes back to an earlier commit. So
  `HorovodInternalError` is not raised for it. The exception is a tensor that the lost worker was to send, in a broadcast for
  example: then all workers go back to their last commit and call the training again. Any other error comes out of `run`,
  because it would come again.
- Only newcomers receive the state. The others verify that parameters, optimizers and tensors are equal among them.
- `hvd.rank()` and `hvd.size()` change at commits only, and ranks have no gaps. Process sets have the ranks of the job, which
  keeps them when a worker is lost; make sets again in the training, after a change.
- A worker that was told to leave by SIGTERM does so at its next commit, and its `run` ends the process in order, by
  `SystemExit(0)`: Horovod ends such a process as well, and what stands behind `run` is for workers whose training is done.
- Reset callbacks are called in `commit`. As in Horovod, they make no collective calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from gradlane.compat.horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from gradlane.compat.horovod.torch.elastic._loop import Left, Loop
from gradlane.compat.horovod.torch.elastic.sampler import ElasticSampler
from gradlane.compat.horovod.torch.elastic.state import ObjectState, State, TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=State)


def run(func: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorates a training, whose first argument is a state, so that it goes on when workers leave, are lost or come.

    The state is that of the lowest rank before the first call. As long as the workers change, the training is called again.
    What it returns, without such a change, is returned. No collective call may stand between the making of the model and
    this one, except broadcasts.

    Raises:
        SystemExit: this worker has left the job, as it was told.
        Error: what `gradlane.elastic.steps` raises, and each other error of the training.
    """

    @functools.wraps(func)
    def wrapper(state: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with Loop(state) as loop:
            while True:
                try:
                    loop.enter()
                    return func(state, *args, **kwargs)
                except Left:
                    raise SystemExit(0) from None
                except HostsUpdatedInterrupt as interrupt:
                    loop.interrupted(interrupt)
                except HorovodInternalError as error:
                    loop.go_back(error)

    return wrapper
