"""Trainings that go on while workers leave, are lost, or come.

    from gradlane import elastic

    gradlane.init(elastic="2:8")     # or gradlane run --elastic 2:8, or GRADLANE_ELASTIC
    state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)
    elastic.on_change(lambda before, after: scale_learning_rate(after.size / before.size))
    for batch in elastic.steps(state, loader):
        train(batch)
    if elastic.has_left():
        sys.exit()                   # it was told to leave; the others train on

`steps` counts the steps of the training, as often on every worker. Between two steps there is a *boundary*, at which
every worker hears of the same changes:

- SIGTERM, as the notice of a spot machine, `docker stop`, Kubernetes and Slurm send it, lets a worker end its step and
  leave the job at the boundary. Nothing of the step is lost, and no other worker waits for it afterwards. A second one
  ends the process as before. `leave` does the same without a signal.
- A worker that is lost is missing from the sums at once. At the next boundary all others hear of it, at the same step.
- With `elastic="2:8"`, a process that is started later comes to the job: a *newcomer*, such as a worker that its launcher
  has started again. Its `init` returns when all workers stand at a boundary and have taken it in. There the job *forms
  again*, and nothing of a step is lost. With `on_server_loss=continue` a server that comes for a lost one is taken in there
  too; the workers before and after are the same then.

With `on_worker_loss=wait`, workers that are too few hold at the boundary until others have come, at most for
`rejoin_timeout`. Workers that have left in order are not waited for, and one that is told to leave meanwhile does so.

Losses and leaving need `on_worker_loss=continue` (or `wait`) alone, which `elastic` implies. As long as nobody comes, workers keep their
ranks; `World.index` counts those that are left without gaps, which is what a sampler needs. When the job forms again,
ranks are given anew, from 0 and without gaps: those of the workers that were there before come first, in their order.

**State.** When the job has formed again, a newcomer gets the values of the `State` from a worker that trains: modules and
optimizers of PyTorch and tensors bit for bit where it has them, arrays of NumPy in place, variables of TensorFlow and Keras by
assignment, also those of models and optimizers, and the epoch of a sampler. So it is for what is in lists, tuples and dictionaries,
and in what is registered as a tree with JAX. An array of JAX cannot be written, so the newcomer has another one in its place.
Everything else comes as a copy in the attribute; also `State.step`. The others keep what they have.

They compare it meanwhile: parameters, optimizers, tensors, arrays and variables that are not of a model must be equal on all
workers that train, while buffers of modules, variables of models that are not trained, keys of random numbers of JAX
(`jax.random.key`) and plain values need not be. JAX does not know running statistics from parameters: average them in each step.

**JAX.** Keep arrays in the state, and nowhere else, so that a newcomer trains with those that it has got:

    for batch in elastic.steps(state, batches()):
        state.params, state.moments = step(state.params, state.moments, batch)

At a boundary, the sums of compiled functions have ended. So the steps of a worker do not overlap in an elastic training.

**Newcomers.** A script needs no branch for them. Until a newcomer has its state, broadcasts of it do nothing, as do those of
wrappers and callbacks; the others made them long ago. Any other collective before its first step is an error. So build model
and optimizer and begin the loop over `steps`. It has to be the loop in which the others are. The others wait for the
newcomer from the return of its `init` until its first step, at most for `step_timeout`: import and load data before `init`.

The batches of a newcomer are its own, from its first one on. Let the loop end by `State.step`, which is equal on all
workers, and not by the length of the data:

    def batches():
        while state.step < 10_000:
            state.sampler.set_epoch(state.epoch)
            yield from itertools.islice(loader, 10_000 - state.step)
            state.epoch += 1

    for batch in elastic.steps(state, batches()):
        train(batch)

Let a step be one of the optimizer: gradients that are accumulated over several backward passes belong into one step.

**What goes on.** `DistributedDataParallel`, `DistributedOptimizer` and `CrossBarrier` of `gradlane.torch`, the optimizers of
Keras and all calls with names go on without being made again; so does what error feedback keeps on a worker. Process sets
name ranks of before: make them again in a hook. Process groups of `torch.distributed` are reconfigured in the loop; see
`gradlane.torch.process_group`. `Compression.auto` is measured by all workers when a wrapper is made, which a newcomer cannot
do; choose a codec.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

from gradlane import _core, _session, _state
from gradlane.errors import Error, FailedPreconditionError, InvalidArgumentError

__all__ = ["Change", "Report", "State", "Steps", "World", "has_left", "leave", "on_change", "report", "steps", "world"]

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The workers that train."""

    rank: int
    """This worker, by the number that it has until the job forms again."""
    ranks: tuple[int, ...]
    """All workers, in order."""

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.ranks)

    @property
    def index(self) -> int:
        """The place of this worker among them, from 0 and without gaps."""
        return self.ranks.index(self.rank)


@dataclass(frozen=True)
class Change:
    """Other workers than before train from a step on."""

    step: int
    """How many steps of the job had been done, by each worker."""
    before: tuple[int, ...]
    """The ranks before it."""
    after: tuple[int, ...]
    """The ranks after it. If workers have come, these are other numbers for the same workers."""


@dataclass(frozen=True)
class Report:
    """What has become of the training so far."""

    steps: int
    """The steps that this worker has begun. Those that were done before a newcomer came count as its own."""
    changes: tuple[Change, ...]
    """The changes that it was told of, on a newcomer those since it came. From the loss of a worker to the boundary at which the
    others hear of it, sums are already without that worker."""


class State:
    """What belongs to the training besides its batches: `State(model=model, sampler=sampler, epoch=0)`.

    The values are attributes. `step` counts the steps that this worker has done with it. If one of the values is called
    `sampler` and has `num_replicas` and `rank`, as PyTorch's `DistributedSampler` has, it is given this worker's share
    of the data anew when the number of workers changes; its next epoch follows that.

    A worker that comes to the job gets the values of the others. Give all workers values of the same names, and leave out
    what is another thing on each worker, such as a data loader.
    """

    def __init__(self, **values: Any) -> None:
        if "step" in values:
            raise InvalidArgumentError("a state counts its steps itself; give the value step another name")
        self.step = 0
        self.__dict__.update(values)

    def _changed(self, before: World, after: World) -> None:
        """Called before hooks; for states of other systems."""


Hook = Callable[[World, World], object]


@dataclass
class _Training:
    """The steps of this process in one job."""

    enrolment: int
    world: World
    steps: int = 0
    steps_before: int = 0
    """Those that were done when the job formed as it is."""
    changes: list[Change] = field(default_factory=list)
    has_left: bool = False
    takes_sigterm: bool = False
    asks_to_leave: bool = False
    """Whether this worker was told to leave, also if the session that was asked has ended meanwhile."""


_training: _Training | None = None
_hooks: list[Hook] = []
_settling: list[Callable[[], object]] = []


def on_change(hook: Hook) -> Hook:
    """Calls `hook` with the workers before and after each change, on every worker behind the same step.

    If workers have come, they get the state behind the hooks of the others, with what these have changed in it, such as a
    learning rate. So a hook makes no collectives. Hooks of newcomers are called for later changes only. The ranks of the
    two worlds are those before and after, which differ.

    Hooks are called in the order in which they were given, from `steps`, and an exception of one comes out of it. This
    can be used as a decorator.
    """
    _hooks.append(hook)
    return hook


def before_boundaries(settle: Callable[[], object]) -> None:
    """Calls `settle` before each boundary: it waits for what a framework still computes of the step, such as its sums."""
    _settling.append(settle)


def steps(state: State | None, batches: Iterable[T]) -> Generator[T, None, None]:
    """The batches, one for each step of the training, until they end or this worker leaves the job.

    Use it on every worker, with as many batches as on the others. A newcomer has the state before the iteration over its
    batches begins. The first use in the main thread also takes SIGTERM
    until this process leaves the job, if the worker can leave alone.

    Args:
        state: what belongs to the training, or None.
        batches: such as a data loader. The one that is at hand when this worker leaves is not used.
    Yields:
        Each batch, once all workers may begin the step.
    Raises:
        NotInitializedError: this process takes part in no job.
        TimeoutError: other workers did not come to the boundary behind a step within `step_timeout`; it names them.
        PeerLostError: the job is over.
        QuorumLostError: the job is over, because too few workers were left for `rejoin_timeout` (`on_worker_loss=wait`).
        NotFormedError: the job was to form again, and the workers did not meet within `reform_timeout`. This process is in no
            job then.
        MismatchError: this is a newcomer, and its state has other values than that of the others (they are named). It has left
            the job then, and the others go on.
        FailedPreconditionError: this is a newcomer, and it or the others gave no state; it has left, as above. Or, on all
            workers, the parameters, optimizers, tensors or arrays of those that train differ when a newcomer comes.
    """
    loop = Steps(state)
    try:
        loop.meet()
        for batch in batches:
            if not loop.begin():
                return
            yield batch
            loop.end()
    finally:
        loop.rest()


class Steps:
    """What `steps` does around a loop, for loops that are no `for`: callbacks of a framework, for example.

    The errors are those of `steps`.
    """

    def __init__(self, state: State | None = None, refresh: Callable[[], object] | None = None) -> None:
        """Counts the steps of a training.

        Args:
            state: what belongs to it, or None.
            refresh: called when the workers have changed, before hooks; it brings the values of the state up to date, where a
                framework has them elsewhere while it trains.
        """
        self._state, self._refresh = state, refresh

    def meet(self) -> None:
        """Takes the state of the others, if this worker is a newcomer that has none yet; `begin` does so else."""
        if _session.is_newcomer():
            _take_part(_present(), self._state)

    def begin(self) -> bool:
        """Begins a step, on every worker as often as on the others. False if this worker has left the job, as it was told."""
        self.meet()
        training = _present()
        if not training.takes_sigterm:
            training.takes_sigterm = _leave_on_sigterm()
        for settle in _settling:
            settle()
        return _begin_step(training, self._state, self._refresh)

    def end(self) -> None:
        """The step is done."""
        if self._state is not None:
            self._state.step += 1

    def rest(self) -> None:
        """The loop has ended, so that no boundary waits for this worker until it begins a step again."""
        if _session.is_initialized():
            _session.session().end_steps()


def leave() -> None:
    """Lets this worker leave the job at the end of its step: its loop over `steps` ends then. The others train on.

    May be called from any thread. If the worker does not come to the end of its step within `leave_grace`, the others go
    on without it all the same.

    Raises:
        FailedPreconditionError: the others could not go on, because `on_worker_loss` is `abort`, or because this
            process serves them.
        NotInitializedError: this process takes part in no job.
    """
    job = _session.current()
    if job.embedded is not None:
        raise FailedPreconditionError(
            "this process serves the other workers, which end with it; start the job with `gradlane run`, or with a "
            "coordinator and servers of their own"
        )
    _ask_to_leave()


def is_asked_to_leave() -> bool:
    """Whether this worker was told to leave its job, and has not left it yet."""
    training = _of_this_job()
    return training is not None and training.asks_to_leave and not training.has_left


def has_left() -> bool:
    """Whether this worker has left its job, as it was told. It can reduce nothing any more, and should end."""
    training = _of_this_job()
    return training is not None and training.has_left


def world() -> World:
    """The workers that train, as this worker was told last; the same on all workers in the same step."""
    return _present().world


def trained_world() -> World | None:
    """The workers that train, if this process has begun a step in its present job; also in a forked process."""
    training = _of_this_job()
    return training.world if training is not None and training.steps > 0 else None


def report() -> Report:
    """What has become of the training of this process so far."""
    training = _present()
    return Report(training.steps, tuple(training.changes))


def _of_this_job() -> _Training | None:
    """What is known of the training in the present job, if anything is."""
    return _training if _training is not None and _training.enrolment == _session.enrolment() else None


def _present() -> _Training:
    """What is known of the training in the present job, or in the last one."""
    global _training
    if _training is None or (_of_this_job() is None and _session.is_initialized()):
        _training = _Training(_session.enrolment(), _everybody(_session.session()))
    return _training


def _everybody(session: _core.Session) -> World:
    """The workers with which the job has formed. All of them know these, also one that was lost meanwhile."""
    return World(session.rank, tuple(range(session.first_size)))


def _begin_step(training: _Training, state: State | None, refresh: Callable[[], object] | None) -> bool:
    """Begins a step, and tells of changes before it. Returns whether this worker still trains."""
    while True:
        outcome, passage = _session.session().begin_step()
        match outcome:
            case "left":
                training.has_left = True
                return False
            case "forms again":
                _form_again(training, state, refresh)
            case "begun":
                break
    training.steps += 1
    if passage is not None:
        step, ranks = passage
        after = World(training.world.rank, tuple(ranks))
        if after != training.world:
            _change(training, state, training.steps_before + step, after, refresh)
    return True


def _form_again(training: _Training, state: State | None, refresh: Callable[[], object] | None) -> None:
    """Goes on with the workers that have come."""
    _session.join_again()
    session = _session.session()
    if training.asks_to_leave:
        with contextlib.suppress(Error):  # the session that was asked has ended
            session.ask_to_leave()
    elif training.takes_sigterm:
        training.takes_sigterm = _leave_on_sigterm()
    # Before the newcomers get the state, so that they have what hooks change in it.
    _change(training, state, training.steps, _everybody(session), refresh)
    _synchronise(training, state, is_newcomer=False)


def _take_part(training: _Training, state: State | None) -> None:
    """Gives this newcomer the state of the others. If that fails, it leaves the job, and the others go on."""
    _session.end_newcomer()
    try:
        _synchronise(training, state, is_newcomer=True)
    except BaseException:
        _session.shutdown()
        raise
    training.steps = training.steps_before
    _share_anew(state, training.world)


def _synchronise(training: _Training, state: State | None, *, is_newcomer: bool) -> None:
    """Makes the same exchange as all other workers, after the job has formed again; see `gradlane._state`."""
    values = None if state is None else dict(vars(state))
    training.steps_before, received = _state.exchange(values, training.steps, is_newcomer=is_newcomer)
    if state is not None and received is not None:
        vars(state).update(received)


def _change(
    training: _Training, state: State | None, step: int, after: World, refresh: Callable[[], object] | None
) -> None:
    """Records that other workers train, and tells those that want to hear of it."""
    if refresh is not None:
        refresh()
    before, training.world = training.world, after
    training.changes.append(Change(step, before.ranks, after.ranks))
    _share_anew(state, after)
    if state is not None:
        state._changed(before, after)
    for hook in _hooks:
        hook(before, after)


def _share_anew(state: State | None, world: World) -> None:
    """Gives the sampler of a state this worker's share among those that train."""
    sampler: Any = getattr(state, "sampler", None)
    if not (hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")):
        return
    sampler.num_replicas, sampler.rank = world.size, world.index
    # PyTorch's reckons the length of a share when it is made.
    if hasattr(sampler, "num_samples") and hasattr(sampler, "dataset"):
        length = len(sampler.dataset)
        drops_last = getattr(sampler, "drop_last", False)
        sampler.num_samples = length // world.size if drops_last else -(-length // world.size)
        sampler.total_size = sampler.num_samples * world.size


def _ask_to_leave() -> None:
    """Asks to leave at the next boundary, also if the job forms again there."""
    training = _present()
    training.asks_to_leave = True
    _session.session().ask_to_leave()


def _leave_on_sigterm() -> bool:
    """From now on until this process has left its job, SIGTERM means that this worker leaves at the end of its step.

    Only the main thread can do this, and only if the worker can leave. A handler of the program is called too. After the
    first signal everything is as it was before. Returns whether SIGTERM is taken.
    """
    job = _session.current()
    before = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    # One that no Python code has set is None; what is ignored shall have no effect.
    is_free = callable(before) or before is signal.SIG_DFL
    if not (is_main and is_free and job.embedded is None and job.session.may_leave):
        return False

    process = os.getpid()

    def ask(number: int, frame: FrameType | None) -> None:
        restore()
        if os.getpid() != process:  # a forked child, which is no worker
            return os.kill(os.getpid(), number)
        with contextlib.suppress(Error):  # the job is over, which others are told
            _ask_to_leave()
        if callable(before):
            before(number, frame)

    def restore() -> None:
        with contextlib.suppress(ValueError):  # another thread ends the job: the handler then does nothing more
            if signal.getsignal(signal.SIGTERM) is ask:
                signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, ask)
    _session.after_leaving(restore)
    return True
